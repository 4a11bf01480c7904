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
    if dtype.hasobject:
        raise Unkeyable("a numpy array of records with Python objects in them cannot be read; pass its columns")
    return blake3(value.tobytes()).digest()


READERS: dict[str, Reader] = {
    "numpy.ndarray": Reader("array", _array, is_inline=True),
    "numpy.memmap": Reader("array", _array, is_inline=True, attributes="noise"),
    "numpy.generic": Reader("scalar", _scalar, is_inline=True, covers_subclasses=True),
    "numpy.dtype": Reader("dtype", dtype_name, is_inline=True, attributes="noise", covers_subclasses=True),
}
