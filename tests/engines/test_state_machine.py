"""Random operations on a place and on a plain directory, which must answer alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engines.comparison import comparison_in
from tests.engines.mounting import Place

SUITE = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=30,
    stateful_step_count=80,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_random_operations_are_answered_as_a_plain_directory_answers_them(place: Place, tmp_path: Path) -> None:
    """Always the same operations; `scripts/posix_soak` draws others for as long as it runs."""
    run_state_machine_as_test(comparison_in(place, tmp_path), settings=SUITE)
