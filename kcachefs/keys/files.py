"""Digests of files, and whether a loaded module still matches its file."""

from __future__ import annotations

import os
import stat
import time
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from types import ModuleType

from blake3 import blake3

from kcachefs.errors import Unkeyable
from kcachefs.keys.libraries import place_of

# How long a file must have been left alone before its times prove its content.
_SETTLED_NS = 2_000_000_000
_digests: dict[str, tuple[tuple[int, ...], bytes]] = {}
# The digest of each module's file when it was first seen, as long as the module is loaded from the same spec.
_first_seen: dict[str, tuple[ModuleSpec | None, bytes]] = {}


def file_digest(path: str) -> bytes | None:
    """The digest of a file, or None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return blake3(file.read()).digest()
    except OSError:
        return None


def remembered_digest(path: str) -> bytes | None:
    """The digest of a file, read again only if the file has changed; None where there is none."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would wait for a writer, a device may never end
            raise Unkeyable(f"{path} is neither a file nor a folder; pass its content")
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())
            identity = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
            known = _digests.get(path)
            if known is None or known[0] != identity:
                known = (identity, blake3(file.read()).digest())
                # A file that has just been written may be written again within one tick of the clock.
                if abs(time.time_ns() - facts.st_ctime_ns) > _SETTLED_NS:
                    _digests[path] = known
            return known[1]
    except FileNotFoundError:
        return None


def module_digests(name: str, spec: ModuleSpec | None, content: bytes) -> tuple[bytes, bytes]:
    """The digest of a module's file when it was first seen, and the present one; `spec` is None if it is not loaded.

    They differ for a file that is changed after its import. The running code is then not what the file says, and the
    key is one that no other process has.
    """
    present = blake3(content).digest()
    known, first = _first_seen.get(name, (None, present))
    if spec is None or (known is not None and known is not spec):
        first = present
    _first_seen[name] = (spec, first)
    return first, present


def module_file(name: str, path: str | None) -> bytes:
    """The content of a module's file."""
    try:
        with open(path or "", "rb") as file:
            return file.read()
    except OSError:
        raise Unkeyable(f"module {name} has no file to read; name it in `ignore`") from None


def extension_digests(module: ModuleType) -> tuple[bytes, bytes] | None:
    """The digests of a compiled extension module's file; None for any other module."""
    file, _, spec = place_of(module)
    if file is None or not file.endswith(tuple(EXTENSION_SUFFIXES)):
        return None
    return module_digests(module.__name__, spec, module_file(module.__name__, file))
