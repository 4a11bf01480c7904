"""Copies an existing cache into a mount, entry by entry; the source is only read.

An entry appears in the mount all at once: it is copied under a temporary name and then renamed. The mount removes the
temporary name if this process dies, and recognizes by it that nobody compiled the entry, so that it counts no miss.
Entries that are in the mount already are left alone, so an interrupted adoption can simply be run again. Times are
kept, because ninja and Numba compare them. Triton's group files hold absolute paths, which are changed to those in the
mount: otherwise Triton would keep reading the source, and miss once that is deleted.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kcachefs.core.layouts import ADOPTING, Kind, is_temporary, place
from kcachefs.errors import UsageError
from kcachefs.frameworks.environment import where_now
from kcachefs.frameworks.records import FRAMEWORKS

_SUBFOLDERS = {"flashinfer": (".cache", "flashinfer")}
"""Where a cache goes in its namespace, if not to the top."""


@dataclass(slots=True)
class SourceEntry:
    """An entry of the source: a folder with everything below it, or a group of files in one folder."""

    namespace: str
    path: tuple[str, ...]
    """The folder in the namespace: the entry itself, or the folder that holds the group."""
    source: Path
    """The same folder in the source."""
    names: list[str] = field(default_factory=list)
    """The files of a group; empty for a folder."""
    bytes: int = 0


@dataclass(slots=True)
class Tally:
    """What an adoption did so far."""

    adopted: int = 0
    present: int = 0
    """Entries that were in the mount already."""
    bytes: int = 0
    unreadable: list[str] = field(default_factory=list)
    _listed: dict[Path, frozenset[str]] = field(default_factory=dict)

    def holds(self, folder: Path, name: str) -> bool:
        """Whether a folder of the mount held that name when we first listed it. A lookup would count as a use."""
        found = self._listed.get(folder)
        if found is None:
            found = self._listed[folder] = frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()
        return name in found


def namespace_of(source: Path, environ: Mapping[str, str]) -> str:
    """The namespace that a cache belongs to, recognized by its location or its contents."""
    real = source.resolve()
    for framework in FRAMEWORKS:
        for known in (where_now(framework, environ), where_now(framework, {})):
            if framework.namespace and known.startswith("/") and Path(known).resolve() == real:
                return framework.namespace
    names = set(os.listdir(source))
    if names & {"fxgraph", "aotautograd"}:
        return "inductor"
    if "torch_compile_cache" in names:
        return "vllm"
    if {"entries", "tmp"} <= names:
        return "cuda_core"
    if any(name.endswith(".gch") for name in names):
        return "precompiled_headers"
    if any(name.endswith("-cache") for name in names):
        return "jax"
    if "index" in names and all(len(name) == 1 for name in names - {"index"}):
        return "cuda"
    for name in itertools.islice(sorted(names), 100):
        if (source / name).is_dir() and any(child.startswith("__grp__") for child in os.listdir(source / name)):
            return "triton"
    raise UsageError(
        f"{source}: cannot tell which framework this cache belongs to; name it, for example with --as triton"
    )


def find(source: Path, namespace: str) -> Iterator[SourceEntry]:
    """The entries of a source, according to its framework's layout."""
    yield from _find(source, namespace, _SUBFOLDERS.get(namespace, ()))


def _find(folder: Path, namespace: str, path: tuple[str, ...]) -> Iterator[SourceEntry]:
    groups: dict[bytes, SourceEntry] = {}
    with os.scandir(folder) as children:
        for child in sorted(children, key=lambda one: one.name):
            below = (*path, child.name)
            is_dir = child.is_dir(follow_symlinks=False)
            spot = place(namespace.encode(), tuple(map(os.fsencode, below)), is_dir)
            if spot.kind is Kind.STRUCTURE:
                yield from _find(Path(child.path), *_destination(namespace, below))
            elif spot.kind is Kind.TREE:
                yield SourceEntry(namespace, below, Path(child.path), bytes=_size(Path(child.path)))
            elif spot.kind is Kind.GROUP:
                found = groups.setdefault(spot.group, SourceEntry(namespace, path, folder))
                found.names.append(child.name)
                found.bytes += child.stat(follow_symlinks=False).st_size
    yield from groups.values()


