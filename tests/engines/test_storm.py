"""Sixteen processes in one directory at once: no error that a local directory would not give, no lost file, no hang."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from tests.engines.callers import Child
from tests.engines.mounting import Place, of_a_mount_only
from tests.engines.stormers import CONTESTED, Stormer, check_contested

PROCESSES = 16
TURNS = int(os.environ.get("KCACHEFS_TEST_STORM_TURNS", "200"))
"""What each process does. A number, not a time, so that a busy machine tests just as much."""
ROUNDS = 3


def test_a_storm_of_processes_loses_nothing(root: Path) -> None:
    stormers = rage([Stormer(root, number) for number in range(PROCESSES)], TURNS)
    check(root, stormers)


@of_a_mount_only
def test_a_storm_loses_nothing_when_the_daemon_is_killed_in_its_pauses(root: Path, place: Place) -> None:
    stormers = [Stormer(root, number) for number in range(PROCESSES)]
    for _ in range(ROUNDS):
        stormers = rage(stormers, TURNS // ROUNDS // 2)
        place.kill()
        check(root, stormers)


def rage(stormers: list[Stormer], turns: int) -> list[Stormer]:
    """Run each in a process of its own; their ledgers come back."""
    children = [Child(partial(stormer.rage, turns)) for stormer in stormers]
    try:
        return [child.result() for child in children]
    finally:
        for child in children:
            child.__exit__(None, None, None)


def check(root: Path, stormers: list[Stormer]) -> None:
    """The directory holds what the ledgers say, the contested names, and nothing else."""
    owned = {name for stormer in stormers for name in stormer.ledger}
    assert {name for name in os.listdir(root) if name not in CONTESTED} == owned
    for stormer in stormers:
        assert stormer.turns > 0
        stormer.check_all()
    check_contested(root)
