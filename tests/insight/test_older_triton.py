"""Kernels of older Triton: up to 3.7 it tells places, and up to 3.6 constants, in another way than later versions.

The texts are what Triton 3.6 wrote for the source below. `scripts/triton_versions` compiles kernels with such versions.
"""

from __future__ import annotations

import pytest

from kcachefs.insight.constants import leaves_of
from kcachefs.insight.kernel_differences import differences
from kcachefs.insight.kernels import TritonKernel
from kcachefs.insight.triton_ir import read

SOURCE = """import triton
import triton.language as tl


@triton.jit
def swish(x, beta):
    return x * tl.sigmoid(x * beta)


@triton.jit
def scale(x, n, SIZE: tl.constexpr, BETA: tl.constexpr):
    at = tl.arange(0, SIZE // 2)
    tl.store(x + at % SIZE, swish(tl.load(x + at), BETA))
"""

FIRST_IR = """#loc = loc("/src/old.py":11:0)
#loc9 = loc("/src/old.py":6:0)
module {
  tt.func public @scale(%x: !tt.ptr<f32> loc("x"(#loc)), %n: i32 loc("n"(#loc))) attributes {noinline = false} {
    %at = tt.make_range {end = HALF : i32, start = 0 : i32} : tensor<HALFxi32> loc(#loc24)
    %cSIZE_i32 = arith.constant SIZE : i32 loc(#loc2)
    %cSIZE_i32_0 = arith.constant SIZE : i32 loc(#loc2)
    %cst = arith.constant dense<SIZE> : tensor<HALFxi32> loc(#loc2)
    %0 = arith.remsi %at, %cst : tensor<HALFxi32> loc(#loc2)
    %1 = tt.splat %x : !tt.ptr<f32> -> tensor<HALFx!tt.ptr<f32>> loc(#loc3)
    %2 = tt.addptr %1, %0 : tensor<HALFx!tt.ptr<f32>>, tensor<HALFxi32> loc(#loc3)
    %3 = tt.splat %x : !tt.ptr<f32> -> tensor<HALFx!tt.ptr<f32>> loc(#loc4)
    %4 = tt.addptr %3, %at : tensor<HALFx!tt.ptr<f32>>, tensor<HALFxi32> loc(#loc4)
    %5 = tt.load %4 : tensor<HALFx!tt.ptr<f32>> loc(#loc5)
    %6 = tt.call @"old.swish__fp32SHALFS__(1,)cconstexpr_BETA_"(%5) : (tensor<HALFxf32>) -> tensor<HALFxf32> loc(#loc6)
    tt.store %2, %6 : tensor<HALFx!tt.ptr<f32>> loc(#loc7)
    tt.return loc(#loc8)
  } loc(#loc)
} loc(#loc)
#loc1 = loc("/src/old.py":12:22)
#loc2 = loc("/src/old.py":13:22)
#loc3 = loc("/src/old.py":13:17)
#loc4 = loc("/src/old.py":13:46)
#loc5 = loc("/src/old.py":13:42)
#loc6 = loc("/src/old.py":13:51)
#loc7 = loc("/src/old.py":13:28)
#loc8 = loc("/src/old.py":13:4)
#loc24 = loc("at"(#loc1))
"""


def compiled(size: int, beta: float) -> TritonKernel:
    text = FIRST_IR.replace("SIZE", str(size)).replace("HALF", str(size // 2))
    kernel = TritonKernel("", 1000.0, "scale")
    kernel.functions = read(text.replace("BETA", str(beta).replace(".", "_d_")))
    return kernel


@pytest.mark.parametrize(
    ("size", "beta", "said"),
    [
        (128, 1.5, "constexpr SIZE is 128, was 64 (old.py:13)"),
        (64, 2.5, "constexpr BETA is 2.5, was 1.5 (old.py:13)"),
        (128, 2.5, "constexpr BETA is 2.5, was 1.5, SIZE is 128, was 64 (old.py:13)"),
    ],
)
def test_a_constant_is_named_and_has_its_own_value(size: int, beta: float, said: str) -> None:
    causes = differences(compiled(size, beta), compiled(64, 1.5), lambda path: (SOURCE, 900.0))
    assert [cause.words for cause in causes] == [said]


def test_a_kernel_that_is_indented_is_read_like_any_other() -> None:
    """Triton counts columns as if it were not."""
    inside = "def make():\n" + "".join(f"    {line}" if line.strip() else line for line in SOURCE.splitlines(True)[1:])
    causes = differences(compiled(128, 2.5), compiled(64, 1.5), lambda path: (inside, 900.0))
    assert [cause.words for cause in causes] == ["constexpr BETA is 2.5, was 1.5, SIZE is 128, was 64 (old.py:13)"]


def test_names_made_to_take_long_do_not() -> None:
    assert leaves_of("i32__(1," + "_(1," * 24_900) == [None]
    assert len(leaves_of("i32__(1,)c" + "_(1,)c4" * 10_000)) == 10_002


def test_without_the_source_the_value_is_told_as_it_is_written() -> None:
    [cause] = differences(compiled(64, 2.5), compiled(64, 1.5), lambda path: None)
    assert cause.words.startswith("swish is called with the constant 2.5 at old.py:13, was 1.5")


@pytest.mark.parametrize("module", ["__main__", "my__models.old", "old.Layer.__call__.<locals>"])
@pytest.mark.parametrize("helper", ["swish", "swish__of_two", "__swish__", "swish_"])
def test_double_underscores_in_a_name_are_part_of_it(module: str, helper: str) -> None:
    def named(kernel: TritonKernel, text: str) -> TritonKernel:
        kernel.functions = read(text.replace("old.swish__", f"{module}.{helper}__").replace("@scale", "@scale__all"))
        return kernel

    older, newer = (FIRST_IR.replace("SIZE", "64").replace("HALF", "32").replace("BETA", one) for one in ("1", "2"))
    now = named(TritonKernel("", 1000.0, "scale__all"), newer)
    assert now.main is not None
    assert now.main.name == "scale__all"
    assert [(one.callee, one.given) for one in now.main.operations if one.callee or one.given] == [
        (f"{module}.{helper}", "fp32S32S__(1,)cconstexpr_2_")
    ]
    [cause] = differences(now, named(TritonKernel("", 900.0, "scale__all"), older), lambda path: None)
    assert cause.words.startswith(f"{helper} is called with the constant 2 at old.py:13, was 1")
