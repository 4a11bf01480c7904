"""Cold and warm starts of real compilers, with their caches in a plain directory and in a mount, in seconds.

It times the first compiled call in a process that has imported everything; a cold start includes torch's precompiled
header. Every start is a fresh process. The two directories take turns within each round, and in going first. A warm
start is short, so a round has several.
"""

from __future__ import annotations

from benchmarks.gpu_check import Check, agrees, seconds
from benchmarks.running import Run

PROGRAMS = {"offline": "Triton, 8 kernels for sm_90", "mlp": "torch.compile of an MLP, CPU"}
WARM = 3


def part(run: Run) -> None:
    check = Check(None, "cpu", run.place("compilers"))
    if run.quick:
        run.leave_out(PROGRAMS["mlp"], "a quick run has no time for torch's precompiled headers")
    for program, share in (("offline", 0.2), ("mlp", 0.8)):
        if run.quick and program == "mlp":
            continue
        rounds = run.rounds(1 if run.quick else 5, share, PROGRAMS[program])
        found = [check.round(program, mount_first=number % 2 == 1, warm=WARM) for number in rounds]
        if not all(agrees(one) for one in found):
            raise ValueError(f"{PROGRAMS[program]}: the results differ, or a warm start compiled")
        for state in ("cold", "warm"):
            values = {"ext4": seconds(found, f"plain {state}"), "direct": seconds(found, f"mount {state}")}
            run.add(f"{PROGRAMS[program]}, {state}", "s", values)
