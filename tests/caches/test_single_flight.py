"""One computation for all who ask: across caches, tasks and processes, and never a ring of waiting computations."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trio

from kcachefs import Cache, Entry, ObjectCache, cached
from kcachefs.errors import CacheRecursion
from tests.caches.processes import Worker, start
from tests.waiting import until, until_async

__all__ = ["start"]

Start = Callable[..., Worker]


def run_asyncio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(main())


run_loop = pytest.mark.parametrize("run", [run_asyncio, trio.run], ids=["asyncio", "trio"])


async def together(*tasks: Callable[[], Coroutine[Any, Any, Any]]) -> list[Any]:
    """The results of several tasks at once, in whichever library runs."""
    results: list[Any] = [None] * len(tasks)

    async def one(at: int) -> None:
        results[at] = await tasks[at]()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        async with trio.open_nursery() as nursery:
            for at in range(len(tasks)):
                nursery.start_soon(one, at)
    else:
        async with asyncio.TaskGroup() as group:
            for at in range(len(tasks)):
                group.create_task(one(at))
    return results


async def yield_often() -> None:
    for _ in range(10):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            await trio.lowlevel.checkpoint()
        else:
            await asyncio.sleep(0)


def test_computations_of_two_caches_that_need_each_other_end(tmp_path: Path) -> None:
    caches = {"a": Cache(tmp_path / "a"), "b": Cache(tmp_path / "b")}
    both = threading.Barrier(2)
    results = {}

    def ask(key: str, other: str) -> None:
        def compute() -> bytes:
            both.wait()
            return key.encode() + caches[other].get_or_compute(other, lambda: other.encode())

        results[key] = caches[key].get_or_compute(key, compute)

    threads = [threading.Thread(target=ask, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) == {"a", "b"}
    assert all(value.startswith(key.encode()) for key, value in results.items())


def test_two_processes_whose_threads_need_each_others_keys_end(tmp_path: Path, start: Start) -> None:
    """In each process one thread computes a key and needs the other's, and another thread waits for that one."""
    workers = [start("cross", tmp_path, *keys) for keys in (("a", "b"), ("b", "a"))]
    for worker in workers:
        assert worker.hear() == "computing"
    for worker in workers:
        worker.go()
    for worker in workers:
        assert worker.hear() == "waiting for the other process"
    for worker in workers:
        worker.go()
    # Each has its own key, and whatever the other's was worth by then.
    assert [worker.hear()[:2] for worker in workers] == ["ab", "ba"]


@pytest.mark.parametrize("how", ["thread", "task"])
def test_processes_whose_pools_need_each_others_keys_both_end(tmp_path: Path, start: Start, how: str) -> None:
    workers = [start("cross_pools", tmp_path, *keys, how) for keys in (("a", "b"), ("b", "a"))]
    assert [worker.hear() for worker in workers] == ["computing"] * 2
    for worker in workers:
        worker.go()
    # Each has its own key, and whatever the other's was worth by then.
    assert [worker.hear()[:2] for worker in workers] == ["ab", "ba"]


@run_loop
def test_tasks_compute_a_key_once(tmp_path: Path, run: Any) -> None:
    cache = Cache(tmp_path)
    computed = []

    async def compute() -> bytes:
        computed.append(1)
        await yield_often()
        return b"made"

    async def main() -> list[Any]:
        return await together(*[lambda: cache.get_or_compute_async("key", compute)] * 5)

    assert run(main) == [b"made"] * 5
    assert computed == [1]
    assert run(main) == [b"made"] * 5
    assert computed == [1]


@run_loop
def test_a_coroutine_function_is_run_once_for_each_set_of_arguments(tmp_path: Path, run: Any) -> None:
    ran = []

    @cached(cache=Cache(tmp_path), encode=str.encode, decode=bytes.decode, ignore=["ran"])
    async def compile(source: str, *, arch: str = "sm_90") -> str:
        ran.append(source)
        await yield_often()
        return f"{source} {arch}"

    async def main() -> list[Any]:
        return await together(lambda: compile("a"), lambda: compile(source="a"), lambda: compile("b"))

    assert run(main) == ["a sm_90", "a sm_90", "b sm_90"]
    assert sorted(ran) == ["a", "b"]
    assert (compile.cache_info().hits, compile.cache_info().misses) == (1, 2)


@run_loop
def test_coroutine_functions_compose(tmp_path: Path, run: Any) -> None:
    cache = Cache(tmp_path)

    @cached(cache=cache)
    async def inner(name: str) -> bytes:
        await yield_often()
        return name.encode()

    @cached(cache=cache)
    async def outer(name: str) -> bytes:
        return b"<" + b"".join(await together(lambda: inner(name), lambda: inner("b"))) + b">"

    class Compiler:
        @cached(cache=cache)
        async def compile(self, name: str) -> bytes:
            return await outer(name)

    async def main() -> list[Any]:
        return await together(lambda: outer("a"), lambda: outer("b"), lambda: Compiler().compile("c"))

    assert run(main) == [b"<ab>", b"<bb>", b"<cb>"]


@run_loop
def test_the_error_of_a_task_reaches_all_who_waited_and_nothing_is_kept(run: Any) -> None:
    cache = Cache(disk=False)

    async def compute() -> bytes:
        await yield_often()
        raise ValueError("no such kernel")

    async def ask() -> str:
        with pytest.raises(ValueError) as caught:
            await cache.get_or_compute_async("key", compute)
        return str(caught.value)

    async def main() -> list[Any]:
        return await together(ask, ask, ask)

    assert run(main) == ["no such kernel"] * 3
    assert len(cache) == 0


