"""What scripts/gpu_check keeps of a run and how it sums it up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import gpu_check

TOTAL = {"files": 3, "plain_bytes": 2_000_000, "stored_bytes": 500_000}


def start(seconds: float, digest: str = "same", **counters: int) -> dict[str, Any]:
    return {"seconds": seconds, "digest": digest, "counters": counters}


def round_(mount_cold: float = 3.0, **changed: dict[str, Any]) -> dict[str, Any]:
    runs = {
        "plain cold": start(2.0, compiled=1),
        "mount cold": start(mount_cold, compiled=1),
        "plain warm": start(1.0, compiled=0),
        "mount warm": start(1.0, compiled=0),
    }
    return {
        "runs": {**runs, **{kind.replace("_", " "): told for kind, told in changed.items()}},
        "mount": {"total": TOTAL},
    }


def test_a_round_agrees_when_its_bits_do_and_nothing_was_compiled_twice() -> None:
    assert gpu_check.agrees(round_())
    assert not gpu_check.agrees(round_(mount_warm=start(1.0, "another", compiled=0)))
    assert not gpu_check.agrees(round_(mount_warm=start(1.0, compiled=1)))
    assert gpu_check.agrees({"from_log": True, "runs": {"plain cold": {"seconds": 1.0}}})


def test_a_run_that_is_cut_off_leaves_what_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    gpu_check._keep(path, "a machine", {"triton": [round_()], "driver": []})
    assert json.loads(path.read_text()) == {"machine": "a machine", "rounds": {"triton": [round_()]}}
    assert [each.name for each in tmp_path.iterdir()] == ["found.json"]


def test_a_ratio_is_the_median_of_the_pairs() -> None:
    logged = {"from_log": True, "runs": {"plain cold": {"seconds": 2.0}, "mount cold": {"seconds": 5.0}}}
    table = gpu_check.table({"triton": [round_(2.0), round_(3.0), logged]}).splitlines()
    assert (
        table[2] == "| triton | 2.000 s | 3.000 s | 1.500 | 1.000 s | 1.000 s | 1.000 | 3 | 2.0 MB | 0.5 MB | equal |"
    )
