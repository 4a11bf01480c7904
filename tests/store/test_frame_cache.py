"""The frame cache: the least recently used frame goes first, and a frame counts with its overhead."""

from __future__ import annotations

from kcachefs.store.frame_cache import OVERHEAD, FrameCache


def test_the_least_recently_used_goes_first() -> None:
    cache = FrameCache(3 * (100 + OVERHEAD))
    for name in b"abc":
        cache.put((bytes([name]), 0), bytes(100))
    assert cache.get((b"a", 0)) == bytes(100)
    cache.put((b"d", 0), bytes(100))
    assert [cache.get((bytes([name]), 0)) is not None for name in b"abcd"] == [True, False, True, True]


def test_the_number_of_tiny_frames_is_bounded() -> None:
    cache = FrameCache(100 * OVERHEAD)
    for number in range(1000):
        cache.put((b"%d" % number, 0), b"x")
    kept = [number for number in range(1000) if cache.get((b"%d" % number, 0))]
    assert kept == list(range(901, 1000))


def test_what_is_dropped_makes_room() -> None:
    cache = FrameCache(2 * (10 + OVERHEAD))
    for _ in range(3):
        cache.put((b"a", 0), bytes(10))
        cache.put((b"a", 1), bytes(10))
        cache.drop(b"a", 2)
    cache.put((b"b", 0), bytes(10))
    cache.put((b"c", 0), bytes(10))
    assert cache.get((b"b", 0)) == cache.get((b"c", 0)) == bytes(10)
    assert cache.get((b"a", 0)) is None
