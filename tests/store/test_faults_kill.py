"""SIGKILL at a random instant while four threads write: what was acknowledged is there. More: scripts/kill_store."""

from __future__ import annotations

import logging
import mmap
import random
import re
from pathlib import Path

import pytest

from tests.store.kill import Rounds, one_round, writers

ROUNDS = 200


@pytest.mark.slow
def test_two_hundred_kills_lose_nothing(
    in_memory: Path, chosen: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    state = Rounds()
    with writers() as server:
        while state.rounds < ROUNDS:
            one_round(server, in_memory / "store", state, chosen)
    assert state.in_flight > ROUNDS // 4, "too few kills hit an operation, so this proves nothing"
    assert state.recovered > ROUNDS // 4, "too few kills left a journal, so this proves nothing"
    # A kill may end a write at the end of a page: then the journal ends within a record that nobody was told of.
    warned = [report.getMessage() for report in caplog.records if report.levelno >= logging.WARNING]
    for text in warned:
        cut = re.fullmatch(r".*: cut at byte \d+ of (\d+), where a record is incomplete or damaged", text)
        assert cut is not None, text
        assert int(cut[1]) % mmap.PAGESIZE == 0, text
