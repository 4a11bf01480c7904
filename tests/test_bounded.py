"""Tests of the dict with a limit."""

from __future__ import annotations

import threading

from kcachefs.bounded import BoundedDict


def test_it_never_holds_more_than_its_limit_and_keeps_the_newest() -> None:
    kept: BoundedDict[int, str] = BoundedDict(16)
    for number in range(1000):
        kept[number] = str(number)
        assert len(kept) <= 16
        assert kept[number] == str(number)
    assert set(kept) >= set(range(990, 1000))


def test_assigning_to_a_known_key_drops_nothing() -> None:
    kept: BoundedDict[int, int] = BoundedDict(8)
    for number in range(8):
        kept[number] = number
    for number in range(8):
        kept[number] = -number
    assert dict(kept) == {number: -number for number in range(8)}


def test_what_may_not_be_dropped_stays() -> None:
    kept: BoundedDict[int, int] = BoundedDict(8, may_drop=lambda value: value % 2 == 0)
    for number in range(100):
        kept[number] = number
    assert {number for number in range(100) if number % 2} <= set(kept)


def test_threads_that_add_at_once_break_nothing() -> None:
    kept: BoundedDict[tuple[int, int], int] = BoundedDict(64)
    errors: list[BaseException] = []

    def add(name: int) -> None:
        try:
            for number in range(20_000):
                kept[name, number] = number
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(kept) <= 64 + len(threads)
