"""Programs that really compile, each run in a process of its own; they print one line of JSON about what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE = 280.0

TRITON = """
import json, os, sys
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import triton.backends.nvidia.compiler as nvidia

stages = 0
make_cubin = nvidia.CUDABackend.make_cubin
def counted(*arguments, **keywords):
    global stages
    stages += 1
    return make_cubin(*arguments, **keywords)
nvidia.CUDABackend.make_cubin = counted

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)

@triton.jit
def scale(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * 2.0, at < n)

digests = []
for kernel, signature in (
    (add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}),
    (scale, {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}),
):
    for block in (128, 256):
        source = ASTSource(kernel, signature, {"BLOCK": block})
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        import hashlib
        digests.append(hashlib.sha256(compiled.asm["cubin"]).hexdigest())
print(json.dumps({"compiled": stages, "cubins": digests}))
"""


def run_program(
    text: str, environment: dict[str, str], *arguments: str, folder: Path | None = None, quiet: bool = True
) -> dict[str, Any]:
    """The last line that a program prints. It must end well and say nothing: no framework may complain of a mount."""
    process = start_program(text, environment, *arguments, folder=folder)
    return finish_program(process, quiet=quiet)


def start_program(
    text: str, environment: dict[str, str], *arguments: str, folder: Path | None = None
) -> subprocess.Popen[str]:
    # Triton reads the source of a kernel from its file, and the path is part of what it hashes: always the same one.
    path = (folder or Path(environment["KCACHEFS_PROGRAMS"])) / f"program_{abs(hash(text))}.py"
    if not path.exists():
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(text)
        os.replace(new, path)
    return subprocess.Popen(
        [sys.executable, str(path), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRITON_DEFAULT_FP_FUSION": "1", **environment},
        start_new_session=True,
    )


def finish_program(process: subprocess.Popen[str], quiet: bool = True) -> dict[str, Any]:
    try:
        out, errors = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, errors
    if quiet:
        assert errors == ""
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told