def test_each_who_waited_has_the_traceback_of_the_computation_and_its_own(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    told: list[list[str]] = []

    async def fails() -> bytes:
        await yield_often()
        raise ValueError("no")

    async def ask() -> None:
        try:
            await cache.get_or_compute_async("key", fails)
        except ValueError as error:
            told.append([frame.name for frame in traceback.extract_tb(error.__traceback__)])

    asyncio.run(together(*[ask] * 20))
    assert len(told) == 20
    assert {frames[-1] for frames in told} == {"fails"}
    assert {frames.count("ask") for frames in told} == {1}
    assert told[1:] == [told[1]] * 19


def test_a_cancelled_task_leaves_the_work_to_one_that_waits() -> None:
    cache = Cache(disk=False)

    async def main() -> bytes:
        begun = asyncio.Event()

        async def never() -> bytes:
            begun.set()
            await asyncio.Event().wait()
            return b""

        async def made() -> bytes:
            return b"made"

        first = asyncio.create_task(cache.get_or_compute_async("key", never))
        await begun.wait()
        second = asyncio.create_task(cache.get_or_compute_async("key", made))
        await until_async(lambda: cache.stats().waiting)
        first.cancel()
        return await second

    assert asyncio.run(main()) == b"made"


def test_a_task_waits_for_a_thread_and_a_thread_for_a_task(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    go_on = threading.Event()

    def slow() -> bytes:
        go_on.wait()
        return b"by a thread"

    async def never() -> bytes:
        raise AssertionError("computed twice")

    async def main() -> tuple[bytes, bytes]:
        loop = asyncio.get_running_loop()
        thread = loop.run_in_executor(None, cache.get_or_compute, "one", slow)
        await until_async(lambda: cache._levels.single_flight._under_way)
        task = asyncio.create_task(cache.get_or_compute_async("one", never))
        await until_async(lambda: cache.stats().waiting)
        go_on.set()
        await thread
        released = asyncio.Event()

        async def by_a_task() -> bytes:
            await released.wait()
            return b"by a task"

        two = asyncio.create_task(cache.get_or_compute_async("two", by_a_task))
        await asyncio.sleep(0)
        waiting = loop.run_in_executor(None, cache.get_or_compute, "two", slow)
        await until_async(lambda: cache.stats().waiting)
        released.set()
        assert await two == await waiting
        return await task, await waiting

    assert asyncio.run(main()) == (b"by a thread", b"by a task")


def test_a_task_waits_for_another_process_without_blocking_its_loop(tmp_path: Path, start: Start) -> None:
    holder = start("compute", tmp_path / "cache", "key", tmp_path / "log")
    assert holder.hear() == "ready"
    holder.go()
    assert holder.hear() == "computing"
    cache = Cache(tmp_path / "cache")

    async def never() -> bytes:
        raise AssertionError("computed twice")

    async def main() -> bytes:
        waiting = asyncio.create_task(cache.get_or_compute_async("key", never))
        flights = cache._levels.single_flight._under_way
        await until_async(lambda: any(flight.awaits_process for flight in flights.values()))
        holder.go()
        return await waiting

    assert asyncio.run(main()) == b"made"
    assert holder.hear() == "made"


@run_loop
def test_a_task_that_asks_for_what_it_computes_is_told(run: Any) -> None:
    cache = Cache(disk=False)

    async def compute() -> bytes:
        return (await together(lambda: cache.get_or_compute_async("key", compute)))[0]  # type: ignore[no-any-return]

    async def main() -> None:
        with pytest.raises(BaseException) as caught:
            await cache.get_or_compute_async("key", compute)
        error: BaseException = caught.value
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        assert isinstance(error, CacheRecursion)

    run(main)


@run_loop
def test_tasks_make_an_object_once(tmp_path: Path, run: Any) -> None:
    objects = ObjectCache(Cache(tmp_path), encode=bytes, decode=bytearray)
    made = []

    async def make() -> bytearray:
        made.append(1)
        await yield_often()
        return bytearray(b"made")

    async def main() -> list[Any]:
        return await together(*[lambda: objects.get_or_make_async("key", make)] * 3)

    results = run(main)
    assert len(set(map(id, results))) == 1
    assert made == [1]


def test_metadata_of_a_task_is_kept(tmp_path: Path) -> None:
    async def compute() -> Entry:
        return Entry(b"made", {"arch": "sm_90"})

    cache = Cache(tmp_path)
    assert asyncio.run(cache.get_or_compute_async("key", compute)) == b"made"
    found = Cache(tmp_path).entry("key")
    assert found is not None
    assert found.meta == {"arch": "sm_90"}


def test_threads_of_one_process_wait_while_another_process_computes(tmp_path: Path, start: Start) -> None:
    holder = start("compute", tmp_path / "cache", "key", tmp_path / "log")
    assert holder.hear() == "ready"
    holder.go()
    assert holder.hear() == "computing"
    cache = Cache(tmp_path / "cache")
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.get_or_compute("key", lambda: b"mine"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    until(lambda: cache.stats().waiting == 2, "two threads wait for the third, which waits for the process")
    holder.go()
    for thread in threads:
        thread.join()
    assert found == [b"made"] * 3
