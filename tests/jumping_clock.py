"""A clock that jumps ahead now and then, as a clock seems to do on a machine that keeps a process waiting.

    .venv/bin/python -m pytest -p tests.jumping_clock tests/core

This finds tests that fail when one of their steps takes seconds longer than usual; a busy machine shows such a test
once in a hundred runs. `KCACHEFS_SEED` repeats the jumps. Only the process of the tests has this clock. So a test that
compares it with a time that the kernel gave to a file may fail too, which means nothing.
"""

from __future__ import annotations

import os
import random
import time

CHANCE, LONGEST_NS = 0.02, 3_000_000_000
"""How likely a jump is whenever somebody asks for the time, and how far it goes at most."""

_chance = random.Random(f"{os.environ.get('KCACHEFS_SEED', '')} {os.environ.get('PYTEST_XDIST_WORKER', '')}")
_monotonic_ns, _time_ns = time.monotonic_ns, time.time_ns
_ahead_ns = 0


def _ahead() -> int:
    global _ahead_ns
    if _chance.random() < CHANCE:
        _ahead_ns += _chance.randrange(LONGEST_NS)
    return _ahead_ns


time.monotonic_ns = lambda: _monotonic_ns() + _ahead()
time.time_ns = lambda: _time_ns() + _ahead()
time.monotonic = lambda: time.monotonic_ns() / 1e9
time.time = lambda: time.time_ns() / 1e9
