"""Sixteen processes at once in one directory: no error a local directory would not give, no lost file, no hang."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from tests.engines.callers import Child
from tests.engines.mounting import Place, of_a_mount_only
from tests.engines.stormers import CONTESTED, Stormer, check_contested

PROCESSES = 16
SECONDS = float(os.environ.get("KCACHEFS_TEST_STORM_SECONDS", "20"))
SECONDS_OF_CONTROL = 5.0
ROUNDS = 3
PATIENCE = 90.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 3 * PATIENCE)]


def test_a_storm_of_processes_loses_nothing(root: Path, place: Place) -> None:
    seconds = SECONDS if place.mount else min(SECONDS, SECONDS_OF_CONTROL)
    stormers = rage([Stormer(root, number) for number in range(PROCESSES)], seconds)
    check(root, stormers)


@of_a_mount_only
def test_a_storm_loses_nothing_when_the_daemon_is_killed_in_its_pauses(root: Path, place: Place) -> None:
    stormers = [Stormer(root, number) for number in range(PROCESSES)]
    for _ in range(ROUNDS):
        stormers = rage(stormers, SECONDS / ROUNDS / 2)
        place.kill()
        check(root, stormers)


def rage(stormers: list[Stormer], seconds: float) -> list[Stormer]:
    """Each in a process of its own; what comes back are their ledgers."""
    children = [Child(partial(stormer.rage, seconds)) for stormer in stormers]
    try:
        return [child.result(seconds + PATIENCE) for child in children]
    finally:
        for child in children:
            child.__exit__(None, None, None)


def check(root: Path, stormers: list[Stormer]) -> None:
    """The directory holds what the ledgers say, the names they all fought for, and nothing else."""
    owned = {name for stormer in stormers for name in stormer.ledger}
    assert {name for name in os.listdir(root) if name not in CONTESTED} == owned
    for stormer in stormers:
        assert stormer.turns > 0
        stormer.check_all()
    check_contested(root)