def _destination(namespace: str, path: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Where a folder of entries goes: what TorchInductor keeps for other tools has its own namespace in a mount."""
    if namespace == "inductor":
        if path == ("precompiled_headers",):
            return "precompiled_headers", ()
        if path[0] == "triton" and len(path) == 2:
            return "triton", ()
    return namespace, path


def adopt(found: SourceEntry, mount: Path, tally: Tally, copied: Callable[[int], None] = lambda count: None) -> None:
    """Copy one entry into the mount, unless it is there already."""
    target = mount / found.namespace / Path(*found.path)
    try:
        if found.names:
            done = _adopt_group(found, target, tally, copied)
        else:
            done = not tally.holds(target.parent, target.name) and _adopt_tree(found.source, target, copied)
    except (PermissionError, FileNotFoundError) as error:
        if not str(error.filename).startswith(str(found.source)):
            raise
        tally.unreadable.append(str(error.filename))
        return
    if done:
        tally.adopted += 1
        tally.bytes += found.bytes
    else:
        tally.present += 1
        copied(found.bytes)


def _adopt_tree(source: Path, target: Path, copied: Callable[[int], None]) -> bool:
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.parent / _staging_name()
    try:
        _copy_tree(source, staging, target, copied)
        try:
            os.rename(staging, target)
        except OSError:
            if not target.is_dir():
                raise
            return False  # somebody else created it in the meantime
        return True
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _copy_tree(source: Path, staging: Path, target: Path, copied: Callable[[int], None]) -> None:
    staging.mkdir()
    with os.scandir(source) as children:
        for child in children:
            if is_temporary(os.fsencode(child.name)):
                continue
            if child.is_dir(follow_symlinks=False):
                _copy_tree(Path(child.path), staging / child.name, target / child.name, copied)
            else:
                _copy_file(Path(child.path), staging / child.name, target, copied)
    _keep_times(source, staging)


def _adopt_group(found: SourceEntry, folder: Path, tally: Tally, copied: Callable[[int], None]) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in found.names if not tally.holds(folder, name)]
    staging = folder / _staging_name()
    try:
        for name in missing:
            _copy_file(found.source / name, staging, folder, copied)
            os.rename(staging, folder / name)
    finally:
        staging.unlink(missing_ok=True)
    return bool(missing)


def _staging_name() -> str:
    """A unique name. Not the pid: processes in two containers that share a mount may have the same one."""
    return f"{ADOPTING.decode()}{uuid.uuid4().hex}"


def _copy_file(source: Path, staging: Path, folder: Path, copied: Callable[[int], None]) -> None:
    found = os.lstat(source)
    if stat.S_ISLNK(found.st_mode):
        staging.symlink_to(os.readlink(source))
        return
    if not stat.S_ISREG(found.st_mode):
        return
    with open(source, "rb", opener=_open_without_atime) as reader, open(staging, "wb") as writer:
        if source.name.startswith("__grp__"):
            writer.write(_relocated(reader.read(), folder))
            copied(found.st_size)
        else:
            while chunk := reader.read(1 << 20):
                writer.write(chunk)
                copied(len(chunk))
        os.fchmod(writer.fileno(), stat.S_IMODE(found.st_mode))
    _keep_times(source, staging, found)


def _relocated(raw: bytes, folder: Path) -> bytes:
    """A group file of Triton with the paths of its members in the mount."""
    try:
        group = json.loads(raw)
        group["child_paths"] = {name: str(folder / name) for name in group["child_paths"]}
        return json.dumps(group).encode()
    except (ValueError, KeyError, TypeError):
        return raw


def _keep_times(source: Path, copy: Path, found: os.stat_result | None = None) -> None:
    found = found or os.lstat(source)
    os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))


def _open_without_atime(path: str, flags: int) -> int:
    """Open without changing the source's atime, where this user is allowed to."""
    try:
        return os.open(path, flags | os.O_NOATIME)
    except PermissionError:
        return os.open(path, flags)


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total
