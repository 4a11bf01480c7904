"""Asks foreign values for their attributes: answering runs other people's code, which may raise anything.

A dictionary whose `__getattr__` is `__getitem__` raises KeyError for a missing attribute, and a proxy raises whatever
happened on the other side. Where a value may well lack an attribute, an attribute that raises counts as missing: `ask`,
`is_a`. Where the answer is part of the key, an error means that there is no key: `unreadable`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, TypeGuard, TypeVar, overload

from kcachefs.errors import KcachefsError, Unkeyable, describe

T = TypeVar("T")

OF_THE_PROCESS = (RecursionError, MemoryError)
"""Errors that depend on how deeply a value was nested, or how much memory is left: a key must not depend on either."""
PASSED_ON = (*OF_THE_PROCESS, KcachefsError, OSError)
"""Errors that say well enough by themselves why there is no key."""


def ask(value: Any, name: str, default: Any = None) -> Any:
    """An attribute of a value, or `default` where it has none."""
    try:
        return getattr(value, name, default)
    except OF_THE_PROCESS:
        raise
    except Exception:
        return default


@overload
def is_a(value: object, kinds: type[T]) -> TypeGuard[T]: ...


@overload
def is_a(value: object, kinds: Any) -> bool: ...


def is_a(value: object, kinds: Any) -> bool:
    """Whether a value is of a class, by its type or by the class it claims."""
    try:
        return isinstance(value, kinds)
    except OF_THE_PROCESS:
        raise
    except Exception:
        return False


def dictionary_of(value: object) -> Mapping[str, Any]:
    """The `__dict__` of a value, such as a module; empty where it has none."""
    held = ask(value, "__dict__")
    return held if is_a(held, dict | types.MappingProxyType) else {}


def unreadable(value: object, error: Exception, advice: str = "") -> Unkeyable:
    """The error that says `value` has no key because reading it raised `error`."""
    try:
        said = describe(error)
    except Exception:  # the exception's own code may raise too
        said = ""
    kind = type(error).__name__
    reason = kind if said in ("", kind) else f"{kind}: {said}"
    advice = advice or "give the class a __kcachefs_key__ method, or name the variable in `ignore`"
    return Unkeyable(f"{full_name(type(value))} cannot be read: it raised {reason}; {advice}")


def full_name(cls: type) -> str:
    """The module and the name of a class, whatever its metaclass says."""
    module = _MODULE.__get__(cls)
    name: str = _QUALIFIED_NAME.__get__(cls)
    return f"{module}.{name}" if type(module) is str else name


_MODULE: Any = vars(type)["__module__"]
_QUALIFIED_NAME: Any = vars(type)["__qualname__"]
