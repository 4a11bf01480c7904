"""Compiles one real Triton kernel for sm_90 without a GPU, in a process of its own, and prints what happened as JSON.

Runs with every Triton since 3.2, whose interfaces differ.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit  # type: ignore[untyped-decorator]
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


def source(block: int) -> Any:
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"}
    if "constexprs" in inspect.signature(ASTSource).parameters:
        return ASTSource(add_kernel, signature={**signature, "BLOCK": "constexpr"}, constexprs={"BLOCK": block})
    return ASTSource(add_kernel, signature=signature, constants={"BLOCK": block})


def main() -> None:
    blocks = [int(word) for word in sys.argv[1:]] or [128]
    hits, cubins = [], []
    assembled = count_cubins()
    for block in blocks:
        before = len(assembled)
        kernel = triton.compile(source(block), target=GPUTarget("cuda", 90, 32))
        hits.append(len(assembled) == before)
        paths = sorted(str(path) for path in getattr(kernel, "metadata_group", {}).values())
        cubins.append({"size": len(kernel.asm["cubin"]), "hash": kernel.hash, "there": all(map(os.path.exists, paths))})
    print(json.dumps({"hits": hits, "kernels": cubins}))


def count_cubins() -> list[int]:
    """One item for each kernel that is really assembled: a hit assembles none."""
    made: list[int] = []
    backend = backends["nvidia"].compiler
    is_static = isinstance(inspect.getattr_static(backend, "make_cubin"), staticmethod)
    make_cubin = backend.make_cubin

    def counted(*args: Any) -> Any:
        made.append(1)
        return make_cubin(*args)

    backend.make_cubin = staticmethod(counted) if is_static else counted
    return made


if __name__ == "__main__":
    main()
