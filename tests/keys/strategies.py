"""Generated plain data, and a comparison that tells apart what Python's `==` does not."""

from __future__ import annotations

import math
import struct
from typing import Any

from hypothesis import strategies as st

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(exclude_categories=[]), max_size=8)
    | st.binary(max_size=8)
)
hashables = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.sets(hashables, max_size=4)
        | st.frozensets(hashables, max_size=4)
    ),
    max_leaves=12,
)


def meaning(value: Any) -> Any:
    """What a value means, for `==`: types apart, NaN equal to itself, -0.0 not equal to 0.0."""
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else struct.pack("<d", value))
    if isinstance(value, complex):
        return ("complex", meaning(value.real), meaning(value.imag))
    if isinstance(value, list | tuple):
        return (type(value).__name__, [meaning(item) for item in value])
    if isinstance(value, set | frozenset):
        return (type(value).__name__, sorted((meaning(item) for item in value), key=repr))
    if isinstance(value, dict):
        return ("dict", sorted(((meaning(key), meaning(item)) for key, item in value.items()), key=repr))
    return (type(value).__name__, value)
