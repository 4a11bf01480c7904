"""`AsyncContentStore`: the store for tasks, under asyncio and trio."""

from __future__ import annotations

import asyncio
import io
import shutil
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trio

from kcachefs import AsyncContentStore, ContentStore
from kcachefs.errors import ObjectMissing, StoreBusy, StoreClosed
from tests.waiting import PATIENCE, until_async


def run_asyncio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(main())


run_loop = pytest.mark.parametrize("run", [run_asyncio, trio.run], ids=["asyncio", "trio"])


@run_loop
def test_every_method_does_what_the_plain_store_does(tmp_path: Path, run: Any) -> None:
    content = b"a kernel " * 1000

    async def main() -> None:
        async with AsyncContentStore(tmp_path / "store") as store:
            digest = await store.put(content)
            assert await store.put(io.BytesIO(content)) == digest
            assert await store.get(digest.hex()) == content
            assert await store.read(digest, 2, 6) == b"kernel"
            assert await store.exists(digest)
            assert await store.verify(digest)
            other = await store.put(b"other")
            assert [found async for found in store.digests()] == sorted([digest, other])
            assert (await store.statistics()).objects == 2
            assert await store.delete(other)
            assert not await store.delete(other)
            with pytest.raises(ObjectMissing):
                await store.get(other)
            await store.sync()
            assert await store.compact() >= 0

    run(main)
    with ContentStore(tmp_path / "store") as store:
        assert [store.get(digest) for digest in store.digests()] == [content]


@run_loop
def test_tasks_share_a_store(tmp_path: Path, run: Any) -> None:
    contents = [bytes([number]) * 5000 for number in range(20)]
    digests: list[bytes] = []

    async def main() -> None:
        async with AsyncContentStore(tmp_path / "store") as store:

            async def put(content: bytes) -> None:
                digest = await store.put(content)
                assert await store.get(digest) == content
                digests.append(digest)

            if run is trio.run:
                async with trio.open_nursery() as nursery:
                    for content in contents:
                        nursery.start_soon(put, content)
            else:
                await asyncio.gather(*map(put, contents))

    run(main)
    assert len(set(digests)) == 20


def test_the_loop_goes_on_while_the_disk_is_read(tmp_path: Path) -> None:
    """A file that has nothing to give yet holds up the put, and nothing else."""
    go_on = threading.Event()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            go_on.wait()
            return super().read(size)

    async def main() -> bytes:
        async with AsyncContentStore(tmp_path / "store") as store:
            waiting = asyncio.create_task(store.put(Slow(b"late")))
            assert not await store.exists(bytes(32))
            assert not waiting.done()
            go_on.set()
            return await store.get(await waiting)

    assert asyncio.run(main()) == b"late"


@run_loop
def test_a_store_that_is_not_open_says_so(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        store = AsyncContentStore(tmp_path / "store")
        with pytest.raises(StoreClosed, match="async with"):
            await store.put(b"")
        async with store:
            with pytest.raises(StoreBusy):
                ContentStore(tmp_path / "store")
        await store.close()
        with pytest.raises(StoreClosed):
            await store.get(bytes(32))

    run(main)


class Slow(io.BytesIO):
    """A stream that has nothing to give until it may go on."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.is_read, self.may_go = threading.Event(), threading.Event()

    def read(self, size: int | None = -1) -> bytes:
        self.is_read.set()
        assert self.may_go.wait(PATIENCE)
        return super().read(size)


async def for_ever() -> None:
    """Go on until this task is cancelled."""
    if trio.lowlevel.in_trio_task():
        await trio.sleep_forever()
    else:
        await asyncio.Event().wait()


async def cancelled(work: Callable[[], Coroutine[Any, Any, Any]], when: Callable[[], bool]) -> None:
    """Start a task, cancel it once it is time, and return when it has ended."""
    if trio.lowlevel.in_trio_task():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await until_async(when, pause=0.001)
            nursery.cancel_scope.cancel()
        return
    task = asyncio.create_task(work())
    await until_async(when, pause=0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@run_loop
def test_a_cancelled_put_is_not_waited_for_and_stored_when_the_block_is_left(tmp_path: Path, run: Any) -> None:
    slow = Slow(b"late")
    order: list[str] = []

    async def main() -> None:
        async with AsyncContentStore(tmp_path / "store") as store:

            async def put() -> None:
                await store.put(slow)

            await cancelled(put, slow.is_read.is_set)
            order.append("cancelled")
            threading.Timer(0.05, slow.may_go.set).start()
        order.append("left")
        assert slow.may_go.is_set()

    run(main)
    assert order == ["cancelled", "left"]
    with ContentStore(tmp_path / "store") as store:
        assert [store.get(digest) for digest in store.digests()] == [b"late"]


@run_loop
def test_a_task_that_is_cancelled_while_it_opens_a_store_leaves_it_to_others(tmp_path: Path, run: Any) -> None:
    async def main() -> None:
        async def use() -> None:
            async with AsyncContentStore(tmp_path / "store"):
                await for_ever()

        for name in ("lock", "kcachefs.json", "spool.arena"):  # later and later
            await cancelled(use, (tmp_path / "store" / name).exists)
            ContentStore(tmp_path / "store").close()
            shutil.rmtree(tmp_path / "store")

    run(main)


@run_loop
def test_a_cancelled_task_closes_the_store_before_it_ends(tmp_path: Path, run: Any) -> None:
    is_open = threading.Event()

    async def main() -> None:
        async def use() -> None:
            async with AsyncContentStore(tmp_path / "store") as store:
                await store.put(b"a kernel")
                is_open.set()
                await for_ever()

        await cancelled(use, is_open.is_set)
        with ContentStore(tmp_path / "store") as store:
            assert len(list(store.digests())) == 1

    run(main)
