"""Bring an existing cache into a mount, entry by entry; the source is only read.

An entry appears in the mount at once and whole: it is copied under a temporary name, which the mount itself clears away
should this process die, and renamed. By that name the mount also knows that nobody had to compile it, and counts no
miss. What is there already is left, so an adoption that was interrupted is simply run again. Times are kept: ninja and
Numba compare them. Triton's group files hold absolute paths, and get those of the mount: without that Triton would go
on reading the source, and miss once it is deleted.
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

_INTO = {"flashinfer": (".cache", "flashinfer")}
"""Caches that lie deeper in the mount than in their usual place."""


@dataclass(slots=True)
class Found:
    """An entry of a source: a folder with all below it, or files side by side."""

    namespace: str
    path: tuple[str, ...]
    """In the namespace: of a tree its folder, of a group its files' folder."""
    source: Path
    """The same in the source."""
    names: list[str] = field(default_factory=list)
    """Of a group, its files; empty for a tree."""
    bytes: int = 0


@dataclass(slots=True)
class Tally:
    """What an adoption did."""

    adopted: int = 0
    there: int = 0
    bytes: int = 0
    unreadable: list[str] = field(default_factory=list)
    _listed: dict[Path, frozenset[str]] = field(default_factory=dict)

    def holds(self, folder: Path, name: str) -> bool:
        """Whether a folder of the mount held that name when this first looked. To ask for the name would be a use."""
        found = self._listed.get(folder)
        if found is None:
            found = self._listed[folder] = frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()
        return name in found


def namespace_of(source: Path, environ: Mapping[str, str]) -> str:
    """Whose cache a folder is: by where it is, or by what is in it."""
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
    raise UsageError(f"{source}: cannot tell whose cache this is; say it with --as, for example --as triton")


def find(source: Path, namespace: str) -> Iterator[Found]:
    """The entries of a source, as the layout of its framework tells them."""
    yield from _find(source, namespace, _INTO.get(namespace, ()))


def _find(folder: Path, namespace: str, path: tuple[str, ...]) -> Iterator[Found]:
    groups: dict[bytes, Found] = {}
    with os.scandir(folder) as children:
        for child in sorted(children, key=lambda one: one.name):
            below = (*path, child.name)
            is_dir = child.is_dir(follow_symlinks=False)
            spot = place(namespace.encode(), tuple(map(os.fsencode, below)), is_dir)
            if spot.kind is Kind.STRUCTURE:
                yield from _find(Path(child.path), *_home(namespace, below))
            elif spot.kind is Kind.TREE:
                yield Found(namespace, below, Path(child.path), bytes=_size(Path(child.path)))
            elif spot.kind is Kind.GROUP:
                found = groups.setdefault(spot.group, Found(namespace, path, folder))
                found.names.append(child.name)
                found.bytes += child.stat(follow_symlinks=False).st_size
    yield from groups.values()


def _home(namespace: str, path: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Where a folder of entries belongs: what TorchInductor keeps of others has a namespace of its own in a mount."""
    if namespace == "inductor":
        if path == ("precompiled_headers",):
            return "precompiled_headers", ()
        if path[0] == "triton" and len(path) == 2:
            return "triton", ()
    return namespace, path


def adopt(found: Found, mount: Path, tally: Tally, copied: Callable[[int], None] = lambda count: None) -> None:
    """Copy one entry into the mount, unless it is there."""
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
        tally.there += 1
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
            return False  # somebody made it meanwhile
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


def _adopt_group(found: Found, folder: Path, tally: Tally, copied: Callable[[int], None]) -> bool:
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
    """Nobody else's: in two containers that share a mount, processes have the same numbers."""
    return f"{ADOPTING.decode()}{uuid.uuid4().hex}"


def _copy_file(source: Path, staging: Path, folder: Path, copied: Callable[[int], None]) -> None:
    found = os.lstat(source)
    if stat.S_ISLNK(found.st_mode):
        staging.symlink_to(os.readlink(source))
        return
    if not stat.S_ISREG(found.st_mode):
        return
    with open(source, "rb", opener=_without_a_trace) as reader, open(staging, "wb") as writer:
        if source.name.startswith("__grp__"):
            writer.write(_at_home(reader.read(), folder))
            copied(found.st_size)
        else:
            while chunk := reader.read(1 << 20):
                writer.write(chunk)
                copied(len(chunk))
        os.fchmod(writer.fileno(), stat.S_IMODE(found.st_mode))
    _keep_times(source, staging, found)


def _at_home(raw: bytes, folder: Path) -> bytes:
    """Triton's group file with the paths that its members have in the mount."""
    try:
        group = json.loads(raw)
        group["child_paths"] = {name: str(folder / name) for name in group["child_paths"]}
        return json.dumps(group).encode()
    except (ValueError, KeyError, TypeError):
        return raw


def _keep_times(source: Path, copy: Path, found: os.stat_result | None = None) -> None:
    found = found or os.lstat(source)
    os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))


def _without_a_trace(path: str, flags: int) -> int:
    """Open without touching the source's atime, where this user may ask for that."""
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
