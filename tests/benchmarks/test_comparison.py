"""What counts as a change between two results, and what is noise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.comparison import changes
from benchmarks.results import Results
from benchmarks.subjects import ROOT

STEADY = [10.0, 10.2, 9.9, 10.1, 10.0]


def result(ours: list[float], ext4: list[float], better: str = "less") -> Results:
    made = Results(results.SCHEMA, "host", "2026-01-01", "abc", False, {"cores": "2"}, {"python": "3.11"})
    made.add("operations", "put", "µs", {"ext4": ext4, "direct": ours}, better=better)
    return made


def changed(before: Results, after: Results) -> list[tuple[str, bool]]:
    return [(one.after.subject, one.is_better) for one in changes(before, after)]


def test_the_same_again_is_no_change() -> None:
    assert changed(result(STEADY, STEADY), result(STEADY, STEADY)) == []


def test_what_doubles_beside_a_steady_peer_is_worse() -> None:
    assert changed(result(STEADY, STEADY), result([20.1, 20.0, 19.8], STEADY)) == [("direct", False)]


def test_what_halves_is_better_or_worse_by_its_kind() -> None:
    half = [5.0, 5.1, 4.9]
    assert changed(result(STEADY, STEADY), result(half, STEADY)) == [("direct", True)]
    assert changed(result(STEADY, STEADY, "more"), result(half, STEADY, "more")) == [("direct", False)]


def test_ranges_that_meet_are_noise() -> None:
    assert changed(result([8.0, 10.0, 16.0], STEADY), result([14.0, 17.0, 20.0], STEADY)) == []


def test_a_small_step_is_not_noticed_however_steady() -> None:
    assert changed(result([10.0, 10.01, 10.0], STEADY), result([10.5, 10.51, 10.5], STEADY)) == []


def test_a_slower_machine_is_no_change_of_ours() -> None:
    found = changed(result(STEADY, STEADY), result([20.0, 20.2, 19.9], [20.0, 20.2, 19.9]))
    assert found == [("ext4", False)]


def test_a_faster_peer_is_no_change_of_ours() -> None:
    assert changed(result(STEADY, STEADY), result(STEADY, [5.0, 5.1, 4.9])) == [("ext4", True)]


@pytest.mark.parametrize(("now", "expected"), [(13.0, []), (17.0, [("direct", False)])])
def test_a_single_value_must_be_further_off(now: float, expected: list[tuple[str, bool]]) -> None:
    assert changed(result([10.0], [10.0]), result([now], [10.0])) == expected


def test_the_command_names_what_got_worse_and_fails(tmp_path: Path) -> None:
    results.save(result(STEADY, STEADY), tmp_path / "before.json")
    results.save(result([20.1, 20.0, 19.8], STEADY), tmp_path / "after.json")

    def compare(one: str, other: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "benchmarks" / "compare"), str(tmp_path / one), str(tmp_path / other)]
        environment = {**os.environ, "PYTHON": sys.executable}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    worse = compare("before.json", "after.json")
    assert worse.returncode == 1, worse.stderr
    assert "worse" in worse.stdout
    assert "put" in worse.stdout
    same = compare("before.json", "before.json")
    assert same.returncode == 0, same.stderr
    assert "0 changed, 2 did not change" in same.stdout
