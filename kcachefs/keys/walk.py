"""Walks whole object graphs, such as functions with everything they refer to, to any depth and through cycles.

Anything that can refer to something else becomes a numbered node. A value mentions a node by its number, and nodes are
encoded one after another in the order of their first mention. So depth costs no stack and a cycle ends at a number. The
numbers are the same in every process because the order of mention is: names are sorted, cells come in order.

`kinds` knows how each kind of value is encoded; this file only knows how to get from one value to the next. A value
that cannot be read raises `Unkeyable` with the path that led to it. No `id()`, and no `repr` with an address, is ever
encoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from kcachefs.errors import Unkeyable
from kcachefs.keys.asking import PASSED_ON, unreadable
from kcachefs.keys.dependencies import MISSING, Dependencies
from kcachefs.keys.encoding import digest, tagged, write

_Outer = Mapping[int, bytes]
# How often members may be walked again because they were met in different surroundings: without a limit, sets that
# refer to each other in both directions would take for ever.
_AGAIN_LIMIT = 10_000
_SURROUNDINGS_LIMIT = 16


@dataclass(frozen=True, slots=True)
class Rules:
    """What counts in a walk."""

    # The package that is followed even if it is installed.
    home: str = ""
    # Globals, closure variables, attributes of functions and imported modules that are left out.
    ignore: frozenset[str] = frozenset()
    annotations: bool = True


class Kinds(Protocol):
    """How the kinds of values are encoded."""

    def write_inline(self, walk: Walk, value: Any, out: list[bytes]) -> bool:
        """Encode a value that is not a node; for a node, write nothing and return false."""

    def write_node(self, walk: Walk, node: Any, out: list[bytes]) -> None:
        """Encode a node."""


class _Known(NamedTuple):
    """The digest of a member of an unordered container, and the surroundings in which the digest is valid."""

    digest: bytes
    depth: int | None
    """How many nodes there must be outside; None if the digest does not depend on that number."""
    mentioned: dict[int, bytes]
    """The outside nodes that the member mentions, each with the label under which it does."""
    own: frozenset[int]
    """The nodes that must not be outside, because the member contains them itself."""

    def holds(self, outer: _Outer) -> bool:
        if self.depth is not None and self.depth != len(outer):
            return False
        return all(outer.get(node) == label for node, label in self.mentioned.items()) and self.own.isdisjoint(outer)


class _Memory:
    """Known digests of unordered containers' members, during one walk with all the walks inside it."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, bool], list[_Known]] = {}
        self.alive: list[Any] = []
        self._again = 0

    def recall(self, value: Any, is_at_root: bool, outer: _Outer) -> _Known | None:
        seen = self.known.get((id(value), is_at_root))
        if seen is None:
            return None
        found = next((known for known in seen if known.holds(outer)), None)
        if found is None:
            self._again += 1
            if self._again > _AGAIN_LIMIT:
                raise Unkeyable(
                    "sets of objects refer to each other in too many ways to be read; use lists, or give the class of "
                    "their members a __kcachefs_key__ method"
                )
        return found

    def learn(self, value: Any, is_at_root: bool, alive: list[Any], known: _Known | None) -> None:
        self.alive += (value, alive)  # so that no other object gets their ids
        seen = self.known.setdefault((id(value), is_at_root), [])
        if known is not None and len(seen) < _SURROUNDINGS_LIMIT:
            seen.append(known)


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
        memory: _Memory | None = None,
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
        # The state besides the root that the digest depends on.
        self._memory = memory or _Memory()
        self._mentioned: dict[int, bytes] = {}
        self._inner: set[int] = set()
        self._shows_depth = False
        self._has_parts = False

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
        except Exception as error:  # reading a value may run the code of its class, and of its metaclass
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
        """A member of an unordered container: by its number if it has one already, or by a walk of its own.

        Sets of objects that contain sets in turn lead to one object in many ways. So a digest is reused wherever
        nothing outside would change it.
        """
        if id(value) in self._numbers:
            return _number(self._numbers[id(value)])
        inner = {**self._outer, **{key: b"%d:%d" % (len(self._outer), n) for key, n in self._numbers.items()}}
        known = self._memory.recall(value, self.is_at_root, inner)
        if known is None:
            # Whatever the member was read from counts for the whole key.
            walk = Walk(self._kinds, self.rules, self._path, inner, self.dependencies, self._held, self._memory)
            told = walk.digest("member", value)
            depth = len(inner) if walk._shows_depth else None
            known = _Known(told, depth, walk._mentioned, frozenset(walk._inner.union(walk._numbers)))
            self._has_parts = self._has_parts or walk._has_parts
            self._memory.learn(value, self.is_at_root, walk._alive, None if walk._has_parts else known)
        self._inner |= known.own
        for node, label in known.mentioned.items():
            if node in self._outer:
                self._mentioned[node] = label
            else:  # a node of this walk: its label holds the number of nodes outside
                self._shows_depth = True
        self._shows_depth = self._shows_depth or known.depth is not None
        return tagged(b"D", known.digest)

    # --- for the encoders of each kind -----------------------------------------------------------------------------

    @property
    def is_at_root(self) -> bool:
        """Whether no named step led here: this is the root itself, or an item of a container that is the root."""
        return not self._path

    def fields(self, label: str, values: tuple[Any, ...], out: list[bytes]) -> None:
        """A label and values: the beginning of a node."""
        out.append(tagged(b"O", label.encode()))
        write(values, out, self)

    def named(self, label: str, name: str, value: Any, out: list[bytes]) -> None:
        """A value under a name; the name becomes one step of the path in an error about the value."""
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
        """The value that a mapping holds under a name now, on which the key depends from now on."""
        value = mapping.get(name, MISSING)
        self.dependencies.add_slot(mapping, name, value)
        self.named(label, name, value, out)

    def part(self, name: str, value: Any, out: list[bytes]) -> None:
        """A part of a node whose content is already written: notes if it is the same object as an earlier part."""
        self._has_parts = True
        if id(value) in self._numbers or id(value) in self._outer:  # it is a node, and its number identifies it
            return
        first = self._held.setdefault(id(value), number := len(self._held))
        if first != number:
            self.named("shared", name, first, out)

    def _mention(self, value: Any, out: list[bytes]) -> None:
        if (known := self._outer.get(id(value))) is not None:
            self._mentioned[id(value)] = known
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
