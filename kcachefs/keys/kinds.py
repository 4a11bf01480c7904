"""How each kind of value is encoded, and which writer or reader encodes it."""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from kcachefs.errors import Unkeyable
from kcachefs.keys import sources
from kcachefs.keys.asking import PASSED_ON, ask, full_name, is_a, unreadable
from kcachefs.keys.callables import extension_of, write_builtin, write_extension, write_function, write_triton
from kcachefs.keys.classes import type_name, watch_class, write_class
from kcachefs.keys.dependencies import MISSING
from kcachefs.keys.encoding import encode, tagged, write
from kcachefs.keys.libraries import is_library_class, library_name, module_of, top_of, version_of
from kcachefs.keys.modules import write_module
from kcachefs.keys.protocol import NAME, protocol_of
from kcachefs.keys.readers import Knowledge, knowledge_of
from kcachefs.keys.readers.reader import Reader
from kcachefs.keys.visibility import DESCRIPTORS, attributes, is_written_in_c
from kcachefs.keys.walk import Walk

_Writer = Callable[[Walk, Any, list[bytes]], None]
_WRITERS: dict[type, _Writer] = {
    types.FunctionType: write_function,
    types.BuiltinFunctionType: write_builtin,
    types.MethodWrapperType: write_builtin,
    types.ModuleType: write_module,
    type: write_class,
}


def write_inline(walk: Walk, value: Any, out: list[bytes]) -> bool:
    """Encode values that are not nodes: enumeration members, `typing` types, values a reader turns into plain data."""
    cls = type(value)
    if protocol_of(cls) is not None:
        return False
    if issubclass(cls, enum.Enum):
        _write_member(walk, value, out)
    elif cls is types.CodeType:
        out.append(tagged(b"C", encode((sys.implementation.cache_tag, sources.shape(value)))))
    elif is_a(value, types.GenericAlias | types.UnionType) or _is_generic(value):
        _write_generic(walk, value, out)
    else:
        return _write_plain(value, out)
    return True


def write_node(walk: Walk, node: Any, out: list[bytes]) -> None:
    """Encode a node: a value that may refer to others, or to itself."""
    cls = type(node)
    if (speak := protocol_of(cls)) is not None:
        watch_class(walk, cls)
        walk.fields("object", (cls, _said(speak, node)), out)
        return
    if is_a(node, type) and knowledge_of(cls).reader is not None:  # a class whose metaclass builds it from data
        _write_object(walk, node, out)
        return
    for base in cls.__mro__:
        if (writer := _WRITERS.get(base)) is not None:
            writer(walk, node, out)
            return
    if issubclass(cls, DESCRIPTORS):
        walk.fields("descriptor", (node.__objclass__, node.__name__), out)
    elif top_of(module_of(cls)) == "triton" and ask(node, "fn", MISSING) is not MISSING:
        write_triton(walk, node, out)
    else:
        _write_object(walk, node, out)


def _said(speak: Callable[[Any], Any], node: Any) -> Any:
    try:
        return speak(node)
    except PASSED_ON:
        raise
    except Exception as error:
        raise unreadable(node, error, f"fix its {NAME} method") from error


def _read(reader: Reader, value: Any) -> Any:
    try:
        return reader.read(value)
    except PASSED_ON:
        raise
    except Exception as error:  # a subclass may override the attributes that are read
        raise unreadable(value, error) from error


def _write_plain(value: Any, out: list[bytes]) -> bool:
    cls = type(value)
    reader, base, hidden = knowledge_of(cls)
    if reader is None or not reader.is_inline or hidden is not None:
        return False
    if cls is not base and not (reader.covers_subclasses and is_written_in_c(cls)):
        return False
    if reader.attributes == "counted" and attributes(value, base).keys() - reader.noise:
        return False
    try:
        out.append(tagged(b"A", encode((reader.label, _read(reader, value)))))
    except Unkeyable:  # not plain data after all, such as an array of objects: then a node
        return False
    return True


