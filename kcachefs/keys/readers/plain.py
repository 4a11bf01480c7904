"""Subclasses of Python's containers, numbers and text, read as the base class would, however they print or iterate."""

from __future__ import annotations

import collections
from typing import Any

from kcachefs.keys.readers.reader import Reader


def _default_dict(value: Any) -> Any:
    return (value.default_factory, dict(dict.items(value)))


def _deque(value: Any) -> Any:
    return (list(collections.deque.__iter__(value)), value.maxlen)


def _struct_sequence(value: Any) -> Any:
    return value.__reduce__()[1]


READERS: dict[type, Reader] = {
    collections.OrderedDict: Reader("ordered dict", lambda value: list(collections.OrderedDict.items(value))),
    collections.defaultdict: Reader("default dict", _default_dict),
    collections.deque: Reader("deque", _deque),
    tuple: Reader("tuple", lambda value: tuple(tuple.__iter__(value))),
    list: Reader("list", lambda value: list(list.__iter__(value))),
    dict: Reader("dict", lambda value: dict(dict.items(value))),
    set: Reader("set", lambda value: set(set.__iter__(value))),
    frozenset: Reader("frozenset", lambda value: frozenset(frozenset.__iter__(value))),
    int: Reader("int", int.__int__),
    float: Reader("float", float.__float__),
    complex: Reader("complex", complex.__complex__),
    str: Reader("str", str.__str__),
    bytes: Reader("bytes", lambda value: bytes(memoryview(value))),
    bytearray: Reader("bytearray", lambda value: bytearray(memoryview(value))),
}

# A tuple with more fields behind its items, such as `os.stat_result`.
STRUCT_SEQUENCE = Reader("struct sequence", _struct_sequence)
