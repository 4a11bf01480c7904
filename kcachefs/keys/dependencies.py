"""What a function's key was read from, so that a microsecond tells whether it would still come out the same."""

from __future__ import annotations

import enum
import sys
import types
from typing import Any

from kcachefs.errors import Unkeyable
from kcachefs.keys.encoding import encode
from kcachefs.keys.libraries import is_library, top_of
from kcachefs.keys.protocol import protocol_of

MISSING = object()

_SCALARS = frozenset({type(None), type(...), bool, int, float, complex, str, bytes, range})
_CONTAINERS = frozenset({list, dict, set})
_TRITON_VALUES = frozenset({"constexpr", "dtype"})
# Plain containers of up to this many bytes are compared by content; larger ones make the key be read again each time.
_CONTENT_LIMIT = 512


class Dependencies:
    """The places that a key was read from, each with what was found there.

    An object that cannot change in place is compared by identity, a small container of plain data by content, and one
    that speaks for itself by what it says. With the first object that is none of these, `is_complete` turns false, and
    the key has to be made anew each time.
    """

    __slots__ = (
        *("_annotations", "_contents", "_functions", "_home", "_mappings", "_said", "cells", "is_complete", "slots"),
    )

    def __init__(self, home: str, annotations: bool = True) -> None:
        self._home = home
        self._annotations = annotations
        self.is_complete = True
        self.slots: list[tuple[dict[str, Any], str, Any]] = []
        self.cells: list[tuple[types.CellType, Any]] = []
        self._functions: list[tuple[types.FunctionType, tuple[Any, ...]]] = []
        self._mappings: list[tuple[dict[str, Any], int]] = []
        self._contents: list[tuple[Any, bytes]] = []
        self._said: list[tuple[Any, Any]] = []

    def hold(self) -> bool:
        """Whether everything that was read is still the same."""
        for mapping, name, value in self.slots:
            if mapping.get(name, MISSING) is not value:
                return False
        for function, parts in self._functions:
            for now, before in zip(self._parts(function), parts, strict=True):
                if now is not before:
                    return False
        for mapping, length in self._mappings:
            if len(mapping) != length:
                return False
        for container, content in self._contents:
            if _content(container) != content:
                return False
        if not all(cell_value(cell) is value for cell, value in self.cells):
            return False
        return all(_is_same(_speak(value), said) for value, said in self._said)

    def add_function(self, function: types.FunctionType) -> None:
        """A function's own parts; what they hold is added as slots."""
        self._functions.append((function, self._parts(function)))
        self.add_value(function.__defaults__)

    def add_mapping(self, mapping: dict[str, Any]) -> None:
        """A mapping all of whose names count; each is added as a slot too, so its length tells the rest."""
        self._mappings.append((mapping, len(mapping)))

    def add_slot(self, mapping: dict[str, Any], name: str, value: object) -> None:
        self.slots.append((mapping, name, value))
        self.add_value(value)

    def add_cell(self, cell: types.CellType, value: object) -> None:
        self.cells.append((cell, value))
        self.add_value(value)

    def add_value(self, value: object) -> None:
        """A value that the key depends on."""
        if not self.is_complete or self._is_frozen(value):
            return
        content = _content(value) if type(value) in _CONTAINERS else None
        if content is None:
            self.is_complete = False
        else:
            self._contents.append((value, content))

    def _parts(self, function: types.FunctionType) -> tuple[Any, ...]:
        return (
            function.__code__,
            function.__defaults__,
            function.__kwdefaults__,
            function.__dict__,
            function.__name__,
            function.__qualname__,
            annotations_of(function) if self._annotations else None,
        )

    def _is_frozen(self, value: Any) -> bool:
        kind = type(value)
        if kind in _SCALARS or value is MISSING:
            return True
        if kind is tuple:
            return all(self._is_frozen(item) for item in value)
        if kind is frozenset:
            return all(type(item) in _SCALARS for item in value)
        # A function is a node of its own, with its own places here.
        if kind is types.FunctionType or kind is types.BuiltinFunctionType:
            return True
        if isinstance(value, enum.Enum):
            return is_library(kind.__module__, self._home)
        if kind is types.ModuleType:
            return is_library(value.__name__, self._home)
        if isinstance(value, type):
            return is_library(value.__module__, self._home)
        if protocol_of(kind) is not None:
            said = _speak(value)
            self._said.append((value, said))
            return self._is_frozen(said)
        top = top_of(kind.__module__)
        if top == "triton":
            return kind.__name__ in _TRITON_VALUES or isinstance(getattr(value, "fn", None), types.FunctionType)
        return top == "torch" and kind.__name__ == "dtype"


def cell_value(cell: types.CellType) -> Any:
    """What a closure cell holds, or MISSING where it is still empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def annotations_of(function: types.FunctionType) -> dict[str, Any] | None:
    """The annotations of a function; None where they name what is not defined yet, which Python 3.14 allows."""
    try:
        return function.__annotations__
    except NameError:
        return None


def _speak(value: Any) -> Any:
    method = protocol_of(type(value))
    return None if method is None else method(value)


def _is_same(one: Any, two: Any) -> bool:
    """Whether an object has said the same again: the same objects, or equal plain data."""
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if type(one) is tuple:
        return len(one) == len(two) and all(map(_is_same, one, two))
    return type(one) in _SCALARS and encode(one) == encode(two)


def _content(container: Any) -> bytes | None:
    if sys.getsizeof(container) > _CONTENT_LIMIT:
        return None
    try:
        content = encode(container)
    except (Unkeyable, RecursionError):
        return None
    return content if len(content) <= _CONTENT_LIMIT else None
