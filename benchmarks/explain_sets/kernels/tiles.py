"""Kernels that work on tiles: a matrix product, a pooling, a histogram."""

import triton
import triton.language as tl
from pieces import leaky, swizzled


@triton.jit
def gemm(
    a,
    b,
    c,
    m,
    n,
    k,
    stride_a,
    stride_b,
    stride_c,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row, column = swizzled(tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN), GROUP)
    rows = (row * BM + tl.arange(0, BM)) % m
    columns = (column * BN + tl.arange(0, BN)) % n
    depth = tl.arange(0, BK)
    left = a + rows[:, None] * stride_a + depth[None, :]
    right = b + depth[:, None] * stride_b + columns[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(tl.cdiv(k, BK)):
        tile = tl.load(left, mask=depth[None, :] < k - step * BK, other=0.0)
        total = tl.dot(tile, tl.load(right), total, input_precision=PRECISION)
        left += BK
        right += BK * stride_b
    total = leaky(total)
    tl.store(c + rows[:, None] * stride_c + columns[None, :], total.to(tl.float16))


@triton.jit
def pool(x, y, length, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        total += tl.load(x + at + tap, mask=at + tap < length, other=0.0)
    tl.store(y + at, total / TAPS, mask=at < length)


@triton.jit
def tally(x, counts, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0)
    tl.atomic_add(counts + values % BINS, 1, mask=at < n, sem="relaxed")