def _write_object(walk: Walk, value: Any, out: list[bytes]) -> None:
    cls = type(value)
    if cls is object and walk.is_at_root:
        raise Unkeyable("an object() means nothing but itself, which no other process has; pass a member of an Enum")
    name = library_name(value, walk.rules.home)
    if name is not None:
        walk.fields("library object", (*name, version_of(name[0])), out)
        return
    known = knowledge_of(cls)
    if known.hidden is not None:
        _write_hidden(walk, value, known, out)
        return
    is_noise = False
    if known.reader is None:
        walk.fields("object", (cls,), out)
    else:
        is_noise = known.reader.attributes == "noise" and is_library_class(cls, walk.rules.home)
        # What a reader returns does not depend on the library's version; so its class counts only if it is a subclass.
        told = None if cls is known.base else cls
        walk.fields(known.reader.label, (told, _read(known.reader, value)), out)
        is_noise = is_noise or known.reader.attributes == "read"
    if not is_noise:
        held = attributes(value, known.base)
        for attribute in sorted(held.keys() - (known.reader.noise if known.reader else frozenset()), key=str):
            if not _is_derived(cls, attribute):
                walk.named("attribute", attribute, held[attribute], out)
    if known.reader is not None and known.reader.parts is not None:
        for place, part in known.reader.parts(value):
            walk.part(place, part, out)


def _write_hidden(walk: Walk, value: Any, known: Knowledge, out: list[bytes]) -> None:
    for stream in ("stdin", "stdout", "stderr"):
        if value is getattr(sys, stream) or value is getattr(sys, f"__{stream}__"):
            walk.fields("stream", (stream,), out)
            return
    module = extension_of(value)
    if module is not None:
        write_extension(walk, value, module, out)
        return
    cls, hidden = type(value), typing.cast(type, known.hidden)
    culprit = "it" if cls is hidden else f"its base {full_name(hidden)}"
    advice = "pass what it holds instead" if is_written_in_c(cls) else f"give the class a {NAME} method"
    raise Unkeyable(
        f"{full_name(cls)} cannot be read in full: {culprit} keeps state where Python cannot see it; {advice}, "
        "or name the variable in `ignore`"
    )


def _write_member(walk: Walk, member: enum.Enum, out: list[bytes]) -> None:
    out.append(tagged(b"E", type_name(type(member), walk.rules.home) + encode(member.name)))
    write(member.value, out, walk)
    if not is_library_class(type(member), walk.rules.home):
        write(type(member), out, walk)
        held = attributes(member)
        for name in sorted(held.keys() - _OF_MEMBERS):
            if not _is_derived(type(member), name):
                walk.named("attribute", name, held[name], out)


# Attributes that Python puts into every member.
_OF_MEMBERS = frozenset({"__objclass__", "_inverted_", "_name_", "_sort_order_", "_value_"})


def _is_generic(value: Any) -> bool:
    return type(value).__module__ == "typing" and typing.get_origin(value) is not None


def _write_generic(walk: Walk, value: Any, out: list[bytes]) -> None:
    """`list[int]`, `typing.Literal["x"]`, `int | None` and the like, alike under every Python version."""
    origin = typing.get_origin(value)
    if origin is types.UnionType:
        origin = typing.Union
    # Some names that `typing` offers have turned from classes into objects, and back.
    name = ask(origin, "__name__")
    is_special = type(name) is str and getattr(typing, name, None) is origin
    out.append(tagged(b"G", b"special" if is_special else b"generic"))
    if ask(value, "__unpacked__"):  # the star in `*tuple[int, str]`
        out.append(tagged(b"G", b"unpacked"))
    write((name if is_special else origin, typing.get_args(value)), out, walk)


def _is_derived(cls: type, name: str) -> bool:
    """Whether an attribute is the result of a cached property, which exists only after its first use."""
    if not is_a(name, str):
        return False
    if is_a(inspect.getattr_static(cls, name, None), functools.cached_property):
        return True
    return ask(cls, "__attrs_attrs__") is not None and (name == "_attrs_cached_hash" or name in _cached_by_attrs(cls))


def _cached_by_attrs(cls: type) -> Mapping[str, Any]:
    """The cached properties of a class with slots, which attrs finds by a `__getattr__` that it generates."""
    made = inspect.getattr_static(cls, "__getattr__", None)
    if type(made) is not types.FunctionType or not made.__code__.co_filename.startswith("<attrs generated getattr "):
        return {}
    return next((given for given in made.__defaults__ or () if type(given) is dict), {})
