"""Compiles one real Triton kernel for sm_90 without a GPU, in a process of its own, and tells what happened as JSON."""

from __future__ import annotations

import json
import os
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit  # type: ignore[untyped-decorator]
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x_ptr + offsets, mask=mask) + tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


def main() -> None:
    blocks = [int(word) for word in sys.argv[1:]] or [128]
    told = []
    triton.knobs.compilation.listener = lambda **facts: told.append(bool(facts["cache_hit"]))
    cubins = []
    for block in blocks:
        source = ASTSource(
            add_kernel,
            signature={"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"},
            constexprs={"BLOCK": block},
        )
        kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        paths = sorted(str(path) for path in kernel.metadata_group.values())
        cubins.append({"size": len(kernel.asm["cubin"]), "hash": kernel.hash, "there": all(map(os.path.exists, paths))})
    print(json.dumps({"hits": told, "kernels": cubins}))


if __name__ == "__main__":
    main()
