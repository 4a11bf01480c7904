"""A damaged file is a miss and is removed, wherever the damage is; the entry can be stored again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcachefs import Cache

VALUE = bytes(range(256))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A cache with two entries of one size."""
    with Cache(tmp_path / "cache") as cache:
        cache.put("key", VALUE, {"arch": "sm_90"})
        cache.put("yek", VALUE[::-1], {"arch": "sm_90"})
    return tmp_path / "cache"


def file_of(folder: Path, key: str) -> Path:
    (path,) = (path for path in folder.glob("entries/*/*/*") if key.encode() in path.read_bytes())
    return path


def check_missed_and_removed(folder: Path, path: Path) -> None:
    with Cache(folder) as cache:
        assert cache.get("key") is None
        assert not path.exists()
        assert (cache.stats().damaged, cache.stats().misses) == (1, 1)
        assert cache.get_or_compute("key", lambda: VALUE) == VALUE
    with Cache(folder) as cache:
        assert cache.get("key") == VALUE
        assert cache.get("yek") == VALUE[::-1]
    assert list(folder.glob("entries/*/*/.*")) == []


def test_every_flipped_byte_shows(stored: Path) -> None:
    path = file_of(stored, "key")
    whole = path.read_bytes()
    with Cache(stored, memory_entries=0) as cache:
        for at in range(len(whole)):
            for bit in (0x01, 0x80):
                path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
                assert cache.get("key") is None, f"byte {at}"
                assert not path.exists(), f"byte {at}"
        assert cache.stats().damaged == 2 * len(whole)
        path.write_bytes(whole)
        assert cache.get("key") == VALUE


def test_every_shorter_or_longer_file_shows(stored: Path) -> None:
    path = file_of(stored, "key")
    whole = path.read_bytes()
    with Cache(stored, memory_entries=0) as cache:
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            assert cache.get("key") is None, f"cut to {length}"
            assert not path.exists(), f"cut to {length}"
        for more in (b"\0", whole, bytes(100_000)):
            path.write_bytes(whole + more)
            assert cache.get("key") is None
            assert not path.exists()


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 400, b"\x80\x04K\x01.", os.urandom(5000)], ids=["empty", "zeros", "pickle", "noise"]
)
def test_anything_else_in_its_place_is_removed(stored: Path, content: bytes) -> None:
    path = file_of(stored, "key")
    path.write_bytes(content)
    check_missed_and_removed(stored, path)


def test_a_whole_file_under_the_name_of_another_key_is_not_served(stored: Path) -> None:
    path = file_of(stored, "key")
    path.write_bytes(file_of(stored, "yek").read_bytes())
    check_missed_and_removed(stored, path)


def test_a_large_file_that_is_damaged_late_shows(tmp_path: Path) -> None:
    with Cache(tmp_path, memory_entries=0) as cache:
        cache["large"] = bytes(1_000_000)
        (path,) = tmp_path.glob("entries/*/*/*")
        with path.open("r+b") as file:
            file.seek(900_000)
            file.write(b"\1")
        assert cache.get("large") is None
        assert not path.exists()


def test_damage_after_the_first_read_shows_to_the_next_process(stored: Path) -> None:
    with Cache(stored) as cache:
        assert cache["key"] == VALUE
        path = file_of(stored, "key")
        path.write_bytes(path.read_bytes()[:-1])
        assert cache["key"] == VALUE
    with Cache(stored) as cache:
        assert cache.get("key") is None


def test_a_directory_or_a_dangling_link_in_its_place_is_a_miss(stored: Path) -> None:
    path = file_of(stored, "key")
    path.unlink()
    path.symlink_to("nowhere")
    with Cache(stored) as cache:
        assert cache.get("key") is None
        assert cache.put("key", VALUE)
    path.unlink()
    path.mkdir()
    with Cache(stored) as cache:
        assert cache.get("key") is None
        assert cache.get_or_compute("key", lambda: VALUE) == VALUE


def test_folders_removed_beneath_it_are_made_again(stored: Path) -> None:
    with Cache(stored, memory_entries=0) as cache:
        for path in sorted(stored.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        stored.rmdir()
        assert cache.get("key") is None
        assert len(cache) == 0
        assert cache.put("key", VALUE)
        assert cache.get("key") == VALUE


def test_files_that_are_not_entries_do_no_harm(stored: Path) -> None:
    (stored / "entries" / "v1" / "README").write_text("hello")
    (stored / "entries" / "v1" / "zz").mkdir()
    (stored / "entries" / "v1" / "zz" / "notes").write_text("hello")
    (stored / "entries" / "other").mkdir()
    with Cache(stored) as cache:
        assert sorted(cache) == ["key", "yek"]
