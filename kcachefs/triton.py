"""A cache manager for Triton where there is no mount: `TRITON_CACHE_MANAGER=kcachefs.triton:CacheManager`.

The layout is Triton's own, so TorchInductor, which reads these folders itself, and Triton's own manager find the files
they expect. The differences: a group of files appears whole or not at all. It is returned only if every member has the
size and the digest that it was stored with. It is evicted whole, least recently used first, where KCACHEFS_CACHE_SIZE
bounds the directory. The directory is the one that Triton was given (`TRITON_CACHE_DIR`, `triton.knobs.cache.dir`), or
one of kcachefs's own. Where it cannot be written, kernels are compiled into a temporary folder and nothing is kept.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import sys
import tempfile
import uuid
import weakref
from pathlib import Path
from typing import Any

import msgspec
from triton.runtime.cache import CacheManager as TritonCacheManager
from triton.runtime.cache import FileCacheManager

from kcachefs import config
from kcachefs.caches.bound import check_limit
from kcachefs.caches.groups import Groups, Pin, file_facts

_log = logging.getLogger("kcachefs")

# The first file of a compilation: from it on, files are gathered until `put_group` names them. If any other file comes
# # first, such as a launcher or tuning results, it is a file by itself and is stored at once, as are all files after
# it.
_GROUP_STARTS = frozenset({".source", ".ttir", ".ttgir", ".llir", ".ptx", ".cubin", ".amdgcn", ".hsaco", ".gluon"})
_FACTS = "kcachefs"


class CacheManager(TritonCacheManager):  # type: ignore[misc]
    """The files of one Triton key. Triton makes one for each compilation and drops it when the kernel is loaded."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self.key = key
        # Dumps and overrides are for people to look at and edit: plain files in the places that Triton documents.
        self._plain = FileCacheManager(key, override=override, dump=dump) if override or dump else None
        self._groups = _groups(_directory(), config.library_limit())
        self._staged: Pin | None = None
        self._spare: Path | None = None
        self._has_singles = False
        self._pins = contextlib.ExitStack()
        self._finalizer = weakref.finalize(self, _release, self._pins)

    def get_file(self, filename: str) -> str | None:
        """The path of a file, or None."""
        if self._plain is not None:
            return self._plain.get_file(filename)  # type: ignore[no-any-return]
        for folder in (None if self._staged is None else self._staged.path, self._spare):
            if folder is not None and (folder / filename).exists():
                return str(folder / filename)
        pin = self._pin()
        if pin is None or not (pin.path / filename).is_file():
            return None
        pin.touch()
        return str(pin.path / filename)

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Store a file, or gather it for `put_group`; returns its path, valid for as long as this manager lives."""
        if self._plain is not None:
            return self._plain.put(data, filename, binary=binary)  # type: ignore[no-any-return]
        content = data if isinstance(data, bytes) else str(data).encode()
        try:
            if self._staged is None and not self._has_singles and Path(filename).suffix in _GROUP_STARTS:
                self._staged = self._groups.stage(self.key)
                self._pins.callback(_drop_staged, self._groups, self._staged)
            if self._staged is None:
                return str(self._put_single(content, filename))
            path = self._staged.path / filename
            path.write_bytes(content)
        except OSError as error:
            path = self._put_aside(content, filename, error)
        return str(path)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """The files of a group by name, each as it was stored; else None, and the rest of the group is removed."""
        if self._plain is not None:
            return self._plain.get_group(filename)  # type: ignore[no-any-return]
        pin = self._pin()
        if pin is None:
            return None
        members = _whole_group(pin.path, filename)
        if members is None:
            is_damaged = (pin.path / _manifest(filename)).exists()
            pin.close()
            if is_damaged:
                self._groups.remove(self.key)
            return None
        pin.touch()
        return members

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        """Make the files of a group findable together; returns the path of the manifest.

        `group` is updated to the files' new paths: Triton reads the kernel back through this very dictionary once the
        group is stored, and keeps it.
        """
        if self._plain is not None:
            return self._plain.put_group(filename, group)  # type: ignore[no-any-return]
        final = self._groups.root / self.key
        facts = {name: file_facts(Path(path)) for name, path in group.items()}
        paths = {name: str(final / Path(path).name) for name, path in group.items()}
        told = msgspec.json.encode({"child_paths": paths, _FACTS: facts})
        self._gather(group)
        written = self.put(told, _manifest(filename))
        if self._spare is not None:
            return written
        if self._staged is None:
            self._groups.grew(self.key)
            group.update(paths)
            return written
        if self._groups.publish(
            self.key, self._staged, _manifest(filename), lambda folder: _whole_group(folder, filename) is not None
        ):
            group.update(paths)
        else:
            group.update(self.get_group(filename) or {})
        return str(self._staged.path / _manifest(filename))

    def _gather(self, group: dict[str, str]) -> None:
        """Copy members that lie elsewhere into the group's folder: another manager may have stored them."""
        folder = self._groups.root / self.key if self._staged is None else self._staged.path
        for path in map(Path, group.values()):
            if path.parent not in (folder, self._spare):
                self.put(path.read_bytes(), path.name)

    def _pin(self) -> Pin | None:
        pin = self._groups.pin(self.key)
        if pin is not None:
            self._pins.callback(pin.close)
        return pin

    def _put_aside(self, content: bytes, filename: str, error: OSError) -> Path:
        """Keep a file that cannot be stored: Triton still needs it to load the kernel."""
        if self._spare is None:
            _log.warning("%s: %s; kernels are compiled and not kept", self._groups.root, error.strerror)
            self._spare = Path(tempfile.mkdtemp(prefix="kcachefs-"))
            self._pins.callback(shutil.rmtree, self._spare, ignore_errors=True)
        path = self._spare / filename
        path.write_bytes(content)
        return path

    def _put_single(self, content: bytes, filename: str) -> Path:
        folder = self._groups.root / self.key
        temporary = folder / f".{filename[:100]}.{os.getpid()}.{uuid.uuid4().hex}"
        for last in (False, True):
            folder.mkdir(parents=True, exist_ok=True)
            self._pin()
            try:
                temporary.write_bytes(content)
                os.replace(temporary, folder / filename)
                break
            except FileNotFoundError:  # evicted before it was pinned
                if last:
                    raise
        self._has_singles = True
        return folder / filename


