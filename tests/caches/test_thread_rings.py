"""Computations that go on in threads: none waits for itself, and none is done twice for nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path

import pytest

from kcachefs import Cache
from kcachefs.caches import single_flight
from kcachefs.caches.waiting_threads import awaited_threads
from kcachefs.errors import CacheRecursion
from tests.waiting import PATIENCE, until

Ask = Callable[[], bytes]


def by_result(ask: Ask) -> bytes:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()


def by_map(ask: Ask) -> bytes:
    with ThreadPoolExecutor(2) as pool:
        return next(iter(pool.map(lambda _: ask(), range(1))))


def by_as_completed(ask: Ask) -> bytes:
    with ThreadPoolExecutor(1) as pool:
        return next(as_completed([pool.submit(ask)])).result()


def by_wait(ask: Ask) -> bytes:
    with ThreadPoolExecutor(1) as pool:
        done, _ = wait([pool.submit(ask)])
        return done.pop().result()


def by_a_pool_in_a_pool(ask: Ask) -> bytes:
    return by_result(lambda: by_result(ask))


def by_join(ask: Ask) -> bytes:
    answers: list[bytes | CacheRecursion] = []

    def run() -> None:
        try:
            answers.append(ask())
        except CacheRecursion as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(answers[0], CacheRecursion):
        raise answers[0]
    return answers[0]


ways = pytest.mark.parametrize("way", [by_result, by_map, by_as_completed, by_wait, by_a_pool_in_a_pool, by_join])


@ways
def test_a_thread_that_asks_for_what_its_starter_computes_is_told(tmp_path: Path, way: Callable[[Ask], bytes]) -> None:
    cache = Cache(tmp_path)

    def compute() -> bytes:
        return way(lambda: cache.get_or_compute("key", compute))

    with pytest.raises(CacheRecursion, match="asks the cache for that same key"):
        cache.get_or_compute("key", compute)
    assert cache.get_or_compute("key", lambda: b"another way") == b"another way"


@ways
def test_computations_that_need_each_other_through_threads_end(tmp_path: Path, way: Callable[[Ask], bytes]) -> None:
    cache = Cache(tmp_path)
    both = threading.Barrier(2)
    results = {}

    def ask(key: str, other: str) -> None:
        def compute() -> bytes:
            both.wait(PATIENCE)
            return key.encode() + way(lambda: cache.get_or_compute(other, other.encode))

        results[key] = cache.get_or_compute(key, compute)

    threads = [threading.Thread(target=ask, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    # Each has its own key, and whatever the other's was worth by then.
    assert {key: value[:2] for key, value in results.items()} == {"a": b"ab", "b": b"ba"}


def test_who_waits_for_a_long_computation_in_a_pool_does_not_compute_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in threads of that pool, and in those that were started meanwhile."""
    looks: list[int] = []

    def look() -> dict[int, set[int]]:
        looks.append(threading.get_ident())
        return awaited_threads()

    monkeypatch.setattr(single_flight, "awaited_threads", look)
    monkeypatch.setattr(single_flight, "_LOOK_SECONDS", (0.001, 0.001))
    cache = Cache(tmp_path)
    go_on, computed = threading.Event(), []

    def build() -> bytes:
        computed.append(1)
        assert go_on.wait(PATIENCE)
        return b"built"

    with ThreadPoolExecutor(4) as pool, ThreadPoolExecutor(4) as others:
        first = others.submit(cache.get_or_compute, "key", lambda: pool.submit(build).result())
        until(lambda: computed)
        answers = [one.submit(cache.get_or_compute, "key", build) for one in (pool, others)]
        until(lambda: len(set(looks)) == 2 and len(looks) > 20)
        go_on.set()
        assert [one.result() for one in (first, *answers)] == [b"built"] * 3
    assert computed == [1]


def test_a_call_that_blocks_the_loop_of_the_task_that_computes_ends(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    async def compute() -> bytes:
        await asyncio.sleep(0)
        return b"by the task"

    async def block() -> bytes:
        return cache.get_or_compute("key", lambda: b"by the call")

    async def main() -> tuple[bytes, bytes]:
        by_task, by_call = await asyncio.gather(cache.get_or_compute_async("key", compute), block())
        return by_task, by_call

    assert asyncio.run(main()) == (b"by the task", b"by the call")


def test_futures_that_a_generator_still_gives_are_left_alone() -> None:
    begins, may_end = threading.Event(), threading.Event()

    def futures() -> Iterator[Future[None]]:
        begins.set()
        assert may_end.wait(PATIENCE)
        yield from ()

    thread = threading.Thread(target=wait, args=(futures(),))
    thread.start()
    try:
        assert begins.wait(PATIENCE)
        assert awaited_threads().get(thread.ident or 0, set()) == set()
    finally:
        may_end.set()
        thread.join()
