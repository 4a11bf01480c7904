"""A filesystem over a real store, used in this process as an engine uses it."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.caller import Caller
from kcachefs.core.kernel import Kernel
from kcachefs.core.limits import Limits
from kcachefs.core.remote import Remote
from kcachefs.errors import NoSpace
from kcachefs.store import Options, Store, fsck
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.journal import Changes
from kcachefs.store.ledger import Staged

WRITER, READER = 1_000_001, 1_000_002
"""Processes that do not exist; the core does not check."""
ROOT = Caller(0, 0, WRITER)
LARGE = b"0123456789abcdef" * (128 << 10)
"""Too large for a slot: such a file is in the spool until it is sealed."""


def user(uid: int, pid: int = WRITER) -> Caller:
    """A user whose group has the same number."""
    return Caller(uid, uid, pid)


@contextmanager
def opened(
    path: Path,
    limits: Limits = Limits(),  # noqa: B008
    kernel: Kernel | None = None,
    remote: Remote | None = None,
) -> Iterator[Filesystem]:
    """The filesystem of the store at `path`. At the end the store is closed and must be clean."""
    with Store(path, Options(background=False)) as store:
        fs = Filesystem(store, FsOptions(limits=limits), kernel, remote=remote)
        fs.evictor.certain_seconds = 0.0
        yield fs
        fs.settle()
    assert fsck.run(path).findings == []


def after_stage(
    fs: Filesystem,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[], object],
    *,
    number: int = 1,
    way: Literal["stage", "stage_file"] = "stage",
) -> None:
    """Do this once, when the sealer has stored its `number`-th file that way and not committed it yet."""
    stage, seen = getattr(fs.store.objects, way), itertools.count(1)

    def stage_and_act(*arguments: Any) -> Staged:
        staged: Staged = stage(*arguments)
        if next(seen) == number:
            monkeypatch.undo()
            act()
        return staged

    monkeypatch.setattr(fs.store.objects, way, stage_and_act)


@contextmanager
def nothing_acknowledged(fs: Filesystem) -> Iterator[None]:
    """As on a disk without room for the journal."""
    with refused(fs, lambda _: True), pytest.raises(NoSpace):
        yield


@contextmanager
def refused(fs: Filesystem, is_too_much: Callable[[Changes], bool]) -> Iterator[None]:
    """As on a disk that has no room for some changes."""
    commit = fs.store.catalog.commit

    def refuse(changes: Changes) -> None:
        if is_too_much(changes):
            raise NoSpace("the disk is full")
        commit(changes)

    fs.store.catalog.commit = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        fs.store.catalog.commit = commit  # type: ignore[method-assign]


def find(fs: Filesystem, path: str) -> int:
    ino = ROOT_INO
    for name in path.split("/"):
        found = fs.tree.find(ino, os.fsencode(name))
        if found is None:
            raise FileNotFoundError(path)
        ino = found
    return ino


def exists(fs: Filesystem, path: str) -> bool:
    try:
        find(fs, path)
    except FileNotFoundError:
        return False
    return True


def folder(fs: Filesystem, path: str, caller: Caller = ROOT) -> int:
    """Make a folder and its missing parents."""
    ino = ROOT_INO
    for name in path.split("/"):
        found = fs.tree.find(ino, os.fsencode(name))
        if found is None:
            found, _ = fs.make(caller, ino, os.fsencode(name), stat.S_IFDIR | 0o755)
            fs.forget(found, 1)
        ino = found
    return ino


def write(fs: Filesystem, path: str, data: bytes, caller: Caller = ROOT) -> int:
    """Create a file, write it, close it, and let the kernel forget it."""
    above, _, name = path.rpartition("/")
    ino, _ = fs.create(caller, folder(fs, above, caller), os.fsencode(name), 0o644)
    fs.write(ino, 0, data)
    fs.forget(ino, 1)
    return ino


def shrink(fs: Filesystem, share: float) -> None:
    """Evict as if the quota were this share of what is stored."""
    fs.store.slots.trim()  # what free slots keep would go first
    fs.set_limits(Limits(max_size=int(fs.store.used_bytes() * share), grace=0.0, min_free=0))
    while fs.evictor.turn():
        pass


def look_up(fs: Filesystem, path: str, pid: int, uid: int = 0) -> int:
    """What the kernel asks when a process opens a path that is new to it; it forgets it at once."""
    ino = ROOT_INO
    for name in path.split("/"):
        found = fs.lookup(user(uid, pid), ino, os.fsencode(name))
        if found is None:
            raise FileNotFoundError(path)
        fs.forget(found, 1)
        ino = found
    return ino


def rename(fs: Filesystem, old: str, new: str) -> None:
    above, _, name = old.rpartition("/")
    new_above, _, new_name = new.rpartition("/")
    fs.rename(ROOT, find(fs, above), os.fsencode(name), folder(fs, new_above), os.fsencode(new_name))


def kernel(fs: Filesystem, key: str, size: int = 3000) -> None:
    """Write an entry as Triton does: each file in a temporary folder, and then renamed."""
    for suffix in ("source", "ttir", "llir", "ptx", "cubin", "json"):
        temporary = f"triton/{key}/tmp.pid_1_{suffix}"
        write(fs, f"{temporary}/kernel.{suffix}", os.urandom(size))
        rename(fs, f"{temporary}/kernel.{suffix}", f"triton/{key}/kernel.{suffix}")
        fs.rmdir(ROOT, find(fs, f"triton/{key}"), os.fsencode(f"tmp.pid_1_{suffix}"))


def free_pages(fs: Filesystem) -> None:
    """Leave a catalog that was large once: some megabytes of its file are free."""
    with fs.store.transaction() as txn:
        for number in range(10_000):
            txn.put(b"?%d" % number, bytes(300))
    fs.store.fold()
    with fs.store.transaction() as txn:
        for number in range(10_000):
            txn.delete(b"?%d" % number)
    fs.store.fold()
