"""The kernels in kernels/ with the arguments that they are compiled for before anything changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FILES = ("pieces.py", "rows.py", "tiles.py")
HALF, SINGLE = "*fp16", "*fp32"


@dataclass(frozen=True)
class Call:
    """A kernel compiled for certain arguments, as a program would launch it."""

    kernel: str
    module: str
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    divisible: Sequence[int] = ()


def _gemm(bm: int, bn: int, bk: int, warps: int, stages: int) -> Call:
    return Call(
        "gemm",
        "tiles",
        {**dict.fromkeys("abc", HALF), **dict.fromkeys(("m", "n", "k", "stride_a", "stride_b", "stride_c"), "i32")},
        {"BM": bm, "BN": bn, "BK": bk, "GROUP": 8, "PRECISION": "tf32"},
        {"num_warps": warps, "num_stages": stages},
        (0, 1, 2, 6, 7, 8),
    )


BASE = (
    Call(
        "layer_norm",
        "rows",
        {"x": HALF, "weight": HALF, "y": HALF, "width": "i32"},
        {"bias": None, "WIDTH": 1024, "AFFINE": True, "ACT": "swish"},
        {"num_warps": 4},
        (0, 1, 3, 4),
    ),
    Call(
        "layer_norm",
        "rows",
        {"x": HALF, "weight": HALF, "y": HALF, "width": "i32"},
        {"bias": None, "WIDTH": 4096, "AFFINE": True, "ACT": "swish"},
        {"num_warps": 8},
        (0, 1, 3, 4),
    ),
    Call(
        "rotate",
        "rows",
        {"q": HALF, "cos": SINGLE, "sin": SINGLE, "heads": "i32"},
        {"HEAD": 64, "HEADS": 8, "INTERLEAVED": False},
        {},
        (0, 1, 2),
    ),
    Call(
        "quantize",
        "rows",
        {"x": HALF, "scales": SINGLE, "codes": "*i8", "n": "i32"},
        {"GROUP": 128, "TO": "int8"},
        {},
        (0, 1, 2, 3),
    ),
    Call(
        "drop",
        "rows",
        {"x": HALF, "y": HALF, "n": "i32", "seed": "i32", "chance": "fp32"},
        {"BLOCK": 512},
        {},
        (0, 1, 2),
    ),
    _gemm(64, 64, 32, 4, 3),
    _gemm(128, 64, 32, 4, 4),
    _gemm(64, 128, 64, 8, 3),
    Call("pool", "tiles", {"x": SINGLE, "y": SINGLE, "length": "i32"}, {"TAPS": 3, "BLOCK": 256}, {}, (0, 1, 2)),
    Call("tally", "tiles", {"x": "*i32", "counts": "*i32", "n": "i32"}, {"BINS": 64, "BLOCK": 256}, {}, (0, 1, 2)),
)
