"""The phases of a start on the CPU, from the process to its first compiled result, in an image without bytecode.

The same as scripts/gpu_check --phases --device cpu --hide-bytecode, as a part of a run.
"""

from __future__ import annotations

from benchmarks.gpu_check import Check
from benchmarks.gpu_phases import BYTECODE, KERNELS, PLAIN, Round, agrees, measure
from benchmarks.running import Run

COLUMNS = {PLAIN: "ext4", KERNELS: "direct", BYTECODE: "direct, with bytecode"}


def part(run: Run) -> None:
    if run.quick:
        run.leave_out("everything", "a quick run has no time for torch's precompiled headers")
        return
    check = Check(None, "cpu", run.place("phases"))
    rounds = list(measure(check, "cpu", run.rounds(7, doing="phases"), 1, hide=True))
    if not agrees(rounds):
        raise ValueError("the results of the starts differ")
    for state in ("cold", "warm"):
        names = next(iter(rounds[0][state].values()))["phases"]
        for name in names:
            run.add(f"{name}, {state}", "s", _values(rounds, state, name))
        run.add(f"all, {state}", "s", _values(rounds, state, None))


def _values(rounds: list[Round], state: str, phase: str | None) -> dict[str, list[float]]:
    """Seconds of a phase, or (None) of whole starts, by the column of the table."""
    found: dict[str, list[float]] = {column: [] for column in COLUMNS.values()}
    for one in rounds:
        for kind, start in one.get(state, {}).items():
            found[COLUMNS[kind]].append(start["seconds"] if phase is None else start["phases"][phase])
    return found
