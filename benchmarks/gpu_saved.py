"""Seconds saved against seconds measured on a real GPU: `scripts/gpu_check --saved`.

A round is a cold start on an empty mount and a warm one after a remount, so that the kernel asks for every name again.
Between the two, `kcachefs explain` reads from the artefacts what the graphs cost, as it does at the end of every
`kcachefs run`. What the mount then says that the warm start saved is compared with the cold start less the warm one.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import Check, CheckFailed

ON_A_GPU = ("triton", "transformer", "convnet", "mlp")
"""Not the driver's cache, whose files do not tell what they cost: the mount calls that unknown."""
ON_A_CPU = ("offline", "transformer", "convnet", "mlp")
TOLERANCE = 0.3


def check(checked: Check, names: Sequence[str], rounds: int, machine: str, kept: Path | None) -> int:
    """Print a table, and write every number to `kept`; returns the exit code."""
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            measured[name].append(_round(checked, name))
            print(f"round {number + 1}, {name}: {_spelled(measured[name][-1])}", file=sys.stderr, flush=True)
            if kept is not None:  # after each round, in case the machine goes away
                kept.write_text(json.dumps({"machine": machine, "saved": measured}, indent=2))
    print(table(measured))
    return 0 if all(is_close(many) for many in measured.values()) else 1


def table(measured: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "| what | cold | warm | cold − warm | saved, says the mount | ratio | hits | of unknown cost | within 30 % |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, many in measured.items():
        cold, warm, saved = (statistics.median(one[what] for one in many) for what in ("cold", "warm", "saved"))
        difference = statistics.median(one["cold"] - one["warm"] for one in many)
        hits, unknown = many[-1]["hits"], many[-1]["unknown"]
        figures = f"{cold:.2f} s | {warm:.2f} s | {difference:.2f} s | {saved:.2f} s | {ratio(many):.3f}"
        lines.append(f"| {name} | {figures} | {hits} | {unknown} | {'yes' if is_close(many) else 'NO'} |")
    return "\n".join(lines)


def ratio(many: list[dict[str, Any]]) -> float:
    """What the mount says was saved, by what was saved: the median of the rounds."""
    return float(statistics.median(one["saved"] / (one["cold"] - one["warm"]) for one in many))


def is_close(many: list[dict[str, Any]]) -> bool:
    return abs(ratio(many) - 1) <= TOLERANCE and all(one["digests"] == 1 for one in many)


def _round(checked: Check, name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=checked.work, prefix="gpu-saved-") as folder:
        base = Path(folder)
        with checked.mounted(base) as mount:
            cold = checked.run(name, checked.environment(mount, base / "cold-tmp"))
            checked.command("-m", "kcachefs", "explain", "--since", "1h", "--mount", str(mount), "--json")
        # Compile workers of the cold start may outlive it, and write where nothing is mounted any more.
        shutil.rmtree(base / "mount", ignore_errors=True)
        with checked.mounted(base) as mount:
            warm = checked.run(name, checked.environment(mount, base / "warm-tmp"))
            run = _newest_run(checked, mount)
    return {
        "cold": cold["seconds"],
        "warm": warm["seconds"],
        "saved": run["seconds_saved"],
        "hits": run["hits"],
        "misses": run["misses"],
        "unknown": run["unknown_saved"],
        "digests": len({cold["digest"], warm["digest"]}),
        "counters": {"cold": cold["counters"], "warm": warm["counters"]},
    }


def _newest_run(checked: Check, mount: Path) -> dict[str, Any]:
    """What the mount knows of the program that ran last."""
    runs: list[dict[str, Any]] = json.loads(checked.command("-m", "kcachefs", "runs", "--mount", str(mount), "--json"))
    programs = [one for one in runs if "benchmarks.gpu_programs" in one["argv"]]
    if not programs:
        raise CheckFailed(f"the mount knows of no run of a program: {runs}")
    return programs[-1]


def _spelled(one: dict[str, Any]) -> str:
    measured = f"cold {one['cold']:.2f} s, warm {one['warm']:.2f} s"
    return f"{measured}, so {one['cold'] - one['warm']:.2f} s saved; the mount says {one['saved']:.2f} s"
