"""What a function's key was read from, so that a few microseconds tell whether it would still come out the same."""

from __future__ import annotations

import enum
import operator
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from kcachefs.keys.asking import ask, is_a
from kcachefs.keys.encoding import encode
from kcachefs.keys.libraries import is_library, is_library_class, module_of, top_of
from kcachefs.keys.protocol import protocol_of
from kcachefs.keys.visibility import DESCRIPTORS

MISSING = object()
_ITSELF = object()

_SCALARS = frozenset({type(None), type(...), bool, int, float, complex, str, bytes, range})
_CONTAINERS = frozenset({list, dict, set})
_TRITON_VALUES = frozenset({"constexpr", "dtype"})
# Longer containers are not compared item by item: a key that was read from one is recomputed each time.
_LENGTH_LIMIT = 64


class _Function(NamedTuple):
    """A function's own parts. The values in the mappings were added by name: only names or lengths are compared."""

    function: types.FunctionType
    code: types.CodeType
    defaults: Any
    keyword_defaults: Any
    keyword_default_count: int
    name: str
    qualified_name: str
    documentation: Any
    attributes: dict[str, Any]
    attribute_names: frozenset[str]  # some do not count
    annotations: dict[str, Any] | None
    annotation_count: int


class Dependencies:
    """The places that a key was read from, each with what was found there.

    An object that cannot change in place is compared by identity, a container item by item. An object with a
    `__kcachefs_key__` is compared by what that method returns and by what its class holds. The first object of any
    other kind turns `is_complete` false, and the key has to be recomputed each time.
    """

    __slots__ = (
        *("_annotations", "_cells", "_classes", "_containers", "_functions", "_home", "_own", "_own_cells", "_said"),
        *("_seen", "_slots", "is_complete"),
    )

    def __init__(self, home: str, annotations: bool = True) -> None:
        self.is_complete: bool = True
        self._home = home
        self._annotations = annotations
        self._slots: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self._cells: list[tuple[types.CellType, Any]] = []
        self._functions: list[_Function] = []
        self._own: tuple[Any, ...] | None = None
        # The indexes of the function's cells that hold the function itself.
        self._own_cells: tuple[int, ...] = ()
        self._containers: list[tuple[Any, tuple[Any, ...]]] = []
        self._classes: list[tuple[type, tuple[type, ...], str, dict[str, Any]]] = []
        self._said: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()

    def hold(self, function: Any) -> bool:
        """Whether everything that was read is still the same. Plain loops: this runs with every call of a kernel."""
        for mapping, name, value in self._slots.values():
            if mapping.get(name, MISSING) is not value and (value is not _ITSELF or mapping.get(name) is not function):
                return False
        if self._own is not None and not self._is_unchanged(function, *self._own):
            return False
        for other in self._functions:
            if not self._is_unchanged(*other):
                return False
        for container, items in self._containers:
            if container if not items else not _are_same(_items(container), items):
                return False
        for cell, value in self._cells:
            if cell_value(cell) is not value:
                return False
        for number in self._own_cells:
            if cell_value(function.__closure__[number]) is not function:
                return False
        for cls, order, called, members in self._classes:
            if cls.__mro__ is not order or cls.__qualname__ is not called or not _are_members(vars(cls), members):
                return False
        for value, said in self._said:  # noqa: SIM110
            if not _is_same(_speak(value), said):
                return False
        return True

    def let_go(self, function: Any) -> None:
        """Drop the references to the key's own function, so as not to keep it alive; `hold` takes it as an argument."""
        self._slots = {
            place: (mapping, name, _ITSELF if value is function else value)
            for place, (mapping, name, value) in self._slots.items()
        }
        self._own = next((other[1:] for other in self._functions if other.function is function), None)
        self._functions = [other for other in self._functions if other.function is not function]
        itself = {id(cell) for cell, value in self._cells if value is function}
        cells = enumerate(ask(function, "__closure__") or ())
        own = {id(cell): number for number, cell in cells if id(cell) in itself}
        self._own_cells = tuple(own.values())
        self._cells = [(cell, value) for cell, value in self._cells if id(cell) not in own]

    def add_function(self, function: types.FunctionType) -> None:
        """A function, whose defaults, attributes and annotations are added by name as well."""
        held = function.__dict__
        annotations = annotations_of(function) if self._annotations else None
        self._functions.append(
            _Function(
                function,
                function.__code__,
                function.__defaults__,
                function.__kwdefaults__,
                len(function.__kwdefaults__ or ()),
                function.__name__,
                function.__qualname__,
                function.__doc__,
                held,
                frozenset(held),
                annotations,
                len(annotations or ()),
            )
        )
        self.add_value(function.__defaults__)

    def add_slot(self, mapping: dict[str, Any], name: str, value: object) -> None:
        """What a mapping held under a name."""
        self.add_place(mapping, name, value)
        self.add_value(value)

    def add_place(self, mapping: dict[str, Any], name: str, value: object) -> None:
        """What a mapping held under a name, where only its identity counts."""
        self._slots[id(mapping), name] = (mapping, name, value)

    def add_cell(self, cell: types.CellType, value: object) -> None:
        """What a closure held."""
        self._cells.append((cell, value))
        self.add_value(value)

    def add_class(self, cls: type) -> None:
        """A class of the project, whose functions are added as such."""
        if id(cls) in self._seen:
            return
        self._seen.add(id(cls))
        members = dict(vars(cls))
        self._classes.append((cls, cls.__mro__, cls.__qualname__, members))
        for value in members.values():
            if type(value) in (staticmethod, classmethod):
                self.add_value(value.__func__)
            elif type(value) is property:
                self.add_value((value.fget, value.fset, value.fdel))
            elif type(value) not in DESCRIPTORS:
                self.add_value(value)

    def add_value(self, value: object) -> None:
        """A value that the key depends on."""
        if self.is_complete and not self._is_frozen(value):
            self.is_complete = False

    def _is_unchanged(
        self,
        function: types.FunctionType,
        code: types.CodeType,
        defaults: Any,
        keyword_defaults: Any,
        keyword_default_count: int,
        name: str,
        qualified_name: str,
        documentation: Any,
        attributes: dict[str, Any],
        attribute_names: frozenset[str],
        annotations: dict[str, Any] | None,
        annotation_count: int,
    ) -> bool:
        if (
            function.__code__ is not code
            or function.__defaults__ is not defaults
            or function.__kwdefaults__ is not keyword_defaults
            or (keyword_defaults is not None and len(keyword_defaults) != keyword_default_count)
            or function.__name__ is not name
            or function.__qualname__ is not qualified_name
            or function.__doc__ is not documentation
            or function.__dict__ is not attributes
            or (attributes.keys() != attribute_names if attributes else attribute_names)
        ):
            return False
        if not self._annotations:
            return True
        return annotations_of(function) is annotations and len(annotations or ()) == annotation_count

    def _is_frozen(self, value: Any) -> bool:
        """Whether a value cannot change in place, or a change would be noticed."""
        kind = type(value)
        if kind in _SCALARS or value is MISSING:
            return True
        if kind is tuple or kind is frozenset:
            return all(self._is_frozen(item) for item in value)
        if kind in _CONTAINERS:
            return self._is_watched(value)
        # A function is a node of its own, with its own places here.
        if kind is types.FunctionType:
            return True
        if kind is types.BuiltinFunctionType:
            owner = value.__self__
            return is_a(owner, types.ModuleType) or self._is_frozen(owner)
        if kind in DESCRIPTORS:
            return is_library_class(value.__objclass__, self._home)
        if is_a(value, enum.Enum):
            return is_library_class(kind, self._home)
        if kind is types.ModuleType:
            return is_library(value.__name__, self._home)
        if is_a(value, type):
            return is_library_class(value, self._home)
        if protocol_of(kind) is not None:
            said = _speak(value)
            self._said.append((value, said))
            return self._is_frozen(said)
        top = top_of(module_of(kind))
        if top == "triton" and kind.__name__ in _TRITON_VALUES:
            return self._is_watched(vars(value))
        if top == "triton":
            return is_a(ask(value, "fn"), types.FunctionType)
        return top == "torch" and kind.__name__ == "dtype"

    def _is_watched(self, container: Any) -> bool:
        if id(container) in self._seen:
            return True
        self._seen.add(id(container))
        items = _items(container)
        if len(items) > _LENGTH_LIMIT or not all(self._is_frozen(item) for item in items):
            return False
        self._containers.append((container, items))
        return True


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


def _items(container: Any) -> tuple[Any, ...]:
    return (*container, *container.values()) if type(container) is dict else tuple(container)


def _are_same(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    return len(one) == len(two) and all(map(operator.is_, one, two))


def _are_members(now: Mapping[str, Any], before: dict[str, Any]) -> bool:
    return len(now) == len(before) and all(now.get(name, MISSING) is value for name, value in before.items())


def _speak(value: Any) -> Any:
    method = protocol_of(type(value))
    try:
        return None if method is None else method(value)
    except Exception:  # a value never returned twice: the key is recomputed, which reports the error
        return object()


def _is_same(one: Any, two: Any) -> bool:
    """Whether an object gave the same answer again: the same objects, or equal plain data."""
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if type(one) is tuple:
        return len(one) == len(two) and all(map(_is_same, one, two))
    return type(one) in _SCALARS and encode(one) == encode(two)
