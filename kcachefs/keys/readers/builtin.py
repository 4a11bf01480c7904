"""Values of Python's own library that are written in C, or that hold more than they mean.

Classes are named here rather than imported wherever their module takes time to load.
"""

from __future__ import annotations

import _thread
import functools
import io
import operator
import os
import pathlib
import sys
import types
import typing
from typing import Any

from kcachefs.errors import Unkeyable
from kcachefs.keys.dependencies import cell_value
from kcachefs.keys.readers.reader import Reader, nothing
from kcachefs.keys.visibility import attributes

# What an exception has from being raised, which is not its meaning.
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
    return (value.format, value.itemsize, value.shape, value.strides, value.readonly, value.tobytes())


def _stream(value: Any) -> Any:
    base = io.BytesIO if isinstance(value, io.BytesIO) else io.StringIO
    return (base.getvalue(value), base.tell(value))


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


def _type_variable(value: Any) -> Any:
    try:
        bounds = (value.__bound__, value.__constraints__)
    except NameError:  # evaluated late, and naming what is not defined yet
        bounds = (None, ())
    return (value.__name__, *bounds, value.__covariant__, value.__contravariant__)


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
    functools.cached_property: Reader("cached property", lambda value: value.func, attributes="noise"),
    functools.singledispatchmethod: Reader("singledispatchmethod", lambda value: value.dispatcher, attributes="noise"),
    staticmethod: Reader("staticmethod", lambda value: value.__func__, attributes="noise"),
    classmethod: Reader("classmethod", lambda value: value.__func__, attributes="noise"),
    property: Reader("property", lambda value: (value.fget, value.fset, value.fdel)),
    types.MethodType: Reader("method", lambda value: (value.__func__, value.__self__), attributes="noise"),
    types.SimpleNamespace: Reader("namespace", nothing),
    types.MappingProxyType: Reader("mapping proxy", lambda value: dict(value)),
    types.CellType: Reader("cell", cell_value),
    type(_thread.allocate_lock()): _LOCK,
    _thread.RLock: _LOCK,
    typing.TypeVar: Reader("type variable", _type_variable, attributes="noise"),
    typing.ParamSpec: Reader("parameters", lambda value: value.__name__, attributes="noise"),
    typing.TypeVarTuple: Reader("type variables", lambda value: value.__name__, attributes="noise"),
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
        "lru_cache", lambda value: (value.__wrapped__, value.cache_parameters()), attributes="noise"
    ),
    "ast.AST": Reader("syntax", nothing, covers_subclasses=True),
    # What these hold is how the program is doing at this moment, not what it means.
    "logging.Logger": Reader("logger", lambda value: value.name, is_inline=True, attributes="noise"),
    "logging.RootLogger": Reader("logger", lambda value: value.name, is_inline=True, attributes="noise"),
    **{f"threading.{name}": _LOCK for name in ("Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier")},
}
