"""Functions and values whose keys are pinned in golden.json. Their text is part of their keys: do not reformat them."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SCALE = 4


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


@dataclass(frozen=True)
class Tile:
    m: int
    n: int


def helper(x: float) -> float:
    return x * SCALE


def kernel(x: float, *, mode: Mode = Mode.FAST) -> float:
    if mode is Mode.EXACT:
        return math.sqrt(helper(x))
    return helper(x)


def twin(x: float, *, mode: Mode = Mode.FAST) -> float:
    if mode is Mode.EXACT:
        return math.sqrt(helper(x))
    return helper(x)


def even(n: int) -> bool:
    return n == 0 or odd(n - 1)


def odd(n: int) -> bool:
    return n != 0 and even(n - 1)


def make(tile: Tile) -> Callable[[int], int]:
    def inner(x: int) -> int:
        return x * tile.m + tile.n

    return inner


def functions() -> dict[str, Callable[..., Any]]:
    return {
        "helper": helper,
        "kernel": kernel,
        "twin": twin,
        "recursive": even,
        "closure": make(Tile(2, 3)),
        "other closure": make(Tile(3, 2)),
        "partial": functools.partial(kernel, 2.0, mode=Mode.EXACT),
        "builtin": math.sqrt,
    }


def values() -> dict[str, Any]:
    return {
        "none": None,
        "numbers": [0, 1, -1, 2**70, True, 1.0, -0.0, float("nan"), 1j],
        "text": ["", "a", "ü", "\0", b"", b"a"],
        "containers": {"b": (1, [2]), "a": {3, 1, 2}, 1: frozenset("xyz")},
        "dataclass": Tile(128, 64),
        "enum": Mode.EXACT,
        "set of functions": {helper, even, math.sqrt},
    }
