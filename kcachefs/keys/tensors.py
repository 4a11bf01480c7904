"""Keys of tensor arguments as a kernel sees them: shapes, element types, strides or layout, constants, padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kcachefs.errors import Unkeyable
from kcachefs.keys.cache_key import Dim
from kcachefs.keys.dtypes import dtype_name
from kcachefs.keys.encoding import digest, encode
from kcachefs.keys.functions import hash_value


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its data. Strides count in elements and default to a row-major tensor's."""

    shape: Sequence[int | str | Dim]
    dtype: Any
    strides: Sequence[int | str | Dim] | None = None
    layout: str | None = None
    padding: Any = None


def hash_tensor_signature(*tensors: Any, constexprs: Mapping[str, Any] | None = None) -> str:
    """The key of a kernel's arguments: `TensorSpec`s or tensors of torch or numpy, and compile-time constants.

    >>> a = TensorSpec((8, 16), "float32", padding=0.0)
    >>> hash_tensor_signature(a) == hash_tensor_signature(TensorSpec([8, 16], "fp32", strides=(16, 1), padding=0.0))
    True
    >>> hash_tensor_signature(a) == hash_tensor_signature(TensorSpec((8, 16), "float32", padding=-0.0))
    False
    """
    said = [_signature(tensor) for tensor in tensors]
    constants = sorted((name, hash_value(value)) for name, value in (constexprs or {}).items())
    return digest("tensors", encode((said, constants))).hex()


def _signature(tensor: Any) -> tuple[Any, ...]:
    if isinstance(tensor, TensorSpec):
        shape = tuple(_size(size) for size in tensor.shape)
        strides = None if tensor.strides is None else tuple(_size(size) for size in tensor.strides)
        layout, padding, dtype = tensor.layout, tensor.padding, tensor.dtype
    else:
        shape, dtype, strides, layout = _of_array(tensor)
        padding = None
    steps = "row-major" if strides is None or strides == _row_major(shape) else strides
    return (shape, dtype_name(dtype), steps, layout, hash_value(padding))


def _of_array(tensor: Any) -> tuple[Any, ...]:
    try:
        shape, dtype = tuple(int(size) for size in tensor.shape), tensor.dtype
    except (AttributeError, TypeError):
        kind = type(tensor).__qualname__
        raise Unkeyable(f"a {kind} is no tensor; pass one of torch or numpy, or a TensorSpec") from None
    layout = getattr(tensor, "layout", None)
    named = None if layout is None or str(layout) == "torch.strided" else str(layout)
    if callable(getattr(tensor, "stride", None)):
        return shape, dtype, tuple(int(step) for step in tensor.stride()) if named is None else None, named
    steps = getattr(tensor, "strides", None)
    if steps is None:
        return shape, dtype, None, named
    # numpy counts strides in bytes. One that is no multiple of the element size belongs to a view into records.
    size = tensor.itemsize
    if any(step % size for step in steps):
        return shape, dtype, tuple(("bytes", int(step)) for step in steps), named
    return shape, dtype, tuple(int(step) // size for step in steps), named


def _size(size: int | str | Dim) -> Any:
    if isinstance(size, Dim):
        return size.fields()
    return Dim(size).fields() if isinstance(size, str) else int(size)


def _row_major(shape: tuple[Any, ...]) -> tuple[int, ...] | None:
    if not all(isinstance(size, int) for size in shape):
        return None
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