def _whole_group(folder: Path, filename: str) -> dict[str, str] | None:
    """Every member's path, if every member is as the manifest states.

    Paths in a manifest are absolute; members are looked for in the folder that the manifest is in, so a directory that
    was moved still serves.
    """
    try:
        told = msgspec.json.decode((folder / _manifest(filename)).read_bytes())
        members = {str(name): folder / Path(path).name for name, path in told["child_paths"].items()}
        facts = told.get(_FACTS)
        for name, path in members.items():
            if facts is None:
                if not path.is_file():  # stored by Triton's own manager, whose manifest states only paths
                    return None
            elif file_facts(path) != tuple(facts[name]):
                return None
    except (OSError, msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return {name: str(path) for name, path in members.items()}


def _manifest(filename: str) -> str:
    return f"__grp__{filename}"


def _directory() -> Path:
    """The directory that Triton was given, by a variable or by a knob; otherwise one of our own."""
    knobs = sys.modules.get("triton.knobs")  # since Triton 3.4
    chosen = vars(knobs.cache).get("dir") if knobs is not None else None
    if chosen:
        return Path(chosen).absolute()
    return config.triton_directory() or config.library_directory("triton")


@functools.cache
def _groups(root: Path, max_bytes: int | None) -> Groups:
    limit = None if config.is_on_mount(root) else max_bytes
    check_limit(limit, config.LIBRARY_LIMIT)
    groups = Groups(root, limit)
    groups.sweep()
    return groups


# A forked child starts with a cache of its own: a lock held by another thread would stay held in the child for ever.
os.register_at_fork(after_in_child=_groups.cache_clear)


def _drop_staged(groups: Groups, staged: Pin) -> None:
    """Remove the files of a compilation that failed, or that another process finished first."""
    staged.close()
    if staged.path.parent != groups.root:
        groups.sweep()


def _release(pins: contextlib.ExitStack) -> None:
    pins.close()
