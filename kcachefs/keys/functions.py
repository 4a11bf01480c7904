"""Keys of functions and of values: `hash_function` and `hash_value`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any

from kcachefs.bounded import BoundedDict
from kcachefs.errors import Unkeyable, UsageError
from kcachefs.keys import kinds
from kcachefs.keys.asking import PASSED_ON, ask, is_a, unreadable
from kcachefs.keys.dependencies import MISSING, Dependencies
from kcachefs.keys.encoding import digest, encode
from kcachefs.keys.libraries import is_library, module_of, top_of
from kcachefs.keys.walk import Rules, Walk

# Keys that were made already; each goes with its function. The table is small all the same: the closure of a function #
# may refer back to the function, and then both stay until this many others have come.
_MEMO_LIMIT = 1024
_memo = BoundedDict[tuple[int, frozenset[str], bool], tuple[weakref.ref[Any], Dependencies, str]](_MEMO_LIMIT)
_NOTHING: frozenset[str] = frozenset()
_NOT_GIVEN: tuple[()] = ()
# The attributes in which wrappers, and functions that a library's decorator returned, keep what they wrap.
_INNER = ("func", "fn", "__func__", "py_func")
_WRAPPED = ("_torchdynamo_orig_callable", "__wrapped__")


def hash_function(function: Callable[..., Any], *, ignore: Collection[str] = (), annotations: bool = True) -> str:
    """The key of a function: everything in it that can change what it does or compiles to.

    That is its name and source; its defaults, annotations, attributes and closure; the globals it uses, and the
    functions and classes among them with all of theirs; partials, bound and wrapped functions to any depth; the
    settings of Triton's, numba's and torch's wrappers. What it imports as it runs counts too. Libraries count by name
    and version. What cannot be read in full raises `Unkeyable` with the path to it.

    `ignore` names globals, closure variables, attributes of functions and imported modules that do not matter. With
    `annotations=False` the values of annotations do not count; the text of those that are written in the source still
    does.

    >>> def scale(x, by=2): return x * by
    >>> def grow(x, by=2): return x * by
    >>> hash_function(scale) == hash_function(scale), hash_function(scale) == hash_function(grow)
    (True, False)
    """
    if ignore is _NOT_GIVEN:
        number = (id(function), _NOTHING, annotations)
    elif isinstance(ignore, str):
        raise UsageError(f"ignore is {ignore!r}; pass a list of names")
    else:
        number = (id(function), frozenset(ignore), annotations)
    known = _memo.get(number)
    if known is not None and known[0]() is function and known[1].hold(function):
        return known[2]
    walk = _walk_from(function, number[1], annotations)
    key = _walked(walk, "function", function).hex()
    if walk.dependencies.is_complete and _is_function(function):
        walk.dependencies.let_go(function)
        # As in by_identity.py, the callback is not a function of ours: it may run when the interpreter ends.
        forget = functools.partial(_memo.pop, number)
        _memo[number] = (weakref.ref(function, forget), walk.dependencies, key)
    return key


def hash_value(value: object) -> str:
    """The key of any value that can be read in full: plain data, containers, arrays, functions, objects of them.

    >>> hash_value({"tile": (128, 64), "stages": 3}) == hash_value({"stages": 3, "tile": (128, 64)})
    True
    >>> hash_value(1) == hash_value(True)
    False
    """
    try:
        return digest("value", encode(value)).hex()
    except RecursionError:
        raise Unkeyable(_TOO_DEEP) from None
    except MemoryError:
        raise
    except Exception:  # it is not plain data, or its metaclass raises when asked
        return _walked(Walk(kinds, Rules()), "object", value).hex()


_TOO_DEEP = "the value is nested too deeply, or a container contains itself; pass a flatter one"


def _walk_from(function: Any, ignore: frozenset[str], annotations: bool) -> Walk:
    try:
        if not _is_function_like(function):
            raise Unkeyable(f"{function!r} is not a function; use hash_value for other values")
        name = ask(function, "__qualname__", type(function).__qualname__)
        return Walk(kinds, Rules(_home(function), ignore, annotations), path=(f"function {name!r}",))
    except RecursionError:
        raise Unkeyable(_TOO_DEEP) from None
    except PASSED_ON:
        raise
    except Exception as error:
        raise unreadable(function, error) from error


def _walked(walk: Walk, kind: str, root: object) -> bytes:
    try:
        return walk.digest(kind, root)
    except RecursionError:
        raise Unkeyable(_TOO_DEEP) from None


def _is_function_like(function: Any) -> bool:
    # Triton's autotuner has an `fn`, and cannot be called.
    return callable(function) or ask(function, "fn", MISSING) is not MISSING


def _is_function(function: Any) -> bool:
    """Whether its dependencies cover everything in the key: a plain function, or one that Triton wraps."""
    if top_of(module_of(type(function))) == "triton":
        return is_a(ask(function, "fn"), FunctionType)
    return is_a(function, FunctionType)


def _home(function: Any) -> str:
    """The top package of the function: an installed kernel library is followed if the function asked about is its own.

    A library that only decorated the function is not followed: `torch.no_grad()` adds nothing of its own.
    """
    module = ""
    for _ in range(1000):
        scope = ask(function, "__globals__")
        module = str(scope.get("__name__", "")) if is_a(scope, dict) else ""
        inner = _first(function, _INNER)
        if inner is None and module and is_library(module):
            inner = _first(function, _WRAPPED)
        if inner is None:
            break
        function = inner
    return top_of(module)


def _first(function: Any, names: tuple[str, ...]) -> Any:
    return next((found for name in names if (found := ask(function, name)) is not None), None)
