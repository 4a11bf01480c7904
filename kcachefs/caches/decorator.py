"""`cached`: a decorator that keeps what a function makes, across calls and across processes."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, ParamSpec, TypeVar, cast, overload

from kcachefs.caches.cache import Cache
from kcachefs.errors import CacheError
from kcachefs.keys.encoding import digest, encode
from kcachefs.keys.functions import hash_function, hash_value

P = ParamSpec("P")
R = TypeVar("R")

_KEPT = 1024
_default: Cache | None = None
_default_lock = threading.Lock()


@overload
def cached(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def cached(
    *, cache: Cache | None = None, ignore: Collection[str] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


@overload
def cached(
    *,
    cache: Cache | None = None,
    encode: Callable[[R], bytes],
    decode: Callable[[bytes], R],
    ignore: Collection[str] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def cached(
    function: Callable[..., Any] | None = None,
    /,
    *,
    cache: Cache | None = None,
    encode: Callable[[Any], bytes] | None = None,
    decode: Callable[[bytes], Any] | None = None,
    ignore: Collection[str] = (),
) -> Any:
    """Call the function once for each set of arguments, in whichever process comes first.

    The key is `hash_function` of the function and `hash_value` of its arguments, so an edited function or helper starts
    anew. Results are bytes; `encode` and `decode` turn others into bytes and back, and what `decode` has made is kept
    in this process, so that a kernel is loaded once. An edited `encode` starts anew too; an edited `decode` reads the
    bytes that are there. `ignore` names variables and imported modules that do not matter.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     @cached(cache=Cache(folder), encode=str.encode, decode=bytes.decode)
    ...     def compile(source, *, arch):
    ...         return f"{source} for {arch}"
    ...     compile("kernel", arch="sm_90")
    'kernel for sm_90'
    """
    if (encode is None) != (decode is None):
        raise CacheError("cached() needs both encode and decode, or neither")

    def decorate(wrapped: Callable[..., Any]) -> Callable[..., Any]:
        maker = _Maker(wrapped, cache, encode, decode, ignore)
        made = functools.wraps(wrapped)(lambda *args, **kwargs: maker(args, kwargs))
        made.cache_key = lambda *args, **kwargs: maker.key(args, kwargs)  # type: ignore[attr-defined]
        return made

    return decorate if function is None else decorate(function)


class _Maker:
    """One decorated function: its cache, and the objects made of what is in it."""

    def __init__(
        self,
        function: Callable[..., Any],
        cache: Cache | None,
        encode: Callable[[Any], bytes] | None,
        decode: Callable[[bytes], Any] | None,
        ignore: Collection[str],
    ) -> None:
        self._function = function
        self._cache = cache
        self._encode = encode
        self._decode = decode
        self._ignore = ignore
        self._objects: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = self.key(args, kwargs)
        if self._decode is None:
            return self._cached(key, args, kwargs)
        with self._lock:
            if key in self._objects:
                self._objects.move_to_end(key)
                return self._objects[key]
        made = self._decode(self._cached(key, args, kwargs))
        with self._lock:
            self._objects[key] = made
            if len(self._objects) > _KEPT:
                self._objects.popitem(last=False)
        return made

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        told = [hash_function(self._function, ignore=self._ignore), hash_value(args), hash_value(kwargs)]
        if self._encode is not None:
            told.append(hash_function(self._encode, ignore=self._ignore))
        return digest("call", encode(told))

    def _cached(self, key: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        cache = self._cache if self._cache is not None else _default_cache()
        return cache.get_or_compute(key, lambda: self._compute(args, kwargs))

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        made = self._function(*args, **kwargs)
        if self._encode is not None:
            made = self._encode(made)
        if not isinstance(made, bytes | bytearray | memoryview):
            name = getattr(self._function, "__qualname__", self._function)
            raise TypeError(f"{name} returned {type(made).__name__}; cached() keeps bytes: give it encode and decode")
        return cast(bytes, made)


def _default_cache() -> Cache:
    global _default
    with _default_lock:
        if _default is None:
            _default = Cache(name="cached")
        return _default
