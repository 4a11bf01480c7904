"""The arguments of a call by parameter: `f(1)`, `f(x=1)`, and `f()` where 1 is the default, are one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any

from kcachefs.keys.asking import ask

_SIMPLE = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Arguments:
    """Binds arguments to the parameters of a function, leaving out those that do not count."""

    def __init__(self, function: Callable[..., Any], ignore: Collection[str]) -> None:
        try:
            self._signature: inspect.Signature | None = inspect.signature(function)
        except (TypeError, ValueError):  # written in C, and silent about its parameters
            self._signature = None
        parameters = self._signature.parameters.values() if self._signature is not None else ()
        self._ignore = frozenset(ignore) & {parameter.name for parameter in parameters}
        self._is_simple = self._signature is not None and all(one.kind in _SIMPLE for one in parameters)
        self._positional = tuple(one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._names = frozenset(parameter.name for parameter in parameters)
        self._defaults = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
        # `object()` as a default stands for "not given", and has no key.
        self._marks = {name: default for name, default in self._defaults.items() if type(default) is object}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The value of every parameter that counts.

        Arguments that do not fit are returned as they are: calling the function with them tells what is wrong.

        >>> def kernel(x, /, block=128, *rest, **options): ...
        >>> Arguments(kernel, ()).bind((1,), {"stages": 3}) == Arguments(kernel, ()).bind((1, 128), {"stages": 3})
        True
        """
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
        """The same for parameters that are neither positional-only nor variadic, several times quicker."""
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
                return dict(bound.arguments)
        except TypeError:
            pass
        return {"*": args, "**": dict(kwargs)}


def is_function(value: object) -> bool:
    """Whether a value is a plain function, or one that Triton wraps."""
    return type(value) is FunctionType or type(ask(value, "fn")) is FunctionType
