"""What a cache promises in one process: contents, bounds, the mapping, single flight among threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcachefs import Cache, Entry
from kcachefs.caches.memory import Policy
from kcachefs.errors import CacheClosed, CacheError, CacheRecursion, UsageError
from tests.waiting import until

KEYS: list[Any] = ["plain", "ü/..\0\n", "", b"", b"\xff\x00", "x" * 10_000, "\ud800"]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.mark.parametrize("key", KEYS, ids=lambda key: repr(key)[:12])
@pytest.mark.parametrize("value", [b"", b"value", bytes(range(256)) * 1000], ids=len)
def test_what_is_put_is_found_here_and_in_the_next_process(cache: Cache, key: Any, value: bytes) -> None:
    assert cache.put(key, value, {"arch": "sm_90", "n": 3, "list": [1, None, 2.5], "raw": b"\0"})
    for found in (cache.entry(key), Cache(cache.path).entry(key)):
        assert found is not None
        assert (found.value, found.meta["raw"], found.meta["list"]) == (value, b"\0", [1, None, 2.5])
    assert list(Cache(cache.path)) == [key]


@pytest.mark.slow
def test_values_of_a_hundred_megabytes(cache: Cache) -> None:
    value = bytes(range(250)) * 400_000
    assert cache.put("large", value)
    assert Cache(cache.path)["large"] == value
    assert cache.stats().memory_entries == 1
    assert Cache(cache.path, memory_bytes=1 << 20).get("large") == value


def test_text_and_its_bytes_name_the_same_entry(cache: Cache) -> None:
    cache["ü"] = b"1"
    assert cache["ü".encode()] == b"1"
    assert cache.delete("ü".encode())
    assert "ü" not in cache


def test_it_is_a_mapping(cache: Cache) -> None:
    cache.update({"a": b"1", "b": b"2"})
    assert sorted(cache) == ["a", "b"]
    assert dict(cache) == {"a": b"1", "b": b"2"}
    assert len(cache) == 2
    assert "a" in cache
    assert "c" not in cache
    assert cache.pop("a") == b"1"
    assert cache.setdefault("b", b"3") == b"2"
    assert cache.get("a", b"default") == b"default"
    with pytest.raises(KeyError):
        cache["a"]
    with pytest.raises(KeyError):
        del cache["a"]
    assert cache == cache
    assert cache != Cache(cache.path)


def test_without_a_disk_it_is_memory_alone() -> None:
    cache = Cache(disk=False)
    cache["a"] = b"1"
    cache[b"b"] = b"2"
    assert cache.path is None
    assert list(cache) == ["a", b"b"]
    assert len(cache) == 2
    assert Cache(disk=False).get("a") is None


def test_clear_is_for_everyone(cache: Cache) -> None:
    cache["a"] = b"1"
    Cache(cache.path).clear()
    assert Cache(cache.path).get("a") is None
    assert len(Cache(cache.path)) == 0


def test_a_closed_cache_says_so(cache: Cache) -> None:
    with cache:
        cache["a"] = b"1"
    attempts: list[Callable[[], object]] = [
        lambda: cache.get("a"),
        lambda: cache.put("a", b""),
        lambda: len(cache),
        cache.clear,
        lambda: cache.get_or_compute("a", lambda: b""),
    ]
    for attempt in attempts:
        with pytest.raises(CacheClosed):
            attempt()
    assert Cache(cache.path)["a"] == b"1"


@pytest.mark.parametrize("key", [1, None, ("a",), 1.5])
def test_other_keys_are_refused(cache: Cache, key: Any) -> None:
    with pytest.raises(TypeError, match="text or bytes"):
        cache.get(key)


@pytest.mark.parametrize("value", [None, "text", 1, {"a": 1}])
def test_other_values_are_refused_and_never_pickled(cache: Cache, value: Any) -> None:
    with pytest.raises(TypeError, match="bytes"):
        cache.put("a", value)
    assert "a" not in cache


def test_metadata_is_small(cache: Cache) -> None:
    with pytest.raises(UsageError, match="put it into the value"):
        cache.put("a", b"", {"long": "x" * 70_000})
    assert cache.get("a") is None


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        ({1: 2}, "key 1; its keys are text"),
        ({b"a": 2}, "its keys are text"),
        ({"a": "\udc80"}, "plain data"),
        ({"\udc80": 1}, "plain data"),
        ({"a": 2**70}, "plain data"),
        ({"a": [object()]}, "plain data"),
    ],
)
def test_metadata_that_could_not_be_read_again_is_refused(cache: Cache, meta: Any, why: str) -> None:
    cache.put("a", b"old")
    with pytest.raises(UsageError, match=why) as refused:
        cache.put("a", b"new", meta)
    assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match=why):
        cache.get_or_compute("b", lambda: Entry(b"new", meta))
    assert (cache.get("a"), cache.get("b"), list(cache)) == (b"old", None, ["a"])


def test_a_value_put_as_a_buffer_is_copied(cache: Cache) -> None:
    buffer = bytearray(b"before")
    cache.put("a", memoryview(buffer))
    buffer[:] = b"after!"
    assert cache["a"] == b"before"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="not a directory"):
        Cache(tmp_path / "file")


@pytest.mark.parametrize(("policy", "kept"), [("lru", ["a", "c"]), ("fifo", ["b", "c"])])
def test_memory_is_bounded_by_entries(policy: Policy, kept: list[str]) -> None:
    cache = Cache(disk=False, memory_entries=2, policy=policy)
    cache["a"], cache["b"] = b"1", b"2"
    cache.get("a")
    cache["c"] = b"3"
    assert sorted(cache) == kept
    assert cache.stats().memory_evictions == 1


def test_memory_is_bounded_by_bytes() -> None:
    cache = Cache(disk=False, memory_bytes=100)
    for name in "abc":
        cache[name] = bytes(40)
    assert list(cache) == ["b", "c"]
    cache["d"] = bytes(200)
    assert list(cache) == ["b", "c"]
    assert cache.stats().memory_bytes == 82


def test_what_memory_drops_is_still_on_disk(tmp_path: Path) -> None:
    cache = Cache(tmp_path, memory_entries=1)
    cache["a"], cache["b"] = b"1", b"2"
    assert (cache["a"], cache["b"]) == (b"1", b"2")
    stats = cache.stats()
    assert (stats.memory_hits, stats.disk_hits, stats.hits, stats.puts) == (0, 2, 2, 2)


def test_the_disk_is_bounded_and_drops_the_least_recently_used(tmp_path: Path) -> None:
    cache = Cache(tmp_path, memory_entries=0, max_bytes=10 * 8192)
    for number in range(10):
        cache[str(number)] = bytes(8000)
    assert cache["0"]
    cache["10"] = bytes(8000)
    assert sorted(cache, key=lambda key: int(key)) == ["0", "3", "4", "5", "6", "7", "8", "9", "10"]
    assert cache.stats().disk_evictions == 2


def test_the_bound_holds_against_what_others_write(tmp_path: Path) -> None:
    caches = [Cache(tmp_path, memory_entries=0, max_bytes=100 * 4096) for _ in range(4)]
    for number in range(400):
        caches[number % 4][str(number)] = bytes(3000)
    assert len(caches[0]) * 4096 <= 100 * 4096 * 1.25
    assert "399" in caches[0]


@pytest.mark.parametrize("bounds", [{"max_bytes": 0}, {"memory_entries": -1}, {"policy": "random"}])
def test_senseless_bounds_are_refused(tmp_path: Path, bounds: dict[str, Any]) -> None:
    with pytest.raises((UsageError, CacheError)):
        Cache(tmp_path, **bounds)


def test_threads_compute_a_key_once(cache: Cache) -> None:
    computed: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def compute() -> bytes:
        computed.append(1)
        begun.set()
        go_on.wait()
        return b"made"

    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(cache.get_or_compute("key", compute))) for _ in range(8)]
    for thread in threads:
        thread.start()
    begun.wait()
    until(lambda: cache.stats().waiting == 7, "seven threads wait")
    go_on.set()
    for thread in threads:
        thread.join()
    assert (computed, results) == ([1], [b"made"] * 8)
    assert (cache.stats().computed, cache.stats().waited) == (1, 7)


def test_those_who_waited_get_the_error_too_and_nothing_is_kept(cache: Cache) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def compute() -> bytes:
        begun.set()
        go_on.wait()
        raise ValueError("no such kernel")

    errors: list[str] = []

    def ask() -> None:
        with pytest.raises(ValueError) as caught:
            cache.get_or_compute("key", compute)
        errors.append(str(caught.value))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait()
    until(lambda: cache.stats().waiting == 2, "two threads wait")
    go_on.set()
    for thread in threads:
        thread.join()
    assert errors == ["no such kernel"] * 3
    assert cache.get_or_compute("key", lambda: Entry(b"made", {"n": 1})) == b"made"
    assert cache.entry("key") == Entry(b"made", {"n": 1}, True)


def test_an_interrupted_thread_leaves_the_work_to_one_that_waits(cache: Cache) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def interrupted() -> bytes:
        begun.set()
        go_on.wait()
        raise SystemExit

    results: list[bytes] = []

    def ask() -> None:
        with contextlib.suppress(SystemExit):
            cache.get_or_compute("key", interrupted)

    first = threading.Thread(target=ask)
    second = threading.Thread(target=lambda: results.append(cache.get_or_compute("key", lambda: b"made")))
    first.start()
    begun.wait()
    second.start()
    until(lambda: cache.stats().waiting == 1, "the second waits")
    go_on.set()
    first.join()
    second.join()
    assert results == [b"made"]


def test_a_computation_may_ask_for_other_keys(cache: Cache) -> None:
    made = cache.get_or_compute("outer", lambda: b"<" + cache.get_or_compute("inner", lambda: b"x") + b">")
    assert made == b"<x>"
    assert cache["inner"] == b"x"


def test_a_computation_that_asks_for_itself_is_told(cache: Cache) -> None:
    with pytest.raises(CacheRecursion):
        cache.get_or_compute("key", lambda: cache.get_or_compute("key", lambda: b""))


def test_computations_that_need_each_other_end(cache: Cache) -> None:
    both = threading.Barrier(2)
    results = {}

    def ask(key: str, other: str) -> None:
        def compute() -> bytes:
            both.wait()
            return key.encode() + cache.get_or_compute(other, lambda: other.encode())

        results[key] = cache.get_or_compute(key, compute)

    threads = [threading.Thread(target=ask, args=pair) for pair in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) == {"a", "b"}
    assert all(value.startswith(key.encode()) for key, value in results.items())
