"""Arrays, scalars and element types of numpy. Imports it only where it is imported already."""

from __future__ import annotations

import sys
from typing import Any

from blake3 import blake3

from kcachefs.errors import Unkeyable
from kcachefs.keys.asking import ask, dictionary_of
from kcachefs.keys.dtypes import dtype_name
from kcachefs.keys.libraries import version_of
from kcachefs.keys.readers.reader import Reader
from kcachefs.keys.visibility import is_written_in_c


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
    if dtype.names is not None:  # field by field: the gaps between them may hold anything
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


def _as_written_in_c(value: Any, name: str) -> Any:
    """An attribute as the class in C has it, whatever a subclass puts in its place."""
    cls = next(base for base in type(value).__mro__ if is_written_in_c(base))
    return getattr(cls, name).__get__(value, cls)


def _bits(value: Any) -> Any:
    """The state, and the seed sequence that generators spawned from this one come from."""
    return (_as_written_in_c(value, "state"), ask(value, "seed_seq", ask(value, "_seed_seq")))


def _legacy_random(value: Any) -> Any:
    return sys.modules["numpy"].random.RandomState.get_state(value, legacy=False)


def _ufunc(value: Any) -> Any:
    """A function of scipy that works element by element; those of numpy are found under its name."""
    name = value.__name__
    for home in ("scipy.special", "scipy.special._ufuncs"):
        if dictionary_of(sys.modules.get(home)).get(name) is value:
            return (home, name, version_of(home))
    raise Unkeyable(
        f"the ufunc {name} does not show what it computes; pass the function that it was made from, or name "
        "the variable in `ignore`"
    )


_BIT_GENERATORS = ("_mt19937.MT19937", "_pcg64.PCG64", "_pcg64.PCG64DXSM", "_philox.Philox", "_sfc64.SFC64")

READERS: dict[str, Reader] = {
    "numpy.ndarray": Reader("array", _array, is_inline=True),
    "numpy.memmap": Reader("array", _array, is_inline=True, attributes="noise"),
    "numpy.generic": Reader("scalar", _scalar, is_inline=True, covers_subclasses=True),
    # By name as well: Python's own str and bytes come before numpy's classes among their bases.
    **{f"numpy.{name}": Reader("scalar", _scalar, is_inline=True) for name in ("str_", "bytes_")},
    "numpy.ufunc": Reader("ufunc", _ufunc, attributes="noise"),
    "numpy.dtype": Reader("dtype", dtype_name, is_inline=True, attributes="noise", covers_subclasses=True),
    **{f"numpy.random.{name}": Reader("bit generator", _bits) for name in _BIT_GENERATORS},
    "numpy.random._generator.Generator": Reader(
        "random generator", lambda value: _as_written_in_c(value, "bit_generator")
    ),
    "numpy.random.mtrand.RandomState": Reader("legacy random generator", _legacy_random),
    "numpy.random.bit_generator.SeedSequence": Reader("seed sequence", lambda value: _as_written_in_c(value, "state")),
}
