"""Keys of functions and of values: `hash_function` and `hash_value`."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection
from typing import Any

from kcachefs.errors import Unkeyable
from kcachefs.keys.encoding import digest, encode
from kcachefs.keys.graph import Walk
from kcachefs.keys.references import top_of
from kcachefs.keys.witness import Witness

# Keys already made. Strong references, so that an `id` cannot be taken over by another function; few, so that what the
# functions hold on to is not kept for long.
_MEMO_LIMIT = 1024
_memo: dict[int, tuple[Any, Witness, str]] = {}


def hash_function(function: Callable[..., Any], *, ignore: Collection[str] = ()) -> str:
    """The key of a function: everything in it that can change what it does or compiles to.

    That is its name and source; its defaults, annotations and closure; the globals it uses, and the functions among
    them with all of theirs; partials, bound and wrapped functions to any depth; the attributes of Triton's wrappers.
    What it imports as it runs counts too: modules of the project by their files. Functions of installed libraries count
    by name and version. `ignore` names globals, closure variables and imported modules that do not matter.

    >>> def scale(x, by=2): return x * by
    >>> def grow(x, by=2): return x * by
    >>> hash_function(scale) == hash_function(scale), hash_function(scale) == hash_function(grow)
    (True, False)
    """
    known = _memo.get(id(function))
    if known is not None and known[0] is function and not ignore and known[1].holds():
        return known[2]
    if not callable(function):
        raise Unkeyable(f"{function!r} is no function; use hash_value for other values")
    walk = Walk(_home(function), ignore)
    key = _walked(walk, "function", function).hex()
    if walk.witness.usable and not ignore and isinstance(function, types.FunctionType | _WithFn):
        if len(_memo) >= _MEMO_LIMIT:
            _memo.clear()
        _memo[id(function)] = (function, walk.witness, key)
    return key


def hash_value(value: object) -> str:
    """The key of any value whose meaning can be read: plain data, containers, arrays, functions, objects of them.

    >>> hash_value({"tile": (128, 64), "stages": 3}) == hash_value({"stages": 3, "tile": (128, 64)})
    True
    >>> hash_value(1) == hash_value(True)
    False
    """
    try:
        return digest("value", encode(value)).hex()
    except Unkeyable:
        return _walked(Walk(), "object", value).hex()
    except RecursionError:
        raise Unkeyable("the value is nested too deeply, or contains itself") from None


def _walked(walk: Walk, kind: str, root: object) -> bytes:
    try:
        return walk.digest(kind, root)
    except RecursionError:
        raise Unkeyable("the value is nested too deeply, or a container contains itself") from None


class _HasFn(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(getattr(instance, "fn", None), types.FunctionType)


class _WithFn(metaclass=_HasFn):
    """A wrapper like Triton's, which keeps the plain function in `fn`."""


def _home(function: Any) -> str:
    """The top package of the function: an installed kernel library is followed when it is the one asked about."""
    for _ in range(1000):
        inner = getattr(function, "func", None) or getattr(function, "fn", None) or getattr(function, "__func__", None)
        if inner is None:
            break
        function = inner
    scope = getattr(function, "__globals__", None)
    return top_of(scope.get("__name__", "")) if isinstance(scope, dict) else ""
