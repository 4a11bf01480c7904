"""Functions that the kernels of rows.py and tiles.py call."""

import triton
import triton.language as tl

SLOPE = tl.constexpr(0.25)


@triton.jit
def bounded(x, top):
    # never above top
    return tl.minimum(tl.maximum(x, 0.0), top)


@triton.jit
def swish(x, beta):
    # smooth, and close to the identity far right
    return x * tl.sigmoid(x * beta)


@triton.jit
def leaky(x):
    return tl.where(x > 0, x, x * SLOPE)


@triton.jit
def moments(values, inside, width):
    mean = tl.sum(values, 0) / width
    apart = tl.where(inside, values - mean, 0.0)
    return mean, tl.sum(apart * apart, 0) / width


@triton.jit
def swizzled(pid, tall, wide, GROUP: tl.constexpr):
    band = pid // (GROUP * wide)
    height = tl.minimum(tall - band * GROUP, GROUP)
    return band * GROUP + pid % height, (pid % (GROUP * wide)) // height
