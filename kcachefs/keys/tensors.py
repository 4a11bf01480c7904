"""Keys of tensor arguments as a kernel sees them: shapes, element types, strides or layout, constants, padding."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kcachefs.errors import KcachefsError, Unkeyable, UsageError
from kcachefs.keys.asking import ask, is_a, unreadable
from kcachefs.keys.cache_key import Dim, dimension
from kcachefs.keys.dtypes import dtype_name
from kcachefs.keys.encoding import digest, encode
from kcachefs.keys.functions import hash_value


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its data. Strides are in elements and default to those of a row-major tensor.

    A dimension is a size, a `Dim` or a symbol's name. `jagged_dim` is the index of a dimension whose size differs from
    one item to the next; such a dimension has a name and no size.

    >>> TensorSpec(["batch", 128], "torch.float16").dtype
    'float16'
    """

    shape: Sequence[int | str | Dim]
    dtype: Any
    strides: Sequence[int | str | Dim] | None = None
    layout: str | None = None
    padding: Any = None
    jagged_dim: int | None = None

    def __post_init__(self) -> None:
        shape = tuple(dimension(size) for size in self.shape)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        if self.strides is not None:
            object.__setattr__(self, "strides", tuple(_stride(step) for step in self.strides))
            if len(self.strides) != len(shape):
                raise UsageError(
                    f"a tensor of {len(shape)} dimensions has {len(self.strides)} strides; give one for each"
                )
        if self.jagged_dim is not None:
            if not -len(shape) <= self.jagged_dim < len(shape):
                raise UsageError(
                    f"jagged_dim is {self.jagged_dim} for a tensor of {len(shape)} dimensions; give one's index"
                )
            object.__setattr__(self, "jagged_dim", self.jagged_dim % len(shape))
            if isinstance(shape[self.jagged_dim], int):
                raise UsageError(f"dimension {self.jagged_dim} is jagged, so it has no single size; give it a name")


def hash_tensor_signature(*tensors: Any, constexprs: Mapping[str, Any] | None = None) -> str:
    """The key of a kernel's arguments: `TensorSpec`s or tensors of torch or numpy, and compile-time constants.

    >>> a = TensorSpec((8, 16), "float32", padding=0.0)
    >>> hash_tensor_signature(a) == hash_tensor_signature(TensorSpec([8, 16], "fp32", strides=(16, 1), padding=0.0))
    True
    >>> hash_tensor_signature(a) == hash_tensor_signature(TensorSpec((8, 16), "float32", padding=-0.0))
    False
    """
    said = [_signature(tensor if is_a(tensor, TensorSpec) else _spec_of(tensor)) for tensor in tensors]
    for name in constexprs or {}:
        if not isinstance(name, str):
            raise UsageError(f"{name!r} is not the name of a constant; pass the parameter's name as text")
    constants = sorted((name, hash_value(value)) for name, value in (constexprs or {}).items())
    return digest("tensors", encode((said, constants))).hex()


def _signature(spec: TensorSpec) -> tuple[Any, ...]:
    shape = tuple(_fields(size) for size in spec.shape)
    strides = None if spec.strides is None else tuple(_fields(step) for step in spec.strides)
    steps = "row-major" if strides is None or strides == _row_major(shape) else strides
    return (shape, spec.dtype, steps, spec.layout, hash_value(spec.padding), spec.jagged_dim)


def _spec_of(tensor: Any) -> TensorSpec:
    try:
        return _spec(tensor)
    except (KcachefsError, MemoryError):
        raise
    except Exception as error:
        raise unreadable(tensor, error, "pass a plain tensor or a TensorSpec") from error


def _spec(tensor: Any) -> TensorSpec:
    """The description of a torch tensor or numpy array, without its data."""
    if ask(tensor, "is_nested"):
        return _jagged(tensor)
    try:
        sizes, dtype = tuple(tensor.shape), tensor.dtype
    except (AttributeError, TypeError, LookupError):
        kind = type(tensor).__qualname__
        raise Unkeyable(f"a {kind} is not a tensor; pass one of torch or numpy, or a TensorSpec") from None
    layout = _layout(tensor)
    shape = tuple(_size(size) for size in sizes)
    if callable(getattr(tensor, "stride", None)):
        return TensorSpec(shape, dtype, None if layout else tuple(_size(step) for step in tensor.stride()), layout)
    steps = getattr(tensor, "strides", None)
    if steps is None:
        return TensorSpec(shape, dtype, layout=layout)
    # numpy counts strides in bytes. A stride that is not a multiple of the element size belongs to a view into records.
    if any(step % tensor.itemsize for step in steps):
        return TensorSpec(shape, dtype, layout=f"strides of {tuple(steps)} bytes")
    return TensorSpec(shape, dtype, tuple(int(step) // tensor.itemsize for step in steps))


def _layout(tensor: Any) -> str | None:
    """What a kernel has to know about a tensor besides its strides; None for a plain strided tensor."""
    layout = str(getattr(tensor, "layout", "torch.strided"))
    told = [] if layout == "torch.strided" else [layout]
    # The memory of such a tensor holds the conjugate, or the negative, of the tensor's values.
    told += [bit for bit in ("is_conj", "is_neg") if getattr(tensor, bit, bool)()]
    return " ".join(told) or None


def _jagged(tensor: Any) -> TensorSpec:
    index = getattr(tensor, "_ragged_idx", None)
    if index is None:
        raise Unkeyable("a strided nested tensor has no single shape; pass one of jagged layout or a TensorSpec")
    shape = tuple(Dim("jagged") if at == index else _size(size) for at, size in enumerate(tensor.shape))
    return TensorSpec(shape, tensor.dtype, layout=_layout(tensor), jagged_dim=index)


def _size(size: Any) -> int:
    if type(size) is not int:
        raise Unkeyable(f"{size} is a symbolic size; pass a TensorSpec with a Dim in its place")
    return size


def _stride(step: int | str | Dim) -> int | Dim:
    """A stride, which may be negative where a size may not."""
    return dimension(step) if isinstance(step, str | Dim) else operator.index(step)


def _fields(size: Any) -> Any:
    return size.fields() if isinstance(size, Dim) else size


def _row_major(shape: tuple[Any, ...]) -> tuple[int, ...] | None:
    if not all(isinstance(size, int) for size in shape):
        return None
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
