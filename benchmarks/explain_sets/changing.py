"""What a change to a Triton program is, and what an explanation must say of each kernel that it makes new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Line:
    """The line of a file, as the change left it, that holds a text."""

    file: str
    text: str


@dataclass(frozen=True)
class Expected:
    """What must be told first: one of these kinds of cause, in words that hold all of `said` (patterns and lines)."""

    kinds: str
    said: Sequence[str | Line] = ()


@dataclass(frozen=True)
class Change:
    name: str
    what: str
    expected: Mapping[str, Expected]
    """By kernel; "" is every other one."""
    edits: Sequence[tuple[str, str, str]] = ()
    """File, a text in it, and what takes its place."""
    only: Sequence[str] = ()
    """Compile these kernels; all of them if empty."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    """Of arguments by name; "constexpr" makes an argument a constant, "" takes it away."""
    options: Mapping[str, Any] = field(default_factory=dict)
    divisible: Sequence[int] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    arch: int = 90
    version: str | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    without_source: Mapping[str, Expected] | None = None
    """What can be told when the source files cannot be read, where that is less."""


def all_of(kinds: str, *said: str | Line) -> dict[str, Expected]:
    return {"": Expected(kinds, said)}
