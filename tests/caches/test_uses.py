"""What is used in memory stays young on the disk; what other handles change is noticed."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcachefs import Cache, cached
from kcachefs.caches import ObjectCache, memory
from tests.caches.processes import Worker, start

__all__ = ["start"]

Start = Callable[..., Worker]
BLOCKS = 10


def fill(cache: Cache, *names: object) -> None:
    for name in names:
        cache[str(name)] = bytes(3000)


def test_what_is_hot_in_memory_is_not_the_first_to_go(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=BLOCKS * 4096)
    fill(cache, "hot", *range(BLOCKS - 1))
    for _ in range(1000):
        assert cache["hot"]
    fill(cache, "one more")
    on_disk = Cache(tmp_path)
    assert "hot" in on_disk
    assert "0" not in on_disk


def test_a_process_evicts_in_the_exact_order_of_its_own_uses(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=BLOCKS * 4096)
    fill(cache, *range(BLOCKS))
    for name in (0, 1, 2, 0, 1, 0):
        assert cache[str(name)]
    fill(cache, "one more")
    assert sorted(Cache(tmp_path)) == sorted(map(str, (0, 1, 2, 5, 6, 7, 8, 9, "one more")))
    for name in (6, 5, 6):
        assert cache[str(name)]
    fill(cache, "another", "and another")
    assert {"5", "6"} <= set(Cache(tmp_path))


def test_entries_of_the_future_age_from_now_on(tmp_path: Path) -> None:
    """The clock was ahead when they were used, and was set back since: they must not outlive all others."""
    cache = Cache(tmp_path, max_bytes=BLOCKS * 4096)
    fill(cache, *range(BLOCKS))
    cache.close()
    for place, name in enumerate(sorted(tmp_path.glob("entries/*/*/*"), key=lambda path: path.stat().st_mtime_ns)):
        os.utime(name, (2**33 + place, 2**33 + place))
    cache = Cache(tmp_path, max_bytes=BLOCKS * 4096)
    assert cache["0"]
    fill(cache, *range(100, 106))
    assert sorted(Cache(tmp_path)) == sorted(map(str, (0, 7, 8, 9, *range(100, 106))))


def test_uses_without_memory_count_too(tmp_path: Path) -> None:
    cache = Cache(tmp_path, memory_entries=0, max_bytes=BLOCKS * 4096)
    fill(cache, *range(BLOCKS))
    for _ in range(3):
        assert cache["0"]
    fill(cache, "one more")
    assert "0" in cache
    assert "1" not in cache


def test_objects_in_memory_are_uses_of_their_bytes(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=BLOCKS * 4096)
    objects = ObjectCache(cache, encode=bytes, decode=bytes)
    objects.put("hot", bytes(3000))
    fill(cache, *range(BLOCKS - 1))
    for _ in range(1000):
        assert objects.get("hot")
    fill(cache, "one more")
    assert "hot" in Cache(tmp_path)


def test_uses_in_memory_are_written_down_once_and_then_not_for_a_minute(tmp_path: Path) -> None:
    """Another process that evicts sees them; a million hits must not be a million system calls."""
    cache = Cache(tmp_path)
    cache["hot"] = b"value"
    (path,) = tmp_path.glob("entries/*/*/*")
    os.utime(path, ns=(1, 1))
    assert cache["hot"]
    assert path.stat().st_mtime_ns > 1
    os.utime(path, ns=(1, 1))
    for _ in range(1000):
        assert cache["hot"]
    assert path.stat().st_mtime_ns == 1


def test_after_a_minute_a_use_is_written_down_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STALE_SECONDS", 0)
    cache = Cache(tmp_path)
    cache["hot"] = b"value"
    (path,) = tmp_path.glob("entries/*/*/*")
    for _ in range(3):
        os.utime(path, ns=(1, 1))
        assert cache["hot"]
        assert path.stat().st_mtime_ns > 1


@pytest.mark.parametrize("through", ["delete", "clear", "put", "remove_where"])
def test_handles_of_one_process_see_each_others_changes_at_once(tmp_path: Path, through: str) -> None:
    one, two = Cache(tmp_path), Cache(tmp_path)
    one.put("key", b"old", {"kind": "x"})
    assert two["key"] == b"old"
    change: dict[str, Callable[[], Any]] = {
        "delete": lambda: one.delete("key"),
        "clear": one.clear,
        "put": lambda: one.put("key", b"new"),
        "remove_where": lambda: one.remove_where(lambda meta: meta["kind"] == "x"),
    }
    change[through]()
    assert two.get("key") == (b"new" if through == "put" else None)
    assert ("key" in two) == (through == "put")


@pytest.mark.parametrize("through", ["delete", "put"])
def test_objects_follow_the_cache_behind_them(tmp_path: Path, through: str) -> None:
    objects = ObjectCache(Cache(tmp_path), encode=str.encode, decode=bytes.decode)
    objects.put("key", "old")
    assert objects.get("key") == "old"
    other = Cache(tmp_path)
    other.delete("key") if through == "delete" else other.put("key", b"new")
    assert objects.get("key") == (None if through == "delete" else "new")


@pytest.mark.parametrize("through", ["delete", "put"])
def test_another_process_is_believed_for_a_minute_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start, through: str
) -> None:
    cache = Cache(tmp_path)
    objects = ObjectCache(cache, encode=bytes, decode=bytes)
    cache["key"] = b"old"
    assert (cache["key"], objects.get("key")) == (b"old", b"old")
    assert (cache["key"], objects.get("key")) == (b"old", b"old")  # noted on the disk now, and believed from now on
    assert start("change", tmp_path, "key", through).hear() == "done"
    assert (cache["key"], objects.get("key")) == (b"old", b"old")
    assert Cache(tmp_path).get("key") == (None if through == "delete" else b"new")
    beyond = time.monotonic_ns() + memory.STALE_SECONDS * 1_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: beyond)
    expected = None if through == "delete" else b"new"
    assert (cache.get("key"), objects.get("key")) == (expected, expected)


def test_what_the_disk_refused_is_never_doubted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STALE_SECONDS", 0)
    (tmp_path / "entries").write_text("in the way")
    cache = Cache(tmp_path)
    assert not cache.put("key", b"value")
    assert [cache.get("key") for _ in range(3)] == [b"value"] * 3


def test_folders_whose_caches_are_gone_are_forgotten(tmp_path: Path) -> None:
    for number in range(20):
        Cache(tmp_path / str(number)).close()
    gc.collect()
    last = Cache(tmp_path / "last")
    assert [folder for folder in memory._before if folder.startswith(f"{tmp_path}/")] == [str(tmp_path / "last")]
    other = Cache(tmp_path / "last")
    last["key"], other["key"] = b"old", b"new"
    assert last["key"] == b"new", "those that are left hear of each other"


def test_a_decorated_function_forgets_what_another_handle_deleted(tmp_path: Path) -> None:
    ran = []

    @cached(cache=Cache(tmp_path), encode=str.encode, decode=bytes.decode, ignore=["ran"])
    def make(name: str) -> str:
        ran.append(name)
        return name

    assert [make("a"), make("a")] == ["a", "a"]
    assert Cache(tmp_path).delete(make.cache_key("a"))
    assert make("a") == "a"
    assert len(ran) == 2
