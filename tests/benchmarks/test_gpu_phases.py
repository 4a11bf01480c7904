"""What scripts/gpu_check --phases makes of the starts that it measured."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_phases import BYTECODE, KERNELS, PLAIN, agrees, table


def start(imports: float, compiled: float, digest: str = "same") -> dict[str, Any]:
    phases = {"import torch": imports, "first compiled call": compiled}
    return {"phases": phases, "seconds": imports + compiled, "digest": digest}


def kinds(plain: float, kernels: float, bytecode: float) -> dict[str, dict[str, Any]]:
    return {PLAIN: start(4.0, plain), KERNELS: start(4.0, kernels), BYTECODE: start(1.0, bytecode)}


def test_a_ratio_is_the_median_of_the_rounds_and_cold_ones_may_be_fewer() -> None:
    rounds = [{"cold": kinds(16.0, 16.0, 16.0), "warm": kinds(2.0, 2.0, 2.0)}, {"warm": kinds(4.0, 4.0, 3.0)}]
    lines = table(rounds, hidden=True).splitlines()
    assert lines[2] == "| import torch | 4.00 | 1.00 | 4.00 | 4.00 | 1.00 |"
    assert lines[4] == "| **all** | 20.00 | 17.00 | 7.00 | 7.00 | 3.50 |"
    assert lines[5] == "| ratio to the plain folder |  | 0.85 |  | 1.00 | 0.50 |"
    assert lines[-1] == "no bytecode beside the sources; rounds: 1 cold, 2 warm; results equal"


def test_a_start_with_other_bits_is_told() -> None:
    rounds = [{"warm": {**kinds(2.0, 2.0, 2.0), KERNELS: start(4.0, 2.0, "another")}}]
    assert not agrees(rounds)
    assert table(rounds, hidden=False).endswith("results DIFFERENT")
