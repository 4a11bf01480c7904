"""What cannot be kept is said; bounds that keep nothing are refused; odd things in an entry's place do no harm."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import Any

import numpy
import pytest

from kcachefs import Cache
from kcachefs.caches import ObjectCache
from kcachefs.errors import UsageError


@pytest.mark.parametrize("limit", [0, -1])
def test_a_bound_is_positive(tmp_path: Path, limit: int) -> None:
    with pytest.raises(UsageError, match=f"max_bytes is {limit}; it must be positive"):
        Cache(tmp_path, max_bytes=limit)


@pytest.mark.parametrize("limit", [1, 100, 4095])
def test_a_bound_that_nothing_fits_into_is_refused(tmp_path: Path, limit: int) -> None:
    with pytest.raises(UsageError, match=f"max_bytes is {limit}.*at least 4096"):
        Cache(tmp_path, max_bytes=limit)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("100", r"^KCACHEFS_CACHE_SIZE is 100, but .*at least 4096"),
        ("abc", r"^KCACHEFS_CACHE_SIZE: 'abc' is not a size; write it like 20GiB"),
        ("nan", r"^KCACHEFS_CACHE_SIZE: 'nan' is not a size"),
        ("-1", r"^KCACHEFS_CACHE_SIZE: '-1' is not a size"),
    ],
)
def test_so_is_one_of_the_environment_which_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, message: str
) -> None:
    monkeypatch.setenv("KCACHEFS_CACHE_SIZE", size)
    with pytest.raises(UsageError, match=message):
        Cache(tmp_path)
    assert Cache(tmp_path, max_bytes=8192).put("a", b"a")


@pytest.mark.parametrize("bound", ["max_bytes", "memory_entries", "memory_bytes"])
@pytest.mark.parametrize("given", [math.nan, math.inf, -math.inf, 4096.5, True, "1GiB", b"4096"])
def test_a_bound_is_a_whole_number(tmp_path: Path, bound: str, given: Any) -> None:
    for disk in (True, False):
        with pytest.raises(UsageError, match=f"^{bound} is {given!r}; give a whole number$"):
            Cache(tmp_path / "cache", disk=disk, **{bound: given})
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("bound", ["memory_entries", "memory_bytes"])
def test_so_is_that_of_an_object_cache(bound: str) -> None:
    how: dict[str, Any] = {"size_of": len, bound: math.nan}
    with pytest.raises(UsageError, match=f"^{bound} is nan; give a whole number$"):
        ObjectCache(**how)


def test_whole_numbers_of_numpy_are_bounds_too(tmp_path: Path) -> None:
    bounds: Any = {"max_bytes": numpy.int64(8192), "memory_entries": numpy.int32(1), "memory_bytes": numpy.int64(100)}
    cache = Cache(tmp_path, **bounds)
    for name in "abc":
        assert cache.put(name, b"x")
    assert list(Cache(tmp_path)) == ["c"]


@pytest.mark.parametrize(("how", "message"), [({"path": ""}, "path is empty"), ({"name": ""}, "name is empty")])
def test_a_cache_without_a_place_is_refused_and_writes_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KCACHEFS_CACHE_DIR", str(tmp_path))
    with pytest.raises(UsageError, match=f"^{message}; give the cache a "):
        Cache(**how)
    assert list(tmp_path.iterdir()) == []


def test_the_smallest_bound_keeps_the_newest_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=4096)
    for name in "abc":
        assert cache.put(name, b"x")
        assert list(Cache(tmp_path)) == [name]


def test_an_entry_as_large_as_the_bound_is_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=100 * 4096)
    assert cache.put("small", b"x")
    assert cache.put("large", bytes(99 * 4096 + 2000))
    assert list(Cache(tmp_path)) == ["large"]


def test_a_value_larger_than_the_bound_is_not_kept_and_replaces_the_old_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path, max_bytes=100 * 4096)
    assert cache.put("key", b"small")
    assert not cache.put("key", bytes(100 * 4096))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "409600 bytes is larger than the bound and is not kept" in caplog.text
    assert (cache.get("key"), Cache(tmp_path).get("key"), "key" in cache) == (None, None, False)
    assert cache.stats().refused == 1
    assert cache.get_or_compute("key", lambda: bytes(100 * 4096)) == bytes(100 * 4096)


@pytest.mark.parametrize("bounds", [{"memory_entries": 0}, {"memory_bytes": 10}], ids=str)
def test_memory_alone_that_keeps_nothing_says_so(bounds: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(disk=False, **bounds)
    assert not cache.put("key", b"larger than ten")
    assert "is not kept" in caplog.text
    assert cache.get("key") is None
    assert cache.stats().refused == 1


def test_memory_too_small_for_a_value_is_no_refusal_where_there_is_a_disk(tmp_path: Path) -> None:
    cache = Cache(tmp_path, memory_bytes=10)
    assert cache.put("key", b"larger than ten")
    assert cache.stats().refused == 0
    assert cache["key"] == b"larger than ten"


def test_membership_does_not_read_the_value(tmp_path: Path) -> None:
    Cache(tmp_path)["key"] = bytes(100_000)
    (path,) = tmp_path.glob("entries/*/*/*")
    path.write_bytes(b"damaged")
    cache = Cache(tmp_path)
    assert "key" in cache
    assert "other" not in cache
    assert (cache.stats().hits, cache.stats().misses, cache.stats().damaged) == (0, 0, 0)
    assert cache.get("key") is None
    assert "key" not in cache


def test_a_fifo_in_an_entrys_place_blocks_nobody(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["key"] = b"value"
    (path,) = tmp_path.glob("entries/*/*/*")
    path.unlink()
    os.mkfifo(path)
    with Cache(tmp_path, max_bytes=8192) as cache:
        assert "key" not in cache
        assert list(cache) == []
        assert cache.get("key") is None
        assert cache.stats().damaged == 1
        assert not path.exists()
        assert cache.get_or_compute("key", lambda: b"again") == b"again"
    assert Cache(tmp_path)["key"] == b"again"


def test_a_fifo_that_somebody_writes_to_is_a_miss(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["key"] = b"value"
    (path,) = tmp_path.glob("entries/*/*/*")
    path.unlink()
    os.mkfifo(path)
    held = os.open(path, os.O_RDWR)
    try:
        assert Cache(tmp_path).get("key") is None
    finally:
        os.close(held)


def test_a_head_that_claims_to_be_huge_is_not_believed(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache["key"] = bytes(100_000)
        (path,) = tmp_path.glob("entries/*/*/*")
        content = bytearray(path.read_bytes())
        content[40:44] = b"\xff\xff\xff\xff"  # the length of the key
        path.write_bytes(content)
    with Cache(tmp_path) as cache:
        assert list(cache) == []
        assert cache.get("key") is None
        assert cache.stats().damaged == 1


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"encode": bytes}, "both encode and decode"),
        ({"cache": Cache(disk=False)}, "give encode and decode"),
        ({"memory_bytes": 100}, "give size_of"),
        ({"policy": "random"}, "policy"),
    ],
)
def test_senseless_object_caches_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ObjectCache(**how)
