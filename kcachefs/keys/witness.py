"""What a key was made of, so that it can be told in a microsecond whether the key would still come out the same."""

from __future__ import annotations

import enum
import types
from typing import Any

from kcachefs.keys.references import is_library, top_of

MISSING = object()

_SCALARS = frozenset({type(None), type(...), bool, int, float, complex, str, bytes, range})
_TRITON_VALUES = frozenset({"constexpr", "dtype"})


class Witness:
    """The places a key was read from, each with the object that was there.

    That is enough only while every such object is one that cannot change in place; the first that can makes the witness
    unusable, and the key is made anew each time.
    """

    __slots__ = ("_home", "cells", "functions", "slots", "usable")

    def __init__(self, home: str) -> None:
        self._home = home
        self.usable = True
        self.functions: list[tuple[types.FunctionType, types.CodeType, Any, str, str]] = []
        self.slots: list[tuple[dict[str, Any], str, Any]] = []
        self.cells: list[tuple[types.CellType, Any]] = []

    def holds(self) -> bool:
        """Whether everything seen is still the same object in the same place."""
        for mapping, name, value in self.slots:
            if mapping.get(name, MISSING) is not value:
                return False
        for function, code, defaults, name, qualname in self.functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__name__ is not name or function.__qualname__ is not qualname:
                return False
        return all(content(cell) is value for cell, value in self.cells)

    def saw_slot(self, mapping: dict[str, Any], name: str, value: object) -> None:
        self.slots.append((mapping, name, value))
        self.saw(value)

    def saw_cell(self, cell: types.CellType, value: object) -> None:
        self.cells.append((cell, value))
        self.saw(value)

    def saw(self, value: object) -> None:
        """A value that the key depends on."""
        if self.usable and not self._is_frozen(value):
            self.usable = False

    def _is_frozen(self, value: Any) -> bool:
        kind = type(value)
        if kind in _SCALARS or value is MISSING:
            return True
        if kind is tuple:
            return all(self._is_frozen(item) for item in value)
        if kind is frozenset:
            return all(type(item) in _SCALARS for item in value)
        # A function is a node of its own, with places of its own in this witness.
        if kind is types.FunctionType or kind is types.BuiltinFunctionType:
            return True
        if isinstance(value, enum.Enum):
            return is_library(kind.__module__, self._home)
        if kind is types.ModuleType:
            return is_library(value.__name__, self._home)
        if isinstance(value, type):
            return is_library(value.__module__, self._home)
        top = top_of(kind.__module__)
        if top == "triton":
            return kind.__name__ in _TRITON_VALUES or isinstance(getattr(value, "fn", None), types.FunctionType)
        return top == "torch" and kind.__name__ == "dtype"


def content(cell: types.CellType) -> Any:
    """What a closure cell holds, or MISSING where it is still empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING
