"""`cached`: a decorator that keeps what a function makes, across calls and across processes."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from pickle import PicklingError
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from kcachefs.caches.cache import Cache
from kcachefs.caches.calls import AsyncCalls, Calls, Codec
from kcachefs.caches.record import Value
from kcachefs.errors import CacheError, UsageError

P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)
M_contra = TypeVar("M_contra", contravariant=True)
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What became of the calls of a cached function, in this process."""

    hits: int
    """Calls that were answered without running the function."""
    misses: int
    """Calls that ran the function."""
    objects: int
    """Decoded results that are in memory."""


class CachedFunction(Generic[P, R_co]):
    """A function whose results are kept. As an attribute of a class it is a method, and the object is an argument.

    It is pickled as plain functions are: by its name, which another process imports. A copy of it is itself.
    """

    __wrapped__: Any
    __name__: str
    __qualname__: str

    def __init__(self, function: Callable[..., Any], calls: Calls, bound: tuple[Any, ...] = ()) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self._calls = calls
        self._bound = bound
        if calls.is_async and hasattr(inspect, "markcoroutinefunction"):  # since Python 3.12
            inspect.markcoroutinefunction(self)
        self._given = dict(vars(self))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The result of the call, computed now or earlier."""
        return self._calls.call((*self._bound, *args), kwargs)  # type: ignore[no-any-return]

    def cache_key(self, *args: P.args, **kwargs: P.kwargs) -> bytes:
        """The key under which the result of this call is kept."""
        return self._calls.key((*self._bound, *args), kwargs)

    def cache_info(self) -> CacheInfo:
        """What became of the calls so far, in this process."""
        return CacheInfo(self._calls.hits, self._calls.misses, self._calls.objects)

    def clear(self) -> int:
        """Remove every result of functions of this module and name, in memory and on disk; returns how many."""
        return self._calls.clear()

    @overload
    def __get__(self, instance: None, owner: type) -> CachedFunction[P, R_co]: ...

    @overload
    def __get__(
        self: CachedFunction[Concatenate[S, Q], R_co], instance: S, owner: type | None = None
    ) -> CachedFunction[Q, R_co]: ...

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if isinstance(self.__wrapped__, staticmethod):
            return self
        if isinstance(self.__wrapped__, classmethod):
            instance = type(instance) if owner is None else owner
        elif instance is None:
            return self
        return CachedFunction(self.__wrapped__, self._calls, (instance,))

    def __kcachefs_key__(self) -> Any:
        """What stands for this function in other keys: the function and its codec, not where results are kept."""
        own = self._own_attributes()
        told = ("cached", self._calls.meaning(), self._bound)
        return (*told, own) if own else told

    def _own_attributes(self) -> tuple[tuple[str, Any], ...]:
        """Attributes that were assigned to it later; those that it has from the function count with the function."""
        held, given = vars(self), self._given
        names = [name for name in held if name != "_given" and (name not in given or held[name] is not given[name])]
        return tuple((name, held[name]) for name in sorted(names) if not self._calls.ignores(name))

    def __reduce__(self) -> Any:
        if self._bound:  # as Python does it for methods
            found = getattr(self._bound[0], self.__name__, None)
            if not isinstance(found, CachedFunction) or found.__wrapped__ is not self.__wrapped__:
                raise PicklingError(f"{self!r} has a different name in its class than its function has")
            return getattr, (self._bound[0], self.__name__)
        # A wrapped partial has no name of its own; pickle then says that it finds none.
        return getattr(self, "__qualname__", repr(self))

    def __repr__(self) -> str:
        return f"<cached {self.__wrapped__!r}>"


class BytesDecorator(Protocol):
    """Decorates functions that return bytes."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, Value]], /
    ) -> CachedFunction[P, Coroutine[Any, Any, bytes]]: ...

    @overload
    def __call__(self, function: Callable[P, Value], /) -> CachedFunction[P, bytes]: ...


class CodecDecorator(Protocol[M_contra, R_co]):
    """Decorates functions that return what `encode` takes; the result is then what `decode` returns."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, M_contra]], /
    ) -> CachedFunction[P, Coroutine[Any, Any, R_co]]: ...

    @overload
    def __call__(self, function: Callable[P, M_contra], /) -> CachedFunction[P, R_co]: ...


@overload
def cached(function: Callable[P, Coroutine[Any, Any, Value]], /) -> CachedFunction[P, Coroutine[Any, Any, bytes]]: ...


@overload
def cached(function: Callable[P, Value], /) -> CachedFunction[P, bytes]: ...


@overload
def cached(
    *,
    cache: Cache | None = None,
    ignore: Collection[str] = (),
    depends: Sequence[object] = (),
    annotations: bool = True,
) -> BytesDecorator: ...


@overload
def cached(
    *,
    cache: Cache | None = None,
    encode: Callable[[T], Value],
    decode: Callable[[bytes], T],
    encoding: str | None = None,
    ignore: Collection[str] = (),
    depends: Sequence[object] = (),
    annotations: bool = True,
) -> CodecDecorator[T, T]: ...


@overload
def cached(
    *,
    cache: Cache | None = None,
    encode: Callable[[M_contra], Value],
    decode: Callable[[bytes], R_co],
    encoding: str | None = None,
    ignore: Collection[str] = (),
    depends: Sequence[object] = (),
    annotations: bool = True,
) -> CodecDecorator[M_contra, R_co]: ...


def cached(
    function: Callable[..., Any] | None = None,
    /,
    *,
    cache: Cache | None = None,
    encode: Callable[[Any], Value] | None = None,
    decode: Callable[[bytes], Any] | None = None,
    encoding: str | None = None,
    ignore: Collection[str] = (),
    depends: Sequence[object] = (),
    annotations: bool = True,
) -> Any:
    """Run the function once for each set of arguments, in whichever process comes first.

    The key is `hash_function` of the function and `hash_value` of its arguments, bound to its parameters: `f(1)` and
    `f(x=1)` are one call. After an edit of the function or of a helper, stored results no longer count. `ignore` names
    parameters, variables and imported modules that do not matter; `depends` lists what matters and cannot be seen:
    `kcachefs.keys` has `env`, `file` and `version` for it. With `annotations=False` the annotations of the function,
    and of functions among its arguments, do not count. Functions may call other cached functions and themselves, be
    methods, and be coroutine functions.

    Results are bytes. `encode` and `decode` turn others into bytes and back: any pair will do, and the result of a call
    is what `decode` returns. It is kept in this process, so that a kernel is loaded once; treat it as immutable. An
    edited `decode` reads the stored results; after an edit of `encode` they no longer count. To cached functions that
    call this one, an edit of either is an edit of the function. With `encoding`, no edit of them matters, but a
    change of that text does.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     @cached(cache=Cache(folder), encode=str.encode, decode=bytes.decode)
    ...     def compile(source: str, *, arch: str) -> str:
    ...         return f"{source} for {arch}"
    ...     compile("kernel", arch="sm_90"), compile(source="kernel", arch="sm_90"), compile.cache_info()
    ('kernel for sm_90', 'kernel for sm_90', CacheInfo(hits=1, misses=1, objects=1))
    """
    if (encode is None) != (decode is None):
        raise CacheError("cached() needs both encode and decode, or neither")
    if encoding is not None and encode is None:
        raise CacheError("encoding names what encode does; give encode and decode")
    # Text is a collection of letters.
    if isinstance(ignore, str | bytes):
        raise UsageError(f"ignore is {ignore!r}; pass a list of names")
    if isinstance(depends, str | bytes):
        raise UsageError(f"depends is {depends!r}; pass a list, such as [env('X'), file('y'), version('z')]")
    if cache is not None and not isinstance(cache, Cache):
        raise UsageError(f"cache is {cache!r}; pass a kcachefs.Cache")
    codec = None if encode is None or decode is None else Codec(encode, decode, encoding)
    ignored, declared = tuple(ignore), tuple(depends)

    def decorate(wrapped: Callable[..., Any]) -> CachedFunction[..., Any]:
        plain = wrapped.__func__ if isinstance(wrapped, classmethod | staticmethod) else wrapped
        _check_function(plain)
        kind = AsyncCalls if _is_async(plain) else Calls
        return CachedFunction(
            wrapped, kind(plain, _default_cache if cache is None else cache, codec, ignored, declared, annotations)
        )

    return decorate if function is None else decorate(function)


def _check_function(given: object) -> None:
    if isinstance(given, Cache):
        raise UsageError("@cached decorates a function, not a Cache; write @cached(cache=...)")
    if isinstance(given, property):
        raise UsageError("@cached decorates a function, not a property; write @property above @cached")
    if not callable(given):
        raise UsageError(f"@cached decorates a function, not {given!r}")


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return True
    return not isinstance(function, type) and inspect.iscoroutinefunction(type(function).__call__)


_default: Cache | None = None
_default_lock = threading.RLock()


def _default_cache() -> Cache:
    global _default
    with _default_lock:
        if _default is None:
            _default = Cache(name="cached")
        return _default


def _after_fork() -> None:
    global _default_lock
    _default_lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
