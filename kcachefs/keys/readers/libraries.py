"""Values of other libraries, each known by what it was made from."""

from __future__ import annotations

import sys
from typing import Any

from kcachefs.errors import Unkeyable
from kcachefs.keys.libraries import version_of
from kcachefs.keys.readers.reader import Reader, nothing


def _numba_function(value: Any) -> Any:
    # With signatures given, numba converts arguments to them. Without, signatures are those that were used so far.
    signatures = None if value._can_compile else [str(signature) for signature in value.signatures]
    return (value.py_func, value.targetoptions, getattr(value, "locals", None), signatures, version_of("numba"))


def _numba_ufunc(value: Any) -> Any:
    # Types that were given when it was made decide what it converts to; others are those that were used so far.
    types = list(value.types) if value._frozen else None
    return (value._dispatcher, value.identity, types, value.reorderable, version_of("numba"))


def _numba_ufunc_dispatcher(value: Any) -> Any:
    return (value.py_func, value.targetoptions, value.locals)


def _numba_generalised(value: Any) -> Any:
    builder = value.gufunc_builder
    types = None if value.is_dynamic else list(value.types)
    writable = sorted(getattr(builder, "writable_args", ()))
    layout = (value.signature, types, writable, value.identity)
    return (builder.py_func, builder.targetoptions, layout, version_of("numba"))


def _numba_callback(value: Any) -> Any:
    return (value._pyfunc, str(value._sig), version_of("numba"))


def _text(value: Any) -> Any:
    return (type(value).__qualname__, str(value), version_of(type(value).__module__))


def _expression(value: Any) -> Any:
    # By its text: symbols cache their hashes, which differ from process to process. What is assumed of functions is not
    # in it.
    sympy = sys.modules["sympy"]
    functions = {function.func for function in value.atoms(sympy.core.function.AppliedUndef)}
    return (sympy.srepr(value), sorted(_assumed(function) for function in functions), version_of("sympy"))


def _assumed(function: Any) -> tuple[str, str]:
    return (function.name, repr(sorted(function._kwargs.items())))


def _undefined_function(value: Any) -> Any:
    return (*_assumed(value), version_of("sympy"))


def _structure(value: Any) -> Any:
    if not _holds_no_pointer(type(value)):
        raise Unkeyable(f"{type(value).__qualname__} of ctypes holds an address; pass what it points to")
    return bytes(value)


def _holds_no_pointer(cls: Any) -> bool:
    ctypes = sys.modules["ctypes"]
    if issubclass(cls, ctypes._SimpleCData):
        return cls._type_ not in "PzZXO"
    if issubclass(cls, ctypes.Array):
        return _holds_no_pointer(cls._type_)
    if issubclass(cls, ctypes.Structure | ctypes.Union):
        return all(_holds_no_pointer(field[1]) for base in cls.__mro__ for field in vars(base).get("_fields_", ()))
    return False


def _constraints(value: Any) -> Any:
    return {name: getattr(value, name) for name in dir(value) if name[0] != "_"}


def _model_decorator(value: Any) -> Any:
    # It also holds the address of its class.
    return (value.cls_var_name, value.func, value.shim, value.info)


def _member(value: Any) -> Any:
    if type(value).__members__.get(value.name) != value:
        raise Unkeyable(f"{value!r} is a combination that its enumeration has no name for; pass its members")
    return value.name


# Enumerations that pybind11 makes, such as those of triton's compiler.
PYBIND_ENUMERATION = Reader("enumeration", _member, attributes="noise")

READERS: dict[str, Reader] = {
    "numba.core.dispatcher.Dispatcher": Reader("numba function", _numba_function, attributes="noise"),
    "numba.cuda.dispatcher.CUDADispatcher": Reader("numba function", _numba_function, attributes="noise"),
    "numba.np.ufunc.dufunc.DUFunc": Reader("numba ufunc", _numba_ufunc, attributes="noise"),
    "numba.np.ufunc.ufuncbuilder.UFuncDispatcher": Reader(
        "numba ufunc code", _numba_ufunc_dispatcher, attributes="noise"
    ),
    "numba.np.ufunc.gufunc.GUFunc": Reader("numba gufunc", _numba_generalised, attributes="noise"),
    "numba.core.ccallback.CFunc": Reader("numba callback", _numba_callback, attributes="noise"),
    "numba.core.types.abstract.Type": Reader("numba type", _text, attributes="noise"),
    "sympy.core.basic.Basic": Reader("expression", _expression, attributes="noise"),
    "sympy.core.function.UndefinedFunction": Reader("undefined function", _undefined_function, attributes="noise"),
    "pydantic._internal._decorators.Decorator": Reader("model decorator", _model_decorator, attributes="noise"),
    "_ctypes._SimpleCData": Reader("ctypes value", _structure),
    "_ctypes.Structure": Reader("ctypes value", _structure),
    "_ctypes.Union": Reader("ctypes value", _structure),
    "_ctypes.Array": Reader("ctypes value", _structure),
    "msgspec.Struct": Reader("struct", nothing, noise=frozenset({"__msgspec_cached_hash__"}), covers_subclasses=True),
    "msgspec.Meta": Reader("constraints", _constraints),
    "msgspec._core.Factory": Reader("default factory", lambda value: value.factory),
    "msgspec._core.NoDefaultType": Reader("no default", nothing, is_inline=True),
}
