"""CUDA kernels from small to large, each compiled once for sm_90."""

from __future__ import annotations

import functools
from typing import Any

SOURCES = {
    "add": 'extern "C" __global__ void k(float *a, const float *b, int n)'
    "{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) a[i] += b[i]; }",
    **{
        f"polynomial {terms}": (
            'extern "C" __global__ void k(float *a, const float *b, int n) {'
            "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; float x = b[i], y = 0;"
            + "".join(f"y = y * x + __sinf(x * {term}.5f) / ({term} + x);" for term in range(terms))
            + "a[i] = y; }"
        )
        for terms in (20, 60, 150, 300)
    },
}


def options() -> Any:
    from cuda.core import ProgramOptions

    return ProgramOptions(arch="sm_90", lineinfo=True)


@functools.cache
def compiled() -> dict[str, bytes]:
    """The cubin of each source."""
    from cuda.core import Program

    return {
        source: bytes(Program(source, "c++", options=options()).compile("cubin").code) for source in SOURCES.values()
    }
