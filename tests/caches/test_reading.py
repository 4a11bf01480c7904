"""Large values are hashed when this process first reads their file, and again whenever the file has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcachefs import Cache
from kcachefs.caches import reading
from kcachefs.caches.record import Head

SIZES = [32 << 10, (32 << 10) + 1, 60 << 10, 1 << 20]


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the values that were hashed to verify them."""
    sizes: list[int] = []
    is_valid = Head.is_valid

    def counted(head: Head, value: bytes) -> bool:
        sizes.append(len(value))
        return is_valid(head, value)

    monkeypatch.setattr(Head, "is_valid", counted)
    return sizes


def stored(folder: Path, size: int) -> tuple[bytes, Path]:
    """A value, and its file."""
    value = os.urandom(size)
    Cache(folder)["key"] = value
    (path,) = folder.glob("entries/*/*/*")
    return value, path


@pytest.fixture(autouse=True)
def settles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's clock cannot be set, so files need not have been left alone for a while."""
    monkeypatch.setattr(reading.Verified, "SETTLED_NS", -(1 << 62))


@pytest.mark.parametrize("size", SIZES)
def test_a_value_comes_back_whole_again_and_again(tmp_path: Path, size: int) -> None:
    value, _ = stored(tmp_path, size)
    cache = Cache(tmp_path, memory_entries=0)
    assert [cache.get("key") for _ in range(3)] == [value] * 3


def test_a_large_value_is_verified_once_per_process(tmp_path: Path, hashed: list[int]) -> None:
    stored(tmp_path, 1 << 20)
    for _ in range(2):
        cache = Cache(tmp_path, memory_entries=0)
        for _ in range(5):
            assert cache.get("key")
    assert hashed == [1 << 20] * 2


@pytest.mark.parametrize("at", [40, 60, 1 << 19, -1])
def test_a_change_after_that_shows(tmp_path: Path, at: int) -> None:
    _, path = stored(tmp_path, 1 << 20)
    cache = Cache(tmp_path, memory_entries=0)
    assert cache.get("key")
    before = path.stat()
    with path.open("r+b") as file:
        content = file.read()
        file.seek(at % len(content))
        file.write(bytes([content[at] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert cache.get("key") is None
    assert cache.stats().damaged == 1
    assert not path.exists()


def test_a_file_put_in_its_place_is_verified(tmp_path: Path, hashed: list[int]) -> None:
    _, path = stored(tmp_path, 1 << 20)
    cache = Cache(tmp_path, memory_entries=0)
    assert cache.get("key")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    (tmp_path / "other").write_bytes(content)
    before = path.stat()
    os.utime(tmp_path / "other", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(tmp_path / "other", path)
    assert cache.get("key") is None
    assert len(hashed) == 2


def test_a_file_that_was_changed_a_moment_ago_is_verified_each_time(
    tmp_path: Path, hashed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two changes in one tick of the kernel's clock look like one."""
    monkeypatch.setattr(reading.Verified, "SETTLED_NS", 1 << 62)
    stored(tmp_path, 1 << 20)
    cache = Cache(tmp_path, memory_entries=0)
    for _ in range(3):
        assert cache.get("key")
    assert len(hashed) == 3


def test_what_is_known_of_files_is_bounded(tmp_path: Path, hashed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading.Verified, "LIMIT", 4)
    cache = Cache(tmp_path, memory_entries=0)
    for number in range(10):
        cache[str(number)] = bytes(40_000)
    for number in range(10):
        assert cache.get(str(number))
    assert len(hashed) == 10
    assert len(cache._levels.folder._verified._files) <= 4  # type: ignore[union-attr]


def test_metadata_and_long_keys_of_large_values_come_back(tmp_path: Path) -> None:
    key = "k" * 10_000
    with Cache(tmp_path, memory_entries=0) as cache:
        cache.put(key, bytes(100_000), {"arch": "sm_90"})
        found = cache.entry(key)
        assert found is not None
        assert (found.value, found.meta) == (bytes(100_000), {"arch": "sm_90"})
        assert list(cache) == [key]
