"""Where the time of a start goes, from the process to its first compiled result: scripts/gpu_check --phases.

Three kinds of start take turns: caches in a plain folder, kernels on a mount, kernels and Python's bytecode on a mount.
Each is measured cold, from an empty folder and an empty store, and warm. With --hide-bytecode Python finds none beside
its sources and may write none there, as in an image that was built so; without it the image is measured as it is, and
the third kind does what `kcachefs run` would do by itself. Every round begins with a different kind.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu_check import PATIENCE, ROOT, Check, CheckFailed

PLAIN, KERNELS, BYTECODE = "plain", "kernels", "kernels and bytecode"
KINDS = (PLAIN, KERNELS, BYTECODE)
STATES = ("cold", "warm")
EMPTY, WARMED = "empty node", "after kcachefs warm"
Start = dict[str, Any]
"""What one start told: its phases, all its seconds, and a digest of its result."""


Round = dict[str, dict[str, Start]]
"""The starts of a round, by state and kind."""


def check(
    checker: Check,
    device: str,
    rounds: int,
    cold: int,
    *,
    hide: bool,
    keep: Path | None,
    also: list[Path],
) -> int:
    """Measure, print the table, and keep every number; 0 if all starts gave the same bits."""
    earlier = [json.loads(path.read_text()) for path in also]
    found: dict[str, Any] = {
        "machine": checker.machine() if rounds else earlier[0]["machine"],
        "device": device,
        "hidden": hide if rounds else earlier[0]["hidden"],
        "rounds": [one for run in earlier for one in run["rounds"]],
    }
    if any((run["machine"], run["hidden"]) != (found["machine"], found["hidden"]) for run in earlier):
        raise CheckFailed("these results are from different machines, or of different images")
    print(f"{found['machine']}\n", flush=True)
    numbers = range(len(found["rounds"]), len(found["rounds"]) + rounds)
    for number, one in enumerate(measure(checker, device, numbers, cold, hide=hide)):
        found["rounds"].append(one)
        told = "; ".join(
            f"{state}: " + ", ".join(f"{kind} {start['seconds']:.2f} s" for kind, start in kinds.items())
            for state, kinds in one.items()
        )
        print(f"round {number + 1}, {told}", file=sys.stderr, flush=True)
        _keep(keep, found)  # after each round, in case the machine goes away
    print(table(found["rounds"], found["hidden"]))
    return 0 if agrees(found["rounds"]) else 1


def measure(checker: Check, device: str, numbers: Iterable[int], cold: int, *, hide: bool) -> Iterator[Round]:
    """The rounds of these numbers; the first `cold` of them begin with empty caches, and the first in any case."""
    with contextlib.ExitStack() as scope:
        starts: dict[str, dict[str, str]] = {}
        for done, number in enumerate(numbers):
            turn = number % len(KINDS)
            order = KINDS[turn:] + KINDS[:turn]
            is_cold = done < cold or not starts
            if is_cold:
                scope.close()
                starts = scope.enter_context(_places(checker, hide))
            yield {
                state: {kind: _start(device, starts[kind]) for kind in order}
                for state in (STATES if is_cold else STATES[1:])
            }


def first(checker: Check, device: str, rounds: int, *, hide: bool, keep: Path | None) -> int:
    """The first start of a model on a node that has compiled nothing, and on one that `kcachefs warm` has prepared."""
    found: dict[str, Any] = {"machine": checker.machine(), "device": device, "hidden": hide, "rounds": []}
    print(f"{found['machine']}\n", flush=True)
    for number in range(rounds):
        one: dict[str, Start] = {}
        for kind in (EMPTY, WARMED) if number % 2 == 0 else (WARMED, EMPTY):
            with _places(checker, hide, kernels=False) as starts:
                warming = _warm(checker, device, starts[BYTECODE], hide) if kind == WARMED else 0.0
                one[kind] = {**_start(device, starts[BYTECODE]), "warming": warming}
        found["rounds"].append(one)
        print(f"round {number + 1}: {one[EMPTY]['seconds']:.2f} s, {one[WARMED]['seconds']:.2f} s", file=sys.stderr)
        _keep(keep, found)
    print(first_table(found["rounds"]))
    return 0 if len({start["digest"] for one in found["rounds"] for start in one.values()}) == 1 else 1


def first_table(rounds: list[dict[str, Start]]) -> str:
    """Medians of each phase of a first start, and how long warming took."""
    lines = [["phase of a first start, seconds", EMPTY, WARMED], ["---"] * 3]
    for name in rounds[0][EMPTY]["phases"]:
        lines.append([name, *(_median([one[kind]["phases"][name] for one in rounds]) for kind in (EMPTY, WARMED))])
    lines.append(["**all**", *(_median([one[kind]["seconds"] for one in rounds]) for kind in (EMPTY, WARMED))])
    ratio = _median([one[WARMED]["seconds"] / one[EMPTY]["seconds"] for one in rounds])
    warming = _median([one[WARMED]["warming"] for one in rounds])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{text}\n\nratio {ratio}; kcachefs warm took {warming} s, once"


def _warm(checker: Check, device: str, variables: dict[str, str], hide: bool) -> float:
    options = ["--gpu"] if device == "cuda" else []
    options += ["--bytecode", "on" if hide else "auto", "--python", sys.executable]
    began = time.perf_counter()
    checker.command("-c", _WARM, "warm", "--mount", variables["KCACHEFS_MOUNT"], *options)
    return time.perf_counter() - began


_WARM = """
import os
os.environ.pop("PYTHONPATH", None)  # what is warmed is the environment of the programs, which have none of our packages
from kcachefs.cli import main
main()
"""


@contextlib.contextmanager
def _places(checker: Check, hide: bool, *, kernels: bool = True) -> Iterator[dict[str, dict[str, str]]]:
    """The variables of each kind, over empty folders and two empty stores; without `kernels` only the last kind."""
    with contextlib.ExitStack() as scope:
        base = Path(scope.enter_context(tempfile.TemporaryDirectory(dir=checker.work, prefix="gpu-check-")))
        nothing = {"PYTHONPYCACHEPREFIX": str(base / "no bytecode"), "PYTHONDONTWRITEBYTECODE": "1"} if hide else {}
        found = {PLAIN: {**checker.environment(base / "plain", base / "plain-tmp"), **nothing}}
        for kind, name in ((KERNELS, "k"), (BYTECODE, "b")) if kernels else ((BYTECODE, "b"),):
            (base / name).mkdir()
            mount = scope.enter_context(checker.mounted(base / name))
            found[kind] = {**checker.environment(mount, base / f"{name}-tmp"), **nothing}
            if kind == BYTECODE:
                wish = "on" if hide else "auto"
                told = json.loads(checker.command("-c", _VARIABLES, str(mount), sys.executable, wish))
                print(f"bytecode: {told['reason']}", file=sys.stderr, flush=True)
                found[kind] |= told["variables"]
        yield found


_VARIABLES = """
import json, os, sys
from pathlib import Path
from kcachefs.frameworks import bytecode
environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
judged = bytecode.judge_command([sys.argv[2]], environ, sys.argv[3])
print(json.dumps({"reason": judged.reason, "variables": bytecode.variables(Path(sys.argv[1]), judged)}))
"""


def _start(device: str, variables: dict[str, str]) -> Start:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON_", "TORCHINDUCTOR_"))}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.phases_program", repr(time.monotonic()), device],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=ROOT,
        env={**clean, **variables},
        check=False,
    )
    if done.returncode != 0:
        raise CheckFailed(f"the program failed:\n{done.stdout}{done.stderr}")
    result: Start = json.loads(done.stdout.splitlines()[-1])
    return result


def _keep(path: Path | None, found: dict[str, Any]) -> None:
    if path is not None:
        whole = path.with_name(path.name + ".part")
        whole.write_text(json.dumps(found, indent=2))
        whole.replace(path)


# --- the table --------------------------------------------------------------------------------------------------------

COLUMNS = (("cold", PLAIN), ("cold", BYTECODE), ("warm", PLAIN), ("warm", KERNELS), ("warm", BYTECODE))


def table(rounds: list[Round], hidden: bool) -> str:
    """Medians of each phase, and of the whole; ratios are medians of the rounds' own ratios to the plain folder."""
    starts = {column: _of(rounds, *column) for column in COLUMNS}
    names = list(dict.fromkeys(name for many in starts.values() for one in many for name in one["phases"]))
    lines = [
        ["phase, seconds", *(f"{state}: {kind}" for state, kind in COLUMNS)],
        ["---"] * (len(COLUMNS) + 1),
    ]
    for name in names:
        cells = [_median([one["phases"][name] for one in starts[column]]) for column in COLUMNS]
        lines.append([name, *cells])
    lines.append(["**all**", *(_median([one["seconds"] for one in starts[column]]) for column in COLUMNS)])
    lines.append(["ratio to the plain folder", *(_ratio(rounds, *column) for column in COLUMNS)])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    image = "no bytecode beside the sources" if hidden else "bytecode beside the sources as the image has it"
    counts = ", ".join(f"{sum(state in one for one in rounds)} {state}" for state in STATES)
    bits = "equal" if agrees(rounds) else "DIFFERENT"
    return f"{text}\n\n{image}; rounds: {counts}; results {bits}"


def agrees(rounds: list[Round]) -> bool:
    """Whether every start computed the same bits."""
    return len({start["digest"] for one in rounds for kinds in one.values() for start in kinds.values()}) <= 1


def _of(rounds: list[Round], state: str, kind: str) -> list[Start]:
    return [one[state][kind] for one in rounds if state in one]


def _ratio(rounds: list[Round], state: str, kind: str) -> str:
    if kind == PLAIN:
        return ""
    pairs = [(one[state][kind]["seconds"], one[state][PLAIN]["seconds"]) for one in rounds if state in one]
    return f"{statistics.median(mine / theirs for mine, theirs in pairs):.2f}" if pairs else ""


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else ""
