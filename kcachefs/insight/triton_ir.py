"""Reads the first IR of a Triton kernel, the text in its .source or .ttir file: arguments, operations and their places.

Reads only what an explanation needs; a line that is not understood is kept as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_LINES_MAX = 200_000
_LINE_MAX = 100_000
_DEPTH_MAX = 20
_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_PLACE = re.compile(r'"([^"]+)":(\d+):(\d+)')
_FUNCTION = re.compile(r"^\s*tt\.func (?:(public|private) )?@(\"[^\"]*\"|[^\s(]+)\(")
_VALUE = re.compile(r"%[\w#.$-]+")
_ALIASED = re.compile(r"#loc\d*")
_NAMED = re.compile(r'^"([^"]*)"\(')
_CALL = re.compile(r"tt\.call @(\"[^\"]*\"|[^\s(]+)\(")
_DIVISIBLE = re.compile(r"tt\.divisibility = (\d{1,9})")
_DOTTED = re.compile(r"[\w.<>]*")
_SEPARATOR = re.compile(r"(?=__)")
_GIVEN = re.compile(
    r"(?:P|T|TD|MD){0,9}(?:(?:c?(?:[iu]|fp|bf)\d)|c(?:[-\d(<{\"A-Z]|_sq_|_[-\d(]))|TT|V(?:_|$)|__\(|_NW\d|$"
)
"""How the list of specialisations may begin: a type, a constant, Triton 3.6's list of constants, or nothing."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a source file; line 0 where it is not known."""

    file: str = ""
    line: int = 0
    column: int = 0
    of_operand: bool = False
    """Up to 3.7, Triton records where the last operand begins, and counts columns from 0; later versions record where
    the whole expression begins, and count from 1."""


NOWHERE = Place()


@dataclass(slots=True)
class Operation:
    text: str
    """The text without value names and places; for a call, also without the function's specialisation."""
    place: Place
    name: str = ""
    """The source's name for the result, if it has one."""
    callee: str = ""
    given: str = ""
    """For a call: the types and constants for which its function was specialised, as Triton spells them."""


@dataclass(frozen=True, slots=True)
class Argument:
    type: str
    divisible: int | None
    """Every value or address is a multiple of this."""


@dataclass(slots=True)
class Function:
    name: str
    public: bool
    place: Place
    arguments: dict[str, Argument]
    given: str = ""
    operations: list[Operation] = field(default_factory=list)


def read(text: str) -> list[Function]:
    """The functions in the order of the text; the public one is the kernel itself."""
    lines = text.splitlines()[:_LINES_MAX]
    places = _Places(lines)
    functions: list[Function] = []
    open_regions: list[Operation | Function] = []
    for line in lines:
        if line.startswith("#") or len(line) > _LINE_MAX:
            continue
        head = _FUNCTION.match(line)
        if head:
            functions.append(_function(head, line, places))
            open_regions = [functions[-1]]
            continue
        stripped = line.strip()
        if not stripped or stripped.startswith(("module", "//")) or not functions:
            continue
        body, where = _split_location(stripped)
        if stripped.startswith("}"):
            _close(open_regions, places.find(where), stripped)
            continue
        operation = _operation(body, places.find(where), places.name_of(where))
        functions[-1].operations.append(operation)
        if body.endswith("{"):
            open_regions.append(operation)
    return functions


def lines_with_places(text: str) -> Iterator[tuple[str, Place]]:
    """The lines of the text with their places taken out, each paired with its place; definitions of places are
    skipped."""
    lines = text.splitlines()[:_LINES_MAX]
    places = _Places(lines)
    for line in lines:
        if not line.startswith("#loc") and len(line) <= _LINE_MAX:
            shown, where = _split_location(line)
            yield shown, places.find(where) if where else NOWHERE


def _close(open_regions: list[Operation | Function], place: Place, line: str) -> None:
    """The place of an operation with a region is written behind the region. `} else {` closes none."""
    if open_regions and not line.endswith("{"):
        ended = open_regions.pop()
        if place.line:
            ended.place = place


def _operation(body: str, place: Place, name: str) -> Operation:
    call = _CALL.search(body)
    if call is None:
        return Operation(_VALUE.sub("%", body), place, name)
    callee, given = _specialised(call[1].strip('"'))
    text = _VALUE.sub("%", body.replace(call[1], callee, 1))
    return Operation(text, place, name, callee, given)


