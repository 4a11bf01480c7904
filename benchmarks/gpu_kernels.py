"""Triton kernels that scripts/gpu_check compiles and runs."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


def add(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    _add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


def softmax(x: Any) -> Any:
    out = torch.empty_like(x)
    _softmax[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


def matmul(a: Any, b: Any) -> Any:
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), device=a.device, dtype=a.dtype)
    _matmul[lambda meta: (triton.cdiv(m, meta["M"]), triton.cdiv(n, meta["N"]))](a, b, out, m, n, k)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit  # type: ignore[untyped-decorator]
def _softmax(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + at, at < n, -float("inf"))
    top = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * n + at, top / tl.sum(top, 0), at < n)


@triton.autotune(  # type: ignore[untyped-decorator]
    configs=[
        triton.Config({"M": m, "N": n, "K": 32}, num_warps=warps, num_stages=stages)
        for m, n in ((64, 64), (128, 64))
        for warps in (4, 8)
        for stages in (2, 3)
    ],
    key=["m", "n", "k"],
)
@triton.jit  # type: ignore[untyped-decorator]
def _matmul(a, b, out, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), dtype=tl.float32)
    for start in range(0, k, K):
        inner = start + tl.arange(0, K)
        left = tl.load(a + rows[:, None] * k + inner[None, :], (rows[:, None] < m) & (inner[None, :] < k), 0.0)
        right = tl.load(b + inner[:, None] * n + columns[None, :], (inner[:, None] < k) & (columns[None, :] < n), 0.0)
        total = tl.dot(left, right, total)
    where = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(out + rows[:, None] * n + columns[None, :], total.to(tl.float16), where)
