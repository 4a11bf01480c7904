"""Values of other libraries, each known by what it was made from."""

from __future__ import annotations

import re
import sys
from typing import Any

from kcachefs.errors import Unkeyable
from kcachefs.keys.asking import ask
from kcachefs.keys.libraries import module_of, top_of, version_of
from kcachefs.keys.readers.reader import Reader, nothing
from kcachefs.keys.visibility import attributes


def _numba_function(value: Any) -> Any:
    # With signatures given, numba converts arguments to them. Without, signatures are those that were used so far.
    signatures = None if value._can_compile else [tuple(signature) for signature in value.signatures]
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
    return (value._pyfunc, (value._sig.return_type, value._sig.args), version_of("numba"))


def _numba_type(value: Any) -> Any:
    """A type by its text, and by the parts of which the text has only the name or the address."""
    held = vars(value)
    if "_wr" in held and "dispatcher" in dir(value):  # of a function
        text, told = "", value.dispatcher
    elif "jit_methods" in held:  # of a class; the order of its fields is the layout of its instances
        text, told = value.class_name, (list(value.struct.items()), {name: held.get(name) for name in _OF_CLASS_TYPES})
    else:
        told = {name: held[name] for name in _BEHIND_NAMES & held.keys()}
        parts = [name for name in held if not name.endswith("_cache")]
        told["types"] = {name: found for name in parts if (found := _types_in(value, held[name]))}
        text = "" if _TELLING & held.keys() else str(value)
        if _ADDRESS.search(text) is not None and (not told["types"] or "templates" in held):
            raise Unkeyable(f"the numba type {text} is known by an address alone; pass what it is the type of")
    return (type(value).__qualname__, _ADDRESS.sub("", text), told, version_of(type(value).__module__))


_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}|#[0-9a-f]{8,}")
_OF_CLASS_TYPES = ("class_doc", "jit_methods", "jit_props", "jit_static_methods")
# Attributes that hold what the text only names or leaves out; with one of `_TELLING`, the text does not count at all.
_TELLING = frozenset({"pymod", "_value"})
_BEHIND_NAMES = frozenset({"instance_class", "get_pointer", "requires_gil", "cconv"}) | _TELLING


def _types_in(outer: Any, value: Any) -> list[Any]:
    """The types that a type is made of: one of its attributes, or in one."""
    if isinstance(value, sys.modules["numba"].types.Type):
        return [value] if value is not outer else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return [found for item in items for found in _types_in(outer, item)]


def _expression(value: Any) -> Any:
    # By its text: symbols cache their hashes, which differ from process to process.
    sympy = sys.modules["sympy"]
    unsaid: dict[int, tuple[str, Any]] = {}
    for node in sympy.preorder_traversal(value):
        if id(node) not in unsaid and (told := _untold_by_text(sympy, node)) is not None:
            unsaid[id(node)] = (sympy.srepr(node), told)
    return (sympy.srepr(value), sorted(unsaid.values(), key=lambda item: item[0]), version_of("sympy"))


def _untold_by_text(sympy: Any, node: Any) -> Any:
    """What the text of an expression leaves out; None where it says everything."""
    if isinstance(node, sympy.core.function.AppliedUndef):
        return _assumed(node.func)
    told: list[Any] = []
    if isinstance(node, sympy.IndexedBase):
        told += [node.offset, node.strides]
    elif isinstance(node, sympy.Wild):
        told += [node.exclude, node.properties]
    elif isinstance(node, sympy.Poly):
        told += _domains(sympy, node.domain)
    if isinstance(node, sympy.Basic) and top_of(module_of(type(node))) != "sympy":  # the text names the class alone
        told += [type(node), attributes(node, sympy.Basic)]
    return told or None


def _domains(sympy: Any, domain: Any) -> list[Any]:
    """A domain of polynomials and those that it is built upon; a finite field prints alike whichever its sign."""
    told = []
    while domain is not None:
        told.append((sympy.srepr(domain), ask(domain, "sym")))
        domain = ask(domain, "domain", ask(domain, "dom")) if ask(domain, "is_Composite") else None
    return told


def _assumed(function: Any) -> tuple[str, Any]:
    return (function.name, function._kwargs)


def _undefined_function(value: Any) -> Any:
    return (*_assumed(value), version_of("sympy"))


def _distribution(value: Any) -> Any:
    """A distribution of scipy by what it was made from, and its random generator where it has one of its own."""
    return (value._updated_ctor_param(), _own_generator(value))


def _own_generator(value: Any) -> Any:
    """The random generator of a distribution, unless it draws from the one that all share."""
    return None if value._random_state is sys.modules["numpy"].random.mtrand._rand else value._random_state


# What a distribution derives when it is made, from what it is made of.
_OF_DISTRIBUTIONS = frozenset(
    {
        *("_random_state", "_ctor_param", "_parse_arg_template", "_parse_args", "_parse_args_stats", "_parse_args_rvs"),
        *("_ppfvec", "_cdfvec", "vecentropy", "generic_moment", "__doc__", "_stats_has_moments", "numargs"),
    }
)


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


def _private_attribute(value: Any) -> Any:
    # With the first instance of its model it also finds out how to call the factory.
    return (value.default, value.default_factory)


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
    # Types are numbered as they are made.
    "numba.core.types.abstract.Type": Reader("numba type", _numba_type, attributes="noise", noise=frozenset({"_code"})),
    "sympy.core.basic.Basic": Reader("expression", _expression, attributes="noise"),
    "sympy.core.function.UndefinedFunction": Reader("undefined function", _undefined_function, attributes="noise"),
    "pydantic._internal._decorators.Decorator": Reader("model decorator", _model_decorator, attributes="noise"),
    "pydantic.fields.ModelPrivateAttr": Reader("private attribute", _private_attribute),
    "scipy.stats._distn_infrastructure.rv_generic": Reader("distribution", _distribution, noise=_OF_DISTRIBUTIONS),
    "scipy.stats._multivariate.multi_rv_generic": Reader(
        "distribution", _own_generator, noise=frozenset({"_random_state", "__doc__"})
    ),
    # Instances are numbered as they are made.
    "flax.linen.module.Module": Reader("flax module", nothing, noise=frozenset({"_id"})),
    "_ctypes._SimpleCData": Reader("ctypes value", _structure),
    "_ctypes.Structure": Reader("ctypes value", _structure),
    "_ctypes.Union": Reader("ctypes value", _structure),
    "_ctypes.Array": Reader("ctypes value", _structure),
    "msgspec.Struct": Reader("struct", nothing, noise=frozenset({"__msgspec_cached_hash__"}), covers_subclasses=True),
    "msgspec.Meta": Reader("constraints", _constraints),
    "msgspec._core.Factory": Reader("default factory", lambda value: value.factory),
    "msgspec._core.NoDefaultType": Reader("no default", nothing, is_inline=True),
}
