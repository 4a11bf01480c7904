"""`__kcachefs_key__`: lets the objects of any class say what they mean in a key.

    class Tensor:
        def __kcachefs_key__(self):
            return (self.ndim, self.shape, self.dtype)

The method's result takes the place of the object's attributes: plain data, or anything else that has a key. The class
itself counts too. The method is looked up on the class, so another library's class can be given one:
`theirs.Tensor.__kcachefs_key__ = lambda self: (self.ndim, self.shape, self.dtype)`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from kcachefs.keys.asking import is_a

NAME = "__kcachefs_key__"


def protocol_of(cls: type) -> Callable[[Any], Any] | None:
    """The method by which the instances of a class say what they mean."""
    for base in cls.__mro__:
        if NAME in vars(base):
            method = vars(base)[NAME]
            return method if method is None or is_a(method, FunctionType) else _bound(method)
    return None


def _bound(method: Any) -> Callable[[Any], Any]:
    """A class method, a partial method or any other descriptor, as Python would call it."""

    def speak(value: Any) -> Any:
        return method.__get__(value, type(value))() if hasattr(type(method), "__get__") else method(value)

    return speak
