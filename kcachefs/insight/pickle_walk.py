"""Reads what a pickle describes without unpickling it: its opcodes are walked as data; nothing is imported or called.

Strings, numbers, lists, dicts and tuples become themselves. An object becomes a `Described`: the name of its class, the
arguments it would be called with, and its state.
"""

from __future__ import annotations

import pickletools
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from kcachefs.errors import ArtefactGarbled

_OPCODES_MAX = 600_000
_STATE_ITEMS_MAX = 600_000
"""The limit on attributes of all objects together."""
_SIZE_MAX = 256 << 20
_BYTES_KEPT = 4096
"""Longer byte strings are code or weights, which nobody compares: only their length is kept."""
_BITS_MAX = 64
_DIGITS_KEPT = 100


@dataclass(slots=True, eq=False)
class Described:
    """An object that unpickling would make."""

    name: str
    """Module and class."""
    args: Any = None
    state: dict[Any, Any] = field(default_factory=dict)

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]


def read(data: bytes) -> Any:
    """The data that the pickle describes; `ArtefactGarbled` if it is not a pickle, or takes too long to read."""
    if len(data) > _SIZE_MAX:
        raise ArtefactGarbled(f"it is too large to read ({len(data)} bytes)")
    walk = _Walk()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about accidental escapes in strings
            return _walked(walk, data)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, MemoryError, struct.error) as error:
        raise ArtefactGarbled(f"it is not a pickle that can be read ({type(error).__name__})") from None


def _walked(walk: _Walk, data: bytes) -> Any:
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if number > _OPCODES_MAX:
            raise ArtefactGarbled("it has too many opcodes")
        if opcode.name == "STOP":
            return walk.stack[-1]
        walk.step(opcode.name, argument)
    raise ArtefactGarbled("it is a pickle without an end")


_MARK: Final = object()
_VALUES = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    )
)
_BYTES = frozenset(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"))
_SINGLES: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NOTHING = frozenset(("PROTO", "FRAME", "READONLY_BUFFER"))


class _Walk:
    """The stack and the memo of an unpickler that creates no objects."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._items_left = _STATE_ITEMS_MAX

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(_value(argument))
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._memo[int(argument)])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[int(argument)] = stack[-1]
        elif name in _SINGLES:
            stack.append(_SINGLES[name])
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in _BYTES:
            stack.append(bytes(argument) if len(argument) <= _BYTES_KEPT else len(argument))
        elif name not in _NOTHING:
            _STEPS[name](self, argument)

    def from_mark(self) -> list[Any]:
        at = self._marks.pop()
        items = self.stack[at:]
        del self.stack[at:]
        return items

    def push_tuple(self, size: int) -> None:
        items = tuple(self.stack[-size:])
        if len(items) != size:
            raise ValueError(size)
        del self.stack[-size:]
        self.stack.append(items)

    def push_dict(self, items: list[Any]) -> None:
        self.stack.append({})
        self.set_items(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        state = target.state if isinstance(target, Described) else target
        if isinstance(state, dict):
            for key, value in zip(items[::2], items[1::2], strict=False):
                state[_key(key)] = value

    def extend(self, items: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(items)

    def push_class(self, module: Any, name: Any) -> None:
        # Printing anything but a text may take forever: a tuple may contain itself many times over.
        known = isinstance(module, str) and isinstance(name, str)
        self.stack.append(Described(f"{module}.{name}"[:500] if known else "?"))

    def push_object(self, parts: int) -> None:
        """An object: its class lies below its arguments on the stack."""
        args = self.stack.pop() if parts == 1 else (self.stack.pop(-2), self.stack.pop())
        made = self.stack.pop()
        self.stack.append(Described(made.name if isinstance(made, Described) else "?", args))

    def build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Described):
            # Two parts at most, as pickle has them: a dict, and the values of slots.
            for part in state[:2] if isinstance(state, tuple) else (state,):
                if isinstance(part, dict):
                    self._items_left -= len(part)  # one dict may be the state of many objects, or repeatedly of one
                    if self._items_left < 0:
                        raise ArtefactGarbled("its objects have too many attributes")
                    target.state.update(part)
                elif part is not None:
                    target.state.setdefault("", part)

    def pop(self) -> None:
        if self._marks and self._marks[-1] == len(self.stack):
            self._marks.pop()
        else:
            self.stack.pop()

    def old_object(self) -> None:
        """An object of protocol 0: class and arguments lie above a mark."""
        first, *args = self.from_mark()
        self.stack.append(Described(first.name if isinstance(first, Described) else "?", tuple(args)))


_STEPS: dict[str, Callable[[_Walk, Any], Any]] = {
    "EMPTY_LIST": lambda walk, _: walk.stack.append([]),
    "EMPTY_SET": lambda walk, _: walk.stack.append([]),
    "EMPTY_DICT": lambda walk, _: walk.stack.append({}),
    "EMPTY_TUPLE": lambda walk, _: walk.stack.append(()),
    "TUPLE1": lambda walk, _: walk.push_tuple(1),
    "TUPLE2": lambda walk, _: walk.push_tuple(2),
    "TUPLE3": lambda walk, _: walk.push_tuple(3),
    "TUPLE": lambda walk, _: walk.stack.append(tuple(walk.from_mark())),
    "LIST": lambda walk, _: walk.stack.append(walk.from_mark()),
    "FROZENSET": lambda walk, _: walk.stack.append(walk.from_mark()),
    "DICT": lambda walk, _: walk.push_dict(walk.from_mark()),
    "APPEND": lambda walk, _: walk.extend([walk.stack.pop()]),
    "APPENDS": lambda walk, _: walk.extend(walk.from_mark()),
    "ADDITEMS": lambda walk, _: walk.extend(walk.from_mark()),
    "SETITEM": lambda walk, _: walk.set_items([walk.stack.pop(-2), walk.stack.pop()]),
    "SETITEMS": lambda walk, _: walk.set_items(walk.from_mark()),
    "GLOBAL": lambda walk, argument: walk.push_class(*_value(argument).split(" ", 1)),
    "STACK_GLOBAL": lambda walk, _: walk.push_class(walk.stack.pop(-2), walk.stack.pop()),
    "REDUCE": lambda walk, _: walk.push_object(1),
    "NEWOBJ": lambda walk, _: walk.push_object(1),
    "NEWOBJ_EX": lambda walk, _: walk.push_object(2),
    "OBJ": lambda walk, _: walk.old_object(),
    "INST": lambda walk, argument: walk.stack.append(Described(_value(argument)[:500], tuple(walk.from_mark()))),
    "BUILD": lambda walk, _: walk.build(),
    "POP": lambda walk, _: walk.pop(),
    "POP_MARK": lambda walk, _: walk.from_mark(),
    "DUP": lambda walk, _: walk.stack.append(walk.stack[-1]),
    "PERSID": lambda walk, _: walk.stack.append(Described("persistent")),
    "BINPERSID": lambda walk, _: walk.stack.append(Described("persistent", walk.stack.pop())),
    "NEXT_BUFFER": lambda walk, _: walk.stack.append(Described("buffer")),
}


def _value(value: Any) -> Any:
    """A number or a text that can be written out: no half characters, no numbers of thousands of digits."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return hex(value)[:_DIGITS_KEPT] if isinstance(value, int) and value.bit_length() > _BITS_MAX else value


def _key(key: Any) -> Any:
    """A key that is quick to hash: a tuple that contains itself many times over would take forever."""
    return key if isinstance(key, str | int | float | bytes | None) else object()
