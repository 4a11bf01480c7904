"""Copies an existing cache into a mount, entry by entry; the source is only read.

An entry appears in the mount all at once: it is copied under a temporary name and then renamed. The mount removes the
temporary name if this process dies, and recognizes by it that nobody compiled the entry, so that it counts no miss.
Entries that are in the mount already are left alone, so an interrupted adoption can simply be run again. Times are
kept, because ninja and Numba compare them. Triton's group files hold absolute paths, which are changed to those in the
mount: otherwise Triton would keep reading the source, and miss once that is deleted.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kcachefs.core.layouts import NAMESPACES, Kind, place
from kcachefs.errors import UsageError
from kcachefs.frameworks.copying import (
    Folder,
    Skip,
    Skipped,
    copy_file,
    copy_tree,
    is_group_file,
    size_of,
    staging_name,
)
from kcachefs.frameworks.environment import where_now
from kcachefs.frameworks.records import FRAMEWORKS

MOUNT_FOLDER = ".kcachefs"
"""The folder that a mount adds beside its namespaces; a copy of a whole mount has it too."""
_SUBFOLDERS = {"flashinfer": (".cache", "flashinfer")}
"""Where a cache goes in its namespace, if not to the top."""


@dataclass(slots=True)
class SourceEntry:
    """An entry of the source: a folder with everything below it, or a group of files in one folder."""

    namespace: str
    path: tuple[str, ...]
    """The folder in the namespace: the entry itself, or the folder that holds the group."""
    root: Folder
    """The source, kept open so that it stays the folder that was examined."""
    inside: tuple[str, ...]
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
    skipped: list[str] = field(default_factory=list)
    """A line for everything that was not copied."""
    copied: list[tuple[Path, list[str]]] = field(default_factory=list)
    """For each adopted entry the folder in the mount and the names there that belong to it."""
    _listed: dict[Path, frozenset[str]] = field(default_factory=dict)

    def holds(self, folder: Path, name: str) -> bool:
        """Whether a folder of the mount held that name when we first listed it. A lookup would count as a use."""
        found = self._listed.get(folder)
        if found is None:
            found = self._listed[folder] = frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()
        return name in found

    def gone(self) -> int:
        """How many adopted entries are no longer in the mount: a quota too small for all evicts some."""
        listed: dict[Path, set[str]] = {}
        for folder in {folder for folder, _ in self.copied}:
            with contextlib.suppress(OSError):
                listed[folder] = set(os.listdir(folder))
        return sum(listed.get(folder, set()).isdisjoint(names) for folder, names in self.copied)


def caches_in(source: Path, environ: Mapping[str, str]) -> dict[Path, str]:
    """The caches in a directory with their namespaces: one, or several in a folder laid out like a mount."""
    folders = {source / name: name for name in NAMESPACES if (source / name).is_dir()}
    strange = {one.name for one in source.iterdir()} - {*folders.values(), MOUNT_FOLDER}
    return folders if folders and not strange else {source: namespace_of(source, environ)}


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
        if (source / name).is_dir() and any(map(is_group_file, os.listdir(source / name))):
            return "triton"
    raise UsageError(
        f"{source}: cannot tell which framework this cache belongs to; name it, for example with --as triton"
    )


def find(source: Path, namespace: str, skip: Skip = lambda line: None) -> Iterator[SourceEntry]:
    """The entries of a source, according to its framework's layout; calls `skip` for anything that cannot be one."""
    yield from _find(Folder(source), namespace, _SUBFOLDERS.get(namespace, ()), (), skip)


def _find(
    root: Folder, namespace: str, path: tuple[str, ...], inside: tuple[str, ...], skip: Skip
) -> Iterator[SourceEntry]:
    groups: dict[bytes, SourceEntry] = {}
    with root.below(*inside) as folder:
        for child in folder.children():
            below = (*path, child.name)
            is_dir = child.is_dir(follow_symlinks=False)
            spot = place(namespace.encode(), tuple(map(os.fsencode, below)), is_dir)
            try:
                if spot.kind is Kind.STRUCTURE:
                    yield from _find(root, *_destination(namespace, below), (*inside, child.name), skip)
                elif spot.kind is Kind.TREE:
                    with folder.below(child.name) as tree:
                        size = size_of(tree)
                    yield SourceEntry(namespace, below, root, (*inside, child.name), bytes=size)
                elif spot.kind is Kind.GROUP:
                    found = groups.setdefault(spot.group, SourceEntry(namespace, path, root, inside))
                    found.names.append(child.name)
                    found.bytes += child.stat(follow_symlinks=False).st_size
            except Skipped as skipped:
                skip(str(skipped))
    yield from groups.values()


def _destination(namespace: str, path: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Where a folder of entries goes: caches that TorchInductor keeps for other tools have namespaces of their own."""
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
            done = _adopt_group(found, mount, tally, copied)
        else:
            done = not tally.holds(target.parent, target.name) and _adopt_tree(found, mount, tally, copied)
    except Skipped as skipped:
        tally.skipped.append(str(skipped))
        return
    if done:
        tally.copied.append((target, found.names) if found.names else (target.parent, [target.name]))
        tally.adopted += 1
        tally.bytes += found.bytes
    else:
        tally.present += 1
        copied(found.bytes)


def _adopt_tree(found: SourceEntry, mount: Path, tally: Tally, copied: Callable[[int], None]) -> bool:
    *above, name = found.namespace, *found.path
    staging = staging_name()
    with found.root.below(*found.inside) as source, Folder(mount) as top, top.made_below(*above) as parent:
        try:
            with parent.made_below(staging) as copy:
                copy_tree(source, copy, mount.joinpath(*above, name), copied, tally.skipped.append)
            try:
                os.rename(staging, name, src_dir_fd=parent.fd, dst_dir_fd=parent.fd)
            except OSError:
                if not (parent.path / name).is_dir():
                    raise
                return False  # somebody else created it in the meantime
            return True
        finally:
            shutil.rmtree(staging, ignore_errors=True, dir_fd=parent.fd)


def _adopt_group(found: SourceEntry, mount: Path, tally: Tally, copied: Callable[[int], None]) -> bool:
    home = mount.joinpath(found.namespace, *found.path)
    missing = [name for name in found.names if not tally.holds(home, name)]
    staging = staging_name()
    skip = tally.skipped.append
    done = False
    with (
        found.root.below(*found.inside) as source,
        Folder(mount) as top,
        top.made_below(found.namespace, *found.path) as folder,
    ):
        try:
            for name in missing:
                if copy_file(source, name, folder, staging, home, copied, skip):
                    os.rename(staging, name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
                    done = True
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staging, dir_fd=folder.fd)
    return done
