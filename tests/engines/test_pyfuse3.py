"""The pyfuse3 engine authorizes in trio's loop, and leaves what takes long to a helper: the loop answers all others."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

pytest.importorskip("pyfuse3")

import pyfuse3

from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.caller import NOBODY
from kcachefs.core.files import QUICK_TO_FREE
from kcachefs.core.sharing import Sharing
from kcachefs.engines import pyfuse3 as pyfuse3_engine
from kcachefs.engines.pyfuse3 import Operations
from kcachefs.engines.pyfuse3_kernel import Pyfuse3Kernel
from kcachefs.store import Options, Store
from kcachefs.store.inode_numbers import ROOT_INO
from tests.waiting import PATIENCE, until_async

OWNER, STRANGER = (SimpleNamespace(uid=uid, gid=uid, pid=0) for uid in (1001, 1002))
LARGE = 3 << 20
FIELDS = ("size", "mode", "uid", "gid", "atime", "mtime")


class Scene:
    """The engine's operations over a store of their own, called as libfuse would."""

    def __init__(self, store: Path) -> None:
        self.store = Store(store, Options(background=False))
        self.fs = Filesystem(self.store, FsOptions(sharing=Sharing(policy="publish")))
        self.operations = Operations(self.fs, Pyfuse3Kernel())
        found = self.fs.lookup(NOBODY, ROOT_INO, b"triton")
        assert found is not None
        self.folder = found

    def close(self) -> None:
        self.fs.settle()
        self.store.close()

    async def write_file(self, name: bytes, content: bytes) -> int:
        handle, entry = await self.operations.create(self.folder, name, 0o644, 0, OWNER)
        for start in range(0, len(content), 1 << 20):
            await self.operations.write(handle.fh, start, content[start : start + (1 << 20)])
        await self.operations.release(handle.fh)
        return int(entry.st_ino)

    async def resize(self, ino: int, size: int, context: object) -> None:
        fields = SimpleNamespace(**{f"update_{name}": name == "size" for name in FIELDS})
        await self.operations.setattr(ino, SimpleNamespace(st_size=size), fields, None, context)

    async def rename(self, old: bytes, new: bytes, context: object) -> None:
        await self.operations.rename(self.folder, old, self.folder, new, 0, context)

    # --- slow requests: what makes them slow is prepared, then they are ready to be made ------------------------------

    async def slow_rename(self) -> Callable[[object], Awaitable[None]]:
        synced = await self.write_file(b"synced", b"first")
        await self.operations.fsync(synced, False)
        await self.write_file(b"other", b"second")
        return lambda context: self.rename(b"other", b"synced", context)

    async def slow_resize(self) -> Callable[[object], Awaitable[None]]:
        large = await self.write_file(b"large", os.urandom(LARGE))
        self.fs.settle()
        return lambda context: self.resize(large, LARGE // 2, context)

    async def slow_open(self) -> Callable[[object], Awaitable[None]]:
        large = await self.write_file(b"large", bytes(1) * (QUICK_TO_FREE + (1 << 20)))

        async def truncate(context: object) -> None:
            handle = await self.operations.open(large, os.O_WRONLY | os.O_TRUNC, context)
            await self.operations.release(handle.fh)

        return truncate


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "store")
    yield made
    made.close()


SLOW = {
    "rename": (Scene.slow_rename, "tree", "rename"),
    "setattr": (Scene.slow_resize, "files", "truncate"),
    "open": (Scene.slow_open, "files", "truncate"),
}


class Held:
    """Holds a method of a part of the filesystem until it is told to go on, wherever that is not the loop's thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.threads: list[threading.Thread] = []
        self.arguments: tuple[Any, ...] = ()
        self.began, self.go_on = threading.Event(), threading.Event()
        loop, real = threading.current_thread(), getattr(owner, name)

        def call(*arguments: object, **named: object) -> object:
            self.threads.append(threading.current_thread())
            self.arguments = arguments
            self.began.set()
            if threading.current_thread() is not loop:
                assert self.go_on.wait(PATIENCE)
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    @property
    def was_in_the_loop(self) -> bool:
        return threading.current_thread() in self.threads


@pytest.mark.parametrize("request_name", SLOW)
def test_others_are_answered_while_a_slow_request_is_carried_out(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, request_name: str
) -> None:
    prepare, part, method = SLOW[request_name]

    async def ask() -> None:
        slow = await prepare(scene)
        held = Held(monkeypatch, getattr(scene.fs, part), method)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slow, OWNER)
            assert await trio.to_thread.run_sync(held.began.wait, PATIENCE)
            assert (await scene.operations.getattr(scene.folder, OWNER)).st_ino == scene.folder
            assert not held.was_in_the_loop
            held.go_on.set()
        if request_name == "rename":
            assert (held.arguments[0].uid, held.arguments[0].gid) == (OWNER.uid, OWNER.gid)

    trio.run(ask)
    name, size = {"rename": (b"synced", 6), "setattr": (b"large", LARGE // 2), "open": (b"large", 0)}[request_name]
    ino = scene.fs.lookup(NOBODY, scene.folder, name)
    assert ino is not None
    assert scene.fs.attributes(ino).size == size
    if request_name == "rename":
        assert scene.fs.read(ino, 0, 100) == b"second"


@pytest.mark.parametrize("request_name", SLOW)
def test_who_may_not_make_a_slow_request_is_refused_before_a_helper_works(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, request_name: str
) -> None:
    prepare, _, method = SLOW[request_name]

    async def ask() -> None:
        slow = await prepare(scene)
        held = Held(monkeypatch, scene.fs, "rename" if method == "rename" else "set_attributes")
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await slow(STRANGER)
        assert caught.value.errno == errno.EPERM
        assert held.threads == []

    trio.run(ask)


def test_what_is_quick_is_done_in_the_loop(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        small = await scene.write_file(b"small", b"content")
        files, tree = (Held(monkeypatch, scene.fs.files, "truncate"), Held(monkeypatch, scene.fs.tree, "rename"))
        for held in (files, tree):
            held.go_on.set()
        await scene.resize(small, 4, OWNER)
        await scene.rename(b"small", b"renamed", OWNER)
        handle = await scene.operations.open(small, os.O_WRONLY | os.O_TRUNC, OWNER)
        await scene.operations.release(handle.fh)
        assert {*files.threads, *tree.threads} == {threading.current_thread()}

    trio.run(ask)


def test_slow_requests_do_not_wait_behind_writes_that_wait_for_room(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they do may be what makes the room."""
    waiting, go_on = list[int](), threading.Event()

    def wait_for_room(ino: int, offset: int, data: bytes) -> int:
        waiting.append(ino)
        assert go_on.wait(PATIENCE)
        return len(data)

    async def ask() -> None:
        truncate = await scene.slow_resize()
        file = await scene.write_file(b"file", b"")
        monkeypatch.setattr(scene.fs, "is_quick_to_write", lambda ino, end: False)
        monkeypatch.setattr(scene.fs, "write", wait_for_room)
        everybody = trio.to_thread.current_default_thread_limiter().total_tokens
        async with trio.open_nursery() as nursery:
            for number in range(int(everybody)):
                nursery.start_soon(scene.operations.write, file, number, b"x")
            await until_async(lambda: len(waiting) >= pyfuse3_engine._WAITING_THREADS)
            with trio.fail_after(PATIENCE):
                await truncate(OWNER)
            assert scene.fs.attributes(scene.fs.lookup(NOBODY, scene.folder, b"large") or 0).size == LARGE // 2
            go_on.set()

    trio.run(ask)
