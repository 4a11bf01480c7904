"""The state of an object that decides what it means, or `Unkeyable` where that cannot be read."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import decimal
import enum
import fractions
import functools
import inspect
import logging
import os
import sys
import types
from typing import Any

from blake3 import blake3

from kcachefs.errors import Unkeyable
from kcachefs.keys.projects import project_fingerprint
from kcachefs.keys.references import is_library

DESCRIPTORS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
# What Python adds to a class by itself, and what says nothing about what it does.
_CLASS_NOISE = frozenset(
    {
        *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__hash__", "__firstlineno__"),
        *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__static_attributes__"),
        *("__abstractmethods__", "_abc_impl", "__parameters__", "__orig_bases__", "__slots__"),
        *("__dataclass_fields__", "__dataclass_params__", "__match_args__"),
    }
)
# What an enumeration may say besides its values; all else in it is Python's.
_ENUM_MEMBERS = (types.FunctionType, property, staticmethod, classmethod, functools.cached_property)
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
    inside = _content(value)
    held = _attributes(value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        others = {name: item for name, item in (held or {}).items() if name not in fields}
        beyond = {name: item for name, item in others.items() if not _is_derived(cls, name)}
        return fields if inside is None and not beyond else (fields, inside, beyond)
    if inside is None and held is None:
        raise Unkeyable(
            f"cannot tell what a {cls.__module__}.{cls.__qualname__} means; give its class a __kcachefs_key__ method, "
            "or name the variable in `ignore`"
        )
    return (inside, held)


def class_members(cls: type) -> list[tuple[str, Any]]:
    """What a class says about itself, sorted by name, without what Python generates from that.

    The methods that dataclasses, named tuples and enumerations are given differ from one Python version to the next.
    """
    held = vars(cls)
    names = held.keys() - _CLASS_NOISE
    if issubclass(cls, enum.Enum):
        names = {name for name in names if isinstance(held[name], _ENUM_MEMBERS)}
        members = [(f"member {name}", member.value) for name, member in cls.__members__.items()]
    elif issubclass(cls, tuple) and "_fields" in held:
        members = [("fields", held["_fields"]), ("field defaults", held.get("_field_defaults"))]
        names -= {"_fields", "_field_defaults"}
    elif dataclasses.is_dataclass(cls):
        fields = [
            (field.name, field.default, field.default_factory, field.kw_only) for field in dataclasses.fields(cls)
        ]
        members = [("fields", fields)]
    else:
        members = []
    is_special = bool(members)
    with contextlib.suppress(NameError):  # annotations that are evaluated late may name what is not there
        members.append(("annotations", dict(inspect.get_annotations(cls))))
    members += [(name, held[name]) for name in names if not _is_generated(held[name], is_special)]
    return sorted(members, key=lambda member: member[0])


def _is_generated(member: Any, is_special: bool) -> bool:
    if isinstance(member, DESCRIPTORS) or not is_special:
        return isinstance(member, DESCRIPTORS)
    function = getattr(member, "__func__", member)
    inner = inspect.unwrap(function) if callable(function) else None
    if not isinstance(inner, types.FunctionType):
        return type(member).__name__ == "_tuplegetter"
    module = str(inner.__globals__.get("__name__", ""))
    is_made = inner.__code__.co_qualname.startswith("__create_fn__") or module.startswith("namedtuple_")
    return is_made or is_library(module)


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


def module_content(module: types.ModuleType) -> Any:
    """What stands for all that is in a module: its file, the folders of a namespace package, its parent's file."""
    name: str = module.__name__
    file = getattr(module, "__file__", None)
    folders = [folder for folder in getattr(module, "__path__", ()) if os.path.isdir(folder)]
    if file is None and folders:
        return project_fingerprint(folders)
    while file is None and (name := name.rpartition(".")[0]):
        file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        raise Unkeyable(f"module {module.__name__} has no file to tell it by; name it in `ignore`")
    return file_digest(file)


def file_digest(path: str) -> bytes | None:
    """The digest of a file, or None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return blake3(file.read()).digest()
    except OSError:
        return None


def _is_derived(cls: type, name: str) -> bool:
    """Whether an attribute is what a cached property has found, which is there only after its first use."""
    return isinstance(inspect.getattr_static(cls, name, None), functools.cached_property)


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