def _function(head: re.Match[str], line: str, places: _Places) -> Function:
    inner, end = _arguments_text(line, head.end())
    arguments: dict[str, Argument] = {}
    where = ""
    for part in _split(inner):
        written, place = _split_location(part.strip())
        name, _, rest = written.partition(":")
        divisible = _DIVISIBLE.search(rest)
        kind = rest.partition("{")[0].strip()
        arguments[name.strip().lstrip("%")] = Argument(kind, int(divisible[1]) if divisible else None)
        where = where or place
    is_public, name, given = head[1] != "private", head[2].strip('"'), ""
    if not is_public:  # the kernel itself keeps its name from the source
        name, given = _specialised(name)
    _, own = _split_location(line[end:].strip())
    return Function(name, is_public, places.find(own or where), arguments, given)


def _specialised(mangled: str) -> tuple[str, str]:
    """A function's dotted name, which may contain double underscores itself, and its specialisation.

    >>> _specialised("__main__.my__helper__fp32S128S_c0.5"), _specialised("m.Pair.__add____i32"), _specialised("m.f__")
    (('__main__.my__helper', 'fp32S128S_c0.5'), ('m.Pair.__add__', 'i32'), ('m.f', ''))
    """
    dotted = _DOTTED.match(mangled)
    name_end = dotted.end() if dotted else 0
    possible = [
        found.start()
        for found in _SEPARATOR.finditer(mangled)
        if 0 < found.start() <= name_end
        and mangled[found.start() - 1] != "."
        and not mangled.startswith(".", found.start() + 2)
    ]
    at = next((one for one in possible if _GIVEN.match(mangled, one + 2)), possible[0] if possible else len(mangled))
    return mangled[:at], mangled[at + 2 :]


def _arguments_text(line: str, start: int) -> tuple[str, int]:
    """The text between the parenthesis before `start` and the one that closes it."""
    depth, quoted = 1, False
    for at in range(start, len(line)):
        one = line[at]
        if one == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif one == "(":
            depth += 1
        elif one == ")":
            depth -= 1
            if not depth:
                return line[start:at], at + 1
    return line[start:], len(line)


def _split(text: str) -> list[str]:
    """The parts between the commas outside brackets and strings."""
    parts, depth, quoted, start = [], 0, False, 0
    for at, one in enumerate(text):
        if one == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif one in "(<{[":
            depth += 1
        elif one in ")>}]":
            depth -= one != ">" or text[at - 1] != "-"
        elif one == "," and not depth:
            parts.append(text[start:at])
            start = at + 1
    return [part for part in (*parts, text[start:]) if part.strip()]


def _split_location(text: str) -> tuple[str, str]:
    """An operation without its place, and the text in the place's parentheses."""
    at = text.rfind(" loc(")
    if at < 0 or not text.endswith(")"):
        return text, ""
    # A place may contain another one: loc(callsite(… at …)) has no " loc(" inside, so the last match is the outer one.
    return text[:at].rstrip(), text[at + 5 : -1]


class _Places:
    """Places by the aliases that MLIR writes for them."""

    def __init__(self, lines: list[str]) -> None:
        self._aliases = {found[1]: found[2] for line in lines if (found := _ALIAS.match(line[:_LINE_MAX]))}
        self._known: dict[str, Place] = {}
        # The kernel's own place is the beginning of its line; where columns are counted from 1, none is 0.
        self._of_operands = any((found := _PLACE.search(text)) and found[3] == "0" for text in self._aliases.values())

    def find(self, location: str) -> Place:
        if location not in self._known:
            self._known[location] = self._resolve(location)
        return self._known[location]

    def name_of(self, location: str) -> str:
        """The name in the source for the value made there."""
        named = _NAMED.match(self._aliases.get(location, location))
        return named[1] if named else ""

    def _resolve(self, location: str) -> Place:
        for _ in range(_DEPTH_MAX):
            found = _PLACE.search(location)
            if found:
                return Place(found[1], int(found[2][:9]), int(found[3][:9]), self._of_operands)
            alias = _ALIASED.search(location)  # in a call site the callee comes first: the operation is there
            if alias is None or alias[0] not in self._aliases:
                return NOWHERE
            location = self._aliases[alias[0]]
        return NOWHERE
