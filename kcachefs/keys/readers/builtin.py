"""Values of Python's own library that are written in C, or that hold more than they mean.

Classes are named here rather than imported wherever their module takes time to load.
"""

from __future__ import annotations

import _thread
import functools
import inspect
import io
import operator
import os
import pathlib
import sys
import types
import typing
from typing import Any

from kcachefs.errors import Unkeyable
from kcachefs.keys.asking import ask
from kcachefs.keys.dependencies import cell_value
from kcachefs.keys.readers.reader import Reader, nothing
from kcachefs.keys.visibility import attributes

# What raising an exception leaves in it, which is not its meaning.
_OF_RAISING = frozenset({"__suppress_context__", "_skipfile"})


def _as(module: str, name: str, value: Any, *attributes: str) -> tuple[Any, ...]:
    """Attributes as the base class has them, whatever a subclass puts in their place."""
    cls = getattr(sys.modules[module], name)
    return tuple(getattr(cls, attribute).__get__(value, cls) for attribute in attributes)


def _date(value: Any) -> Any:
    return _as("datetime", "date", value, "year", "month", "day")


def _datetime(value: Any) -> Any:
    times = ("hour", "minute", "second", "microsecond", "fold", "tzinfo")
    return (*_date(value), *_as("datetime", "datetime", value, *times))


def _time(value: Any) -> Any:
    return _as("datetime", "time", value, "hour", "minute", "second", "microsecond", "fold", "tzinfo")


def _duration(value: Any) -> Any:
    return _as("datetime", "timedelta", value, "days", "seconds", "microseconds")


def _decimal(value: Any) -> Any:
    return sys.modules["decimal"].Decimal.__str__(value)


def _time_zone(value: Any) -> Any:
    if value.key is None:
        raise Unkeyable("a ZoneInfo read from a file has no name to know it by; make it with ZoneInfo(name)")
    return value.key


def _memory(value: Any) -> Any:
    try:
        value.nbytes  # noqa: B018
    except ValueError:
        raise Unkeyable("a memoryview that was released holds nothing; pass it before that") from None
    return (value.format, value.itemsize, value.shape, value.strides, value.readonly, value.tobytes())


def _stream(value: Any) -> Any:
    base = io.BytesIO if isinstance(value, io.BytesIO) else io.StringIO
    try:
        return (base.getvalue(value), base.tell(value))
    except ValueError:
        raise Unkeyable("a stream that was closed holds nothing; pass it before that, or pass its content") from None


def _random(value: Any) -> Any:
    return sys.modules["random"].Random.getstate(value)


def _array(value: Any) -> Any:
    base = sys.modules["array"].array
    return (value.typecode, base.tobytes(value))


def _exception(value: Any) -> Any:
    held = attributes(value)
    told = {name: held[name] for name in held.keys() - _OF_RAISING if held[name] is not None}
    return (value.args, value.__cause__, told)


def _method_caller(value: Any) -> Any:
    made, arguments = value.__reduce__()
    return (made.args, made.keywords, arguments) if isinstance(made, functools.partial) else ((), {}, arguments)


_OF_VARIABLES = ("__bound__", "__constraints__", "__covariant__", "__contravariant__", "__infer_variance__")


def _type_variable(value: Any) -> Any:
    """A TypeVar, ParamSpec or TypeVarTuple, each of which has some of these; defaults came with Python 3.13."""
    told = [value.__name__]
    for name in (*_OF_VARIABLES, "__default__"):
        try:
            found = getattr(value, name, None)
        except NameError:  # evaluated late, and naming what is not defined yet
            found = None
        # Python's versions have different markers for "no default".
        is_none = not found or found is getattr(typing, "NoDefault", None)
        told.append(None if is_none or (found is type(None) and isinstance(value, typing.ParamSpec)) else found)
    return told


def _property(value: Any) -> Any:
    # A property has its getter's documentation unless it was given another.
    said = None if value.__doc__ == ask(value.fget, "__doc__") else value.__doc__
    documentation = inspect.cleandoc(said) if isinstance(said, str) else None
    return (value.fget, value.fset, value.fdel, documentation)


def _proxied(value: Any) -> Any:
    """The mapping behind a mapping proxy, which need not be a dictionary."""
    try:
        return types.MappingProxyType.copy(value)
    except AttributeError:
        raise Unkeyable("a mapping proxy of a mapping without `copy` cannot be read; pass the mapping") from None


def _finalizer(_: Any) -> Any:
    raise Unkeyable("weakref.finalize keeps what it will call out of sight; name it in `ignore`")


