"""Walks whole object graphs, such as functions with all that they refer to, to any depth and through cycles.

Whatever can refer to something else becomes a numbered node. A value mentions a node by its number, and nodes are
encoded one after another in the order of their first mention. So depth costs no stack, a cycle ends at a number, and
numbers are the same in every process because the order of mention is: names are sorted, cells come in order.

`kinds` knows how each kind of value is encoded; this file only knows how to go on from one to the next. Whatever
cannot be read raises `Unkeyable` with the path that led to it. No `id()`, and no `repr` with an address, is ever
encoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kcachefs.errors import Unkeyable
from kcachefs.keys.asking import PASSED_ON, unreadable
from kcachefs.keys.dependencies import MISSING, Dependencies
from kcachefs.keys.encoding import digest, tagged, write

_Outer = Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class Rules:
    """What counts in a walk."""

    # The package that is followed though it may be installed.
    home: str = ""
    # Globals, closure variables, attributes of functions and imported modules that are left out.
    ignore: frozenset[str] = frozenset()
    annotations: bool = True


class Kinds(Protocol):
    """How the kinds of values are encoded."""

    def write_inline(self, walk: Walk, value: Any, out: list[bytes]) -> bool:
        """Encode a value that is not a node; false, and nothing written, if it is one."""

    def write_node(self, walk: Walk, node: Any, out: list[bytes]) -> None:
        """Encode a node."""


class Walk:
    """One walk over a graph."""

    def __init__(
        self,
        kinds: Kinds,
        rules: Rules,
        path: tuple[str, ...] = (),
        outer: _Outer | None = None,
        dependencies: Dependencies | None = None,
        held: Mapping[int, int] | None = None,
    ) -> None:
        self.rules = rules
        self.dependencies: Dependencies = dependencies or Dependencies(rules.home, rules.annotations)
        self._kinds = kinds
        self._outer: _Outer = outer or {}
        self._numbers: dict[int, int] = {}
        self._held: dict[int, int] = dict(held or {})
        self._pending: deque[tuple[Any, tuple[str, ...]]] = deque()
        self._alive: list[Any] = []
        self._path = path

    def digest(self, kind: str, root: object) -> bytes:
        """The digest of `root` and of everything it refers to."""
        out: list[bytes] = []
        node = root
        try:
            write(root, out, self)
            while self._pending:
                node, self._path = self._pending.popleft()
                self._kinds.write_node(self, node, out)
        except Unkeyable as error:
            if not self._path or error.path:
                raise
            raise Unkeyable(str(error), self._path) from error.__cause__
        except PASSED_ON:
            raise
        except Exception as error:  # whatever reads a value may run the code of its class, and of its metaclass
            raise Unkeyable(str(unreadable(node, error)), self._path) from error
        return digest(kind, *out)

    def write(self, value: Any, out: list[bytes]) -> None:
        """Append the encoding of a value that is not plain data."""
        number = self._numbers.get(id(value))
        if number is not None:
            out.append(_number(number))
        elif not self._kinds.write_inline(self, value, out):
            self._mention(value, out)

    def alone(self) -> _Members:
        return _Members(self)

    def member(self, value: Any) -> bytes:
        """A member of an unordered container: by the number it has already, or by a walk of its own."""
        if id(value) in self._numbers:
            return _number(self._numbers[id(value)])
        inner = {**self._outer, **{key: b"%d:%d" % (len(self._outer), n) for key, n in self._numbers.items()}}
        # What the member was read from counts for the whole.
        walk = Walk(self._kinds, self.rules, self._path, inner, self.dependencies, self._held)
        return tagged(b"D", walk.digest("member", value))

    # --- for those that encode a kind --------------------------------------------------------------------------------

    @property
    def is_at_root(self) -> bool:
        """Whether nothing with a name led here: the value itself, or an item of a container that it is."""
        return not self._path

    def fields(self, label: str, values: tuple[Any, ...], out: list[bytes]) -> None:
        """A label and values: how a node begins."""
        out.append(tagged(b"O", label.encode()))
        write(values, out, self)

    def named(self, label: str, name: str, value: Any, out: list[bytes]) -> None:
        """A value under a name, which is one step of the path to whatever cannot be read in it."""
        if not isinstance(name, str):
            raise Unkeyable(f"{name!r} is used as a name and is not text; name it with a str, or use `ignore`")
        out.append(tagged(b"L", f"{label}\0{name}".encode("utf-8", "surrogatepass")))
        if value is MISSING:
            out.append(b"U")
            return
        before, self._path = self._path, (*self._path, f"{label} {name!r}")
        write(value, out, self)
        self._path = before

    def slot(self, label: str, mapping: dict[str, Any], name: str, out: list[bytes]) -> None:
        """What a mapping holds under a name now, and what the key depends on from now on."""
        value = mapping.get(name, MISSING)
        self.dependencies.add_slot(mapping, name, value)
        self.named(label, name, value, out)

    def part(self, name: str, value: Any, out: list[bytes]) -> None:
        """A part of a node, already written by its content: notes if it is the same object as an earlier part."""
        if id(value) in self._numbers or id(value) in self._outer:  # it is a node, and its number tells
            return
        first = self._held.setdefault(id(value), number := len(self._held))
        if first != number:
            self.named("shared", name, first, out)

    def _mention(self, value: Any, out: list[bytes]) -> None:
        if (known := self._outer.get(id(value))) is not None:
            out.append(tagged(b"W", known))
            return
        number = self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        self._pending.append((value, self._path))
        out.append(_number(number))


class _Members:
    """Encodes the members of an unordered container so that the order they are met in does not show."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk

    def write(self, value: Any, out: list[bytes]) -> None:
        out.append(self._walk.member(value))

    def alone(self) -> _Members:
        return self


def _number(number: int) -> bytes:
    return tagged(b"N", number.to_bytes(4, "little"))
