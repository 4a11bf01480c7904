"""The arguments of a call by parameter: `f(1)`, `f(x=1)`, and `f()` where 1 is the default, are one call.

The parameters are the function's own. A wrapper that `functools.wraps` has given the signature of
another function may tell those calls apart, so its arguments count as they are given.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from kcachefs.keys.asking import ask

_SIMPLE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Arguments:
    """Binds arguments to the parameters of a function, leaving out those that do not count."""

    def __init__(self, function: Callable[..., Any], ignore: Collection[str]) -> None:
        self._function = function
        self._ignore = frozenset(ignore)
        self._wrapped = _positions(function, self._ignore)
        self._parameters: _Parameters | None = None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The value of every parameter that counts.

        Arguments that do not fit are returned as they are: calling the function with them tells what is wrong.

        >>> def kernel(x, /, block=128, *rest, **options): ...
        >>> Arguments(kernel, ()).bind((1,), {"stages": 3}) == Arguments(kernel, ()).bind((1, 128), {"stages": 3})
        True
        """
        parameters = self._parameters
        if parameters is None or not parameters.hold():
            # Defaults may be replaced at any time. Two threads may do this at once, with the same result.
            parameters = self._parameters = _Parameters(self._function, self._ignore, self._wrapped)
        return parameters.bind(args, kwargs)


class _Parameters:
    """The parameters of a function, with the defaults that it had when this was made."""

    def __init__(self, function: Callable[..., Any], ignore: frozenset[str], wrapped: Mapping[str, int]) -> None:
        # Only for a plain function is there a quick way to tell whether its parameters have changed.
        self._function = function if type(function) is FunctionType else None
        if self._function is not None:
            self._code: CodeType = self._function.__code__
            self._plain_defaults = self._function.__defaults__
            self._keyword_defaults = dict(self._function.__kwdefaults__ or {})
        try:
            self._signature: inspect.Signature | None = inspect.signature(_bare(function), follow_wrapped=False)
        except (TypeError, ValueError):  # written in C, and silent about its parameters
            self._signature = None
        parameters = self._signature.parameters.values() if self._signature is not None else ()
        self._names = frozenset(parameter.name for parameter in parameters)
        self._ignore = ignore & self._names
        self._is_simple = self._signature is not None and all(one.kind in _SIMPLE for one in parameters)
        self._positional = tuple(one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._defaults = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
        # `object()` as a default stands for "not given", and has no key.
        self._marks = {name: default for name, default in self._defaults.items() if type(default) is object}
        # Where the wrapped function's ignored parameters may appear: among the keywords, and at which positions.
        kinds = {parameter.kind: parameter.name for parameter in parameters}
        before = sum(parameter.kind in _BY_POSITION for parameter in parameters)
        self._rest = kinds.get(inspect.Parameter.VAR_POSITIONAL, "")
        self._options = kinds.get(inspect.Parameter.VAR_KEYWORD, "")
        self._left_out = {name: at - before for name, at in wrapped.items() if name not in self._names}
        self._is_wrapper = ask(function, "__wrapped__") is not None or ask(function, "__signature__") is not None

    def hold(self) -> bool:
        """Whether the function still has these parameters and defaults."""
        function = self._function
        if function is None or function.__code__ is not self._code or function.__defaults__ is not self._plain_defaults:
            return False
        named, known = function.__kwdefaults__ or {}, self._keyword_defaults
        return len(named) == len(known) and all(named.get(name, known) is value for name, value in known.items())

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = self._bind_simply(args, kwargs) if self._is_simple else None
        if bound is None:
            bound = self._bind_any(args, kwargs)
        for name in self._ignore:
            bound.pop(name, None)
        for name, mark in self._marks.items():
            if bound.get(name) is mark:
                del bound[name]
        return bound

    def _bind_simply(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """`bind` for parameters that are neither positional-only nor variadic, several times quicker."""
        if len(args) > len(self._positional) or not self._names >= kwargs.keys():
            return None
        given = dict(zip(self._positional, args, strict=False))
        if kwargs:
            if not given.keys().isdisjoint(kwargs):
                return None
            given.update(kwargs)
        bound = self._defaults | given
        return bound if len(bound) == len(self._names) else None

    def _bind_any(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if self._signature is not None:
                bound = self._signature.bind(*args, **kwargs)
                bound.apply_defaults()
                return self._spread(dict(bound.arguments)) if self._is_wrapper else dict(bound.arguments)
        except TypeError:
            pass
        return {"*": args, "**": dict(kwargs)}

    def _spread(self, bound: dict[str, Any]) -> dict[str, Any]:
        """The bound arguments, with a name for each one that a wrapper may hand on: `*0`, `**arch`."""
        places = set(self._left_out.values())
        rest = {f"*{at}": value for at, value in enumerate(bound.pop(self._rest, ())) if at not in places}
        options = bound.pop(self._options, {})
        return bound | rest | {f"**{name}": options[name] for name in options if name not in self._left_out}


def is_function(value: object) -> bool:
    """Whether a value is a plain function, or one that Triton wraps."""
    return type(value) is FunctionType or type(ask(value, "fn")) is FunctionType


def _bare(function: Any) -> Any:
    """A callable with the parameters of `function`, without a `__signature__` that says something else."""
    if type(function) is FunctionType:
        bare = FunctionType(function.__code__, {}, "", function.__defaults__, function.__closure__)
        bare.__kwdefaults__ = function.__kwdefaults__
        return bare
    if type(function) is functools.partial:
        return functools.partial(_bare(function.func), *function.args, **function.keywords)
    if type(function) is MethodType:
        return MethodType(_bare(function.__func__), function.__self__)
    if type(function) is functools._lru_cache_wrapper:  # it hands its arguments on as they are
        return _bare(function.__wrapped__)
    call = ask(type(function), "__call__")
    is_object = type(call) is FunctionType and not isinstance(function, type)
    return MethodType(_bare(call), function) if is_object else function


def _positions(function: Callable[..., Any], names: frozenset[str]) -> dict[str, int]:
    """Those of the names that are parameters of the wrapped function, each with its position; -1 where it has none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    places = {one.name: at if one.kind in _BY_POSITION else -1 for at, one in enumerate(parameters)}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {one.name: places[one.name] for one in parameters if one.name in names and one.kind not in variadic}
