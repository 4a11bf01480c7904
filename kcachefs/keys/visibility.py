"""Whether all of an object's state can be listed from Python.

An instance of a class made by a `class` statement holds what is in its `__dict__` and its `__slots__`, and nothing
else. A class written in C holds whatever its author put into its struct, and its Python subclasses inherit that. Sizes
prove which case applies: a class statement adds one pointer for each slot and at most two for `__dict__` and
`__weakref__`.
"""

from __future__ import annotations

import types
from typing import Any

from kcachefs.keys.asking import ask
from kcachefs.keys.by_identity import ByIdentity

_POINTER = object.__basicsize__ // 2
_HEAP_TYPE = 1 << 9
# Python puts these into a class by itself.
_POINTERS_OF_PYTHON = frozenset({"__dict__", "__weakref__"})

DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)


class _Plain:
    pass


_known = ByIdentity[bool]()


def is_visible(cls: type) -> bool:
    """Whether `cls` itself adds no state to its instances beyond `__dict__` and `__slots__`."""
    known = _known.get(cls)
    if known is not None:
        return known
    answer = not _hides_dictionary(cls) and (_adds_nothing(cls) or _is_made_by_class_statement(cls))
    _known.put(cls, answer)
    return answer


def is_made_in_c(member: object, cls: type) -> bool:
    """Whether `member` is a method or an attribute that `cls` itself defines in C, slots included."""
    # The type is checked directly: `isinstance` would ask members of any kind for their `__class__`.
    return issubclass(type(member), DESCRIPTORS) and ask(member, "__objclass__") is cls


def is_written_in_c(cls: type) -> bool:
    """Whether the class itself was made by C code, not by a `class` statement."""
    if not cls.__flags__ & _HEAP_TYPE or ask(vars(cls).get("__new__"), "__self__") is cls:
        return True
    return any(
        is_made_in_c(member, cls) and not issubclass(type(member), types.MemberDescriptorType)
        for name, member in vars(cls).items()
        if name not in _POINTERS_OF_PYTHON
    )


def attributes(value: Any, until: type = object) -> dict[str, Any]:
    """The values in an object's `__dict__`, and in the slots of its classes up to `until`, in their order.

    A slot whose name is already taken, by an earlier class or in the `__dict__`, is named after its class.
    """
    cls = type(value)
    held: dict[str, Any] = dict(object.__getattribute__(value, "__dict__")) if _has_dictionary(cls) else {}
    for base in cls.__mro__[: cls.__mro__.index(until)]:
        for name, member in vars(base).items():
            if issubclass(type(member), types.MemberDescriptorType) and is_made_in_c(member, base):
                try:
                    held[f"{base.__qualname__}.{name}" if name in held else name] = member.__get__(value, cls)
                except AttributeError:  # a slot that holds nothing
                    continue
    return held


def _has_dictionary(cls: type) -> bool:
    return any("__dict__" in vars(base) for base in cls.__mro__)


def _hides_dictionary(cls: type) -> bool:
    """Whether the class replaces the true `__dict__` with something of its own."""
    return not issubclass(type(vars(cls).get("__dict__", vars(_Plain)["__dict__"])), types.GetSetDescriptorType)


def _adds_nothing(cls: type) -> bool:
    base = cls.__base__ or cls
    return (cls.__basicsize__, cls.__itemsize__) == (base.__basicsize__, base.__itemsize__)


def _is_made_by_class_statement(cls: type) -> bool:
    base = cls.__base__
    if base is None or is_written_in_c(cls) or cls.__itemsize__ != base.__itemsize__:
        return False
    pointers = len(_POINTERS_OF_PYTHON & vars(cls).keys())
    slots = sum(
        issubclass(type(member), types.MemberDescriptorType) and is_made_in_c(member, cls)
        for member in vars(cls).values()
    )
    added = cls.__basicsize__ - base.__basicsize__ - slots * _POINTER
    return added % _POINTER == 0 and 0 <= added <= pointers * _POINTER
