"""Compiles a small function with torch.compile on the CPU and tells what its cache found as JSON.

To import torch and its compilers takes far longer than a warm start does, so one process has them (it is one of
`tests/forked_programs.py`) and forks for each run. A line on standard input asks for one: its environment, and
optionally the process in whose mount namespace it is to run, and as which user. The answer is a line on its output.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
import traceback
from typing import Any

import torch
import torch._inductor.codegen.cpp
import torch._inductor.codegen.cpp_wrapper_cpu
import torch._inductor.compile_fx
from torch._dynamo.utils import counters

_CLONE_NEWNS = 0x20000


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run_and_exit(json.loads(line))
        os.waitpid(pid, 0)


def run_and_exit(wanted: dict[str, Any]) -> None:
    try:
        enter(**wanted)
        told = compiled()
    except BaseException:
        told = {"error": traceback.format_exc()}
    print(json.dumps(told), flush=True)
    os._exit(0)


def enter(environment: dict[str, str], beside: int | None, uid: int, gid: int) -> None:
    """Be a process of that user, where process `beside` is."""
    if beside is not None:
        with open(f"/proc/{beside}/ns/mnt", "rb") as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), _CLONE_NEWNS) == 0
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    os.chdir(environment["TMPDIR"])


def compiled() -> dict[str, Any]:
    function = torch.compile(lambda x: torch.sin(x) * 2 + x.sum())
    result = function(torch.arange(8.0)).tolist()
    found = dict(counters["inductor"])
    return {"hits": found.get("fxgraph_cache_hit", 0), "misses": found.get("fxgraph_cache_miss", 0), "result": result}


if __name__ == "__main__":
    main()
