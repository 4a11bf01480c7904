"""Kernels that work on rows: a norm, a rotation, a quantizer, a dropout."""

import triton
import triton.language as tl
from pieces import bounded, moments, swish

EPSILON = tl.constexpr(1e-6)
LIMIT: tl.constexpr = tl.constexpr(127.0)


@triton.jit
def layer_norm(x, weight, bias, y, width, WIDTH: tl.constexpr, AFFINE: tl.constexpr, ACT: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    inside = at < width
    values = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    mean, spread = moments(values, inside, width)
    result = (values - mean) / tl.sqrt(spread + EPSILON)
    if AFFINE:
        result = result * tl.load(weight + at, mask=inside)
        if bias is not None:
            result += tl.load(bias + at, mask=inside)
    if ACT == "swish":
        result = swish(result, 1.5)
    elif ACT == "bounded":
        result = bounded(result, 6.0)
    tl.store(y + row * width + at, result, mask=inside)


@triton.jit
def rotate(q, cos, sin, heads, HEAD: tl.constexpr, HEADS: tl.constexpr, INTERLEAVED: tl.constexpr):
    token = tl.program_id(0)
    half = tl.arange(0, HEAD // 2)
    lane = tl.arange(0, HEADS)
    c = tl.load(cos + token * (HEAD // 2) + half)
    s = tl.load(sin + token * (HEAD // 2) + half)
    base = q + token * heads * HEAD + lane[:, None] * HEAD
    left = base + half[None, :]
    right = left + HEAD // 2
    if INTERLEAVED:
        left = base + 2 * half[None, :]
        right = left + 1
    a = tl.load(left).to(tl.float32)
    b = tl.load(right).to(tl.float32)
    tl.store(left, a * c - b * s)
    tl.store(right, a * s + b * c)


@triton.jit
def quantize(x, scales, codes, n, GROUP: tl.constexpr, TO: tl.constexpr):
    at = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    values = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    top = tl.maximum(tl.max(tl.abs(values), 0), 1e-10)
    scale = top / LIMIT
    tl.store(scales + tl.program_id(0), scale)
    tl.store(codes + at, (values / scale).to(TO), mask=at < n)


@triton.jit
def drop(x, y, n, seed, chance, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.rand(seed, at) > chance
    values = tl.load(x + at, mask=at < n)
    tl.store(y + at, tl.where(kept, values / (1 - chance), 0.0), mask=at < n)