# What wrapping a function copies from it.
_OF_WRAPPED = frozenset(
    {
        *("__module__", "__name__", "__qualname__", "__doc__", "__annotations__", "__annotate__", "__type_params__"),
        *("__wrapped__", "cache_parameters"),
    }
)


def _lock(value: Any) -> Any:
    return type(value).__qualname__


_LOCK = Reader("lock", _lock, is_inline=True, attributes="noise")
_PATHS = (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.WindowsPath, pathlib.PureWindowsPath)

BY_CLASS: dict[type, Reader] = {
    **{path: Reader(path.__name__, os.fspath, is_inline=True, attributes="noise") for path in _PATHS},
    memoryview: Reader("memoryview", _memory, is_inline=True),
    operator.itemgetter: Reader("itemgetter", lambda value: value.__reduce__()[1]),
    operator.attrgetter: Reader("attrgetter", lambda value: value.__reduce__()[1]),
    operator.methodcaller: Reader("methodcaller", _method_caller),
    functools.partial: Reader("partial", lambda value: (value.func, value.args, value.keywords)),
    functools.partialmethod: Reader(
        "partial method", lambda value: (value.func, value.args, value.keywords), attributes="noise"
    ),
    functools.cached_property: Reader(
        "cached property", lambda value: value.func, noise=_OF_WRAPPED | {"func", "attrname", "lock"}
    ),
    functools.singledispatchmethod: Reader(
        "singledispatchmethod", lambda value: value.dispatcher, noise=frozenset({"dispatcher", "func", "_method_cache"})
    ),
    staticmethod: Reader("staticmethod", lambda value: value.__func__, noise=_OF_WRAPPED),
    classmethod: Reader("classmethod", lambda value: value.__func__, noise=_OF_WRAPPED),
    property: Reader("property", _property),
    types.MethodType: Reader("method", lambda value: (value.__func__, value.__self__), attributes="noise"),
    types.SimpleNamespace: Reader("namespace", nothing),
    types.MappingProxyType: Reader("mapping proxy", _proxied),
    types.CellType: Reader("cell", cell_value),
    type(_thread.allocate_lock()): _LOCK,
    _thread.RLock: _LOCK,
    typing.TypeVar: Reader("type variable", _type_variable, attributes="noise"),
    typing.ParamSpec: Reader("parameters", _type_variable, attributes="noise"),
    typing.TypeVarTuple: Reader("type variables", _type_variable, attributes="noise"),
    typing.ForwardRef: Reader("forward reference", lambda value: value.__forward_arg__, attributes="noise"),
    BaseException: Reader("exception", _exception, attributes="read", covers_subclasses=True),
    type(os.environ): Reader("environment", nothing, is_inline=True, attributes="noise"),
}

BY_NAME: dict[str, Reader] = {
    "datetime.datetime": Reader("datetime", _datetime, is_inline=True),
    "datetime.date": Reader("date", _date, is_inline=True),
    "datetime.time": Reader("time", _time, is_inline=True),
    "datetime.timedelta": Reader("timedelta", _duration, is_inline=True),
    "datetime.timezone": Reader("timezone", lambda value: value.__getinitargs__()),
    "zoneinfo.ZoneInfo": Reader("time zone", _time_zone, is_inline=True),
    "decimal.Decimal": Reader("decimal", _decimal, is_inline=True),
    "array.array": Reader("array.array", _array),
    "_struct.Struct": Reader("struct", lambda value: value.format, is_inline=True),
    "_io.BytesIO": Reader("bytes stream", _stream),
    "_io.StringIO": Reader("text stream", _stream),
    "random.Random": Reader("random", _random, attributes="noise"),
    "random.SystemRandom": Reader("system random", nothing, attributes="noise"),
    "re.Pattern": Reader("pattern", lambda value: (value.pattern, value.flags), is_inline=True),
    "functools._lru_cache_wrapper": Reader(
        "lru_cache", lambda value: (value.__wrapped__, value.cache_parameters()), noise=_OF_WRAPPED
    ),
    "weakref.finalize": Reader("finalizer", _finalizer),
    "ast.AST": Reader("syntax", nothing, covers_subclasses=True),
    # What these hold is the state of the program at this moment, not a meaning.
    "logging.Logger": Reader("logger", lambda value: value.name, is_inline=True, attributes="noise"),
    "logging.RootLogger": Reader("logger", lambda value: value.name, is_inline=True, attributes="noise"),
    **{f"threading.{name}": _LOCK for name in ("Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier")},
}
