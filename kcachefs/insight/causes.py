"""Why an entry does not match one that existed before: the kinds of causes, in the order in which they are reported."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """A kind of cause. An earlier one is reported first: the later ones often follow from it."""

    EVICTED = "evicted"
    DAMAGED = "damaged"
    PATH = "path"
    """The same thing, recorded with files at another place."""
    VERSION = "version"
    ARCHITECTURE = "architecture"
    ENVIRONMENT = "environment"
    OPTION = "option"
    TYPE = "type"
    """Types, shapes, or what an argument is specialised for."""
    CONSTANT = "constant"
    SOURCE = "source"
    TEXT = "text"
    """Something that compiles to the same code: a comment, a line number."""
    NEW = "new"
    UNKNOWN = "unknown"


_RANKS = {kind: rank for rank, kind in enumerate(Kind)}


@dataclass(frozen=True, slots=True)
class Cause:
    """One difference, in words."""

    kind: Kind
    words: str
    certain: bool = True
    """Whether the artefacts prove it; otherwise it is likely."""

    @property
    def rank(self) -> int:
        return _RANKS[self.kind]


def in_order(causes: list[Cause]) -> list[Cause]:
    """The most telling cause first; causes of one kind as they were found."""
    return sorted(causes, key=lambda cause: cause.rank)


ADVICE: dict[Kind, str] = {
    Kind.EVICTED: "a larger quota, or `kcachefs pin`, keeps such entries",
    Kind.PATH: "keep the cache and what it names at the same place",
    Kind.VERSION: "one compile per version is normal",
    Kind.ARCHITECTURE: "one compile per kind of GPU is normal",
    Kind.ENVIRONMENT: "use the same environment and settings in every process",
    Kind.TEXT: "comments and line numbers of a kernel are part of Triton's key",
}
"""Advice on a cause, for the kinds where it is worth a line."""


def clipped(value: object, limit: int = 80) -> str:
    """A value as part of a sentence."""
    text = "unset" if value is None else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
