"""Facts about objects, kept for as long as the objects live."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class ByIdentity(Generic[Value]):
    """A table by identity that keeps no object alive: an object's entry goes when the object does.

    >>> class Kernel: ...
    >>> stages = ByIdentity[int]()
    >>> kernel = Kernel()
    >>> stages.put(kernel, 3)
    >>> stages.get(kernel), stages.get(Kernel())
    (3, None)
    >>> del kernel
    >>> len(stages)
    0
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, owner: object) -> Value | None:
        known = self._known.get(id(owner))
        return known[1] if known is not None and known[0]() is owner else None

    def put(self, owner: object, value: Value) -> None:
        number = id(owner)
        # The callback is dict.pop: a function of ours might run after its globals are gone, when the interpreter ends.
        # The reference, its last argument, is only the default that `pop` returns.
        self._known[number] = (weakref.ref(owner, partial(self._known.pop, number)), value)
