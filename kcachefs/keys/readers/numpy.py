"""Arrays, scalars and element types of numpy. Imports it only where it is imported already."""

from __future__ import annotations

import sys
from typing import Any

from blake3 import blake3

from kcachefs.errors import Unkeyable
from kcachefs.keys.dtypes import dtype_name
from kcachefs.keys.readers.reader import Reader


def _array(value: Any) -> Any:
    # As a plain array: a subclass may show other bytes than it holds, as a masked array does.
    ndarray = sys.modules["numpy"].ndarray
    plain = ndarray.view(value, ndarray)
    return (dtype_name(plain.dtype), plain.shape, plain.strides, _elements(plain))


def _scalar(value: Any) -> Any:
    return (dtype_name(value.dtype), _elements(value))


def _elements(value: Any) -> Any:
    dtype = value.dtype
    if dtype.kind == "O" or dtype.kind == "T":  # the bytes of these are addresses
        return value.flatten().tolist()
    if dtype.names is not None:  # field by field: nobody says what is in the gaps between them
        return [_elements(value[name]) for name in dtype.names]
    if dtype.hasobject:
        raise Unkeyable(f"a numpy array of {dtype} cannot be read; pass a list of its items")
    content = value.tobytes()
    return blake3(_without_gaps(content) if dtype.char in "gG" else content).digest()


def _without_gaps(content: bytes) -> bytes:
    """The bytes of long doubles, of which ten count on x86 and the others hold whatever was there."""
    numpy = sys.modules["numpy"]
    if numpy.finfo(numpy.longdouble).nmant != 63:
        return content
    width = numpy.dtype(numpy.longdouble).itemsize
    return bytes(numpy.frombuffer(content, "u1").reshape(-1, width)[:, :10])


READERS: dict[str, Reader] = {
    "numpy.ndarray": Reader("array", _array, is_inline=True),
    "numpy.memmap": Reader("array", _array, is_inline=True, attributes="noise"),
    "numpy.generic": Reader("scalar", _scalar, is_inline=True, covers_subclasses=True),
    # By name as well: Python's own str and bytes come before numpy's classes among their bases.
    **{f"numpy.{name}": Reader("scalar", _scalar, is_inline=True) for name in ("str_", "bytes_")},
    "numpy.dtype": Reader("dtype", dtype_name, is_inline=True, attributes="noise", covers_subclasses=True),
}
