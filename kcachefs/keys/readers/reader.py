"""`Reader`: how the instances of one class are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Reader:
    """How the instances of one class are read."""

    # The kind of value, in the key.
    label: str
    # Plain data and further objects that make up a value, all of what C keeps of it included.
    read: Callable[[Any], Any]
    # Encoded where it stands and not as a node: two equal values then count alike, whether or not they are one object.
    is_inline: bool = False
    # Attributes are counted beside what was read, or were read already, or are caches and the like. The last holds for
    # classes of libraries only: a subclass in the project may keep anything there.
    attributes: Literal["counted", "read", "noise"] = "counted"
    # Attributes that appear with use.
    noise: frozenset[str] = frozenset()
    # Reads what subclasses written in C add, too.
    covers_subclasses: bool = False
    # Parts by name that count by their content; it also matters whether two of them are one object.
    parts: Callable[[Any], Iterable[tuple[str, Any]]] | None = None


def nothing(_: Any) -> None:
    """For values that hold nothing, or nothing but attributes."""
