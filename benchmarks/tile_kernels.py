"""A small kernel language of the kind of ninetoothed: an arrangement tiles tensors, an application is written on tiles.

What matters here is how such a `make` is called: with two functions and fresh tensors each time, no two of which have
the same name; and that it puts what it arranged into the annotations of the application, and so changes its argument.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from benchmarks import kernels


class Tensor:
    """A tensor of a number of dimensions, cut into tiles or not."""

    def __init__(self, ndim: int, dtype: str = "float", tile: tuple[int, ...] | None = None) -> None:
        self.ndim = ndim
        self.dtype = dtype
        self.tiles = tile
        self.name = f"tensor_{id(self)}"

    def tile(self, shape: tuple[int, ...]) -> Tensor:
        return Tensor(self.ndim, self.dtype, shape)

    def __kcachefs_key__(self) -> Any:
        """Everything but the name, which differs from one to the next without meaning anything."""
        return (self.ndim, self.dtype, self.tiles)


BLOCK = 128


def arrangement(x: Tensor, y: Tensor, out: Tensor) -> tuple[Tensor, ...]:
    return x.tile((BLOCK,)), y.tile((BLOCK,)), out.tile((BLOCK,))


def application(x, y, out):  # type: ignore[no-untyped-def]
    out = x + y  # noqa: F841


def tensors() -> tuple[Tensor, ...]:
    return tuple(Tensor(1) for _ in range(3))


def make(arrangement: Callable[..., Any], application: Callable[..., Any], tensors: tuple[Tensor, ...]) -> Any:
    """Compile an application to a kernel for the arranged tensors."""
    from cuda.core import Program

    names = list(inspect.signature(application).parameters)
    application.__annotations__ = dict(zip(names, arrangement(*tensors), strict=True))
    return Program(_source(application), "c++", options=kernels.options()).compile("cubin")


def _source(application: Callable[..., Any]) -> str:
    arranged = application.__annotations__
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(application))).body
    assert isinstance(function, ast.FunctionDef)
    arguments = ", ".join(f"{tensor.dtype} *{name}" for name, tensor in arranged.items())
    body = "".join(_statement(one, arranged.keys()) for one in function.body if isinstance(one, ast.Assign))
    width = next(iter(arranged.values())).tiles[0]
    index = f"int i = blockIdx.x * {width} + threadIdx.x;"
    return f'extern "C" __global__ void {function.name}({arguments}, int n) {{ {index} if (i < n) {{ {body} }} }}'


def _statement(assignment: ast.Assign, names: Any) -> str:
    for node in ast.walk(assignment):
        if isinstance(node, ast.Name) and node.id in names:
            node.id += "[i]"
    return ast.unparse(assignment) + ";"
