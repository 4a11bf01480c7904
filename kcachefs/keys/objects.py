"""The state of an object that decides what it means, or `Unkeyable` where that cannot be read."""

from __future__ import annotations

import collections
import dataclasses
import decimal
import fractions
import logging
import sys
from typing import Any

from blake3 import blake3

from kcachefs.errors import Unkeyable
from kcachefs.keys.references import is_library

_CONTAINERS = (tuple, list, dict, set, frozenset, int, float, complex, str, bytes, bytearray)


def state(value: Any) -> Any:
    """Plain data and further objects that make up `value`.

    An object may speak for itself with `__kcachefs_key__`, which returns whatever its meaning depends on.
    """
    cls = type(value)
    said = getattr(cls, "__kcachefs_key__", None)
    if said is not None:
        return said(value)
    if cls is object:
        return None
    if isinstance(value, decimal.Decimal | fractions.Fraction):
        return str(value)
    if isinstance(value, logging.Logger):
        return value.name
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    inside = _content(value)
    held = _attributes(value)
    if inside is None and held is None:
        raise Unkeyable(
            f"cannot tell what a {cls.__module__}.{cls.__qualname__} means; give its class a __kcachefs_key__ method, "
            "or name the variable in `ignore`"
        )
    return (inside, held)


def library_name(value: Any) -> tuple[str, str] | None:
    """The module and name of an object that a library offers under that name, like `numpy.add`."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if type(name) is not str:
        return None
    for module_name in (getattr(value, "__module__", None), type(value).__module__):
        module = sys.modules.get(module_name) if isinstance(module_name, str) else None
        if module is not None and getattr(module, name, None) is value and is_library(module.__name__):
            return module.__name__, name
    return None


def file_digest(path: str) -> bytes | None:
    """The digest of a file, or None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return blake3(file.read()).digest()
    except OSError:
        return None


def _content(value: Any) -> Any:
    if isinstance(value, collections.OrderedDict):
        return list(value.items())
    if isinstance(value, collections.defaultdict):
        return (value.default_factory, dict(value))
    if isinstance(value, collections.deque):
        return (list(value), value.maxlen)
    for base in _CONTAINERS:
        if isinstance(value, base):
            # By the base's own reading, since a subclass may print or iterate as it likes.
            return _COPIES[base](value)
    return None


_COPIES: dict[type, Any] = {
    tuple: lambda value: tuple(tuple.__iter__(value)),
    list: lambda value: list(list.__iter__(value)),
    dict: lambda value: dict(dict.items(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    int: int.__int__,
    float: float.__float__,
    complex: complex,
    str: str.__str__,
    bytes: lambda value: bytes(memoryview(value)),
    bytearray: lambda value: bytearray(memoryview(value)),
}


def _attributes(value: Any) -> dict[str, Any] | None:
    """The instance's dictionary and slots together; None for an object with neither: its state is out of sight."""
    found = False
    held: dict[str, Any] = {}
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__")
        if slots is None:
            continue
        found = True
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name in ("__dict__", "__weakref__"):
                continue
            full = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            if hasattr(value, full):
                held[full] = getattr(value, full)
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        found = True
        held.update(own)
    return held if found else None
