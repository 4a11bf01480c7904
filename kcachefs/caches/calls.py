"""The calls of one cached function: their keys, their results, and how many of them ran it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from kcachefs.caches.arguments import Arguments, is_function
from kcachefs.caches.cache import Cache
from kcachefs.caches.ingredients import META as MADE_OF
from kcachefs.caches.ingredients import pack_if_told
from kcachefs.caches.objects import ObjectCache
from kcachefs.caches.record import Entry, Meta, Value
from kcachefs.keys.declared import hash_depends
from kcachefs.keys.encoding import digest, encode
from kcachefs.keys.functions import hash_function, hash_value

# The functions whose keys are being made in this context, so that one that calls itself does not recurse for ever.
_being_keyed: ContextVar[tuple[Any, ...]] = ContextVar("kcachefs functions being keyed", default=())


@dataclass(frozen=True, slots=True)
class Codec:
    """How results become bytes, and bytes results again; if `name` is given, it stands for both functions in keys."""

    encode: Callable[[Any], Value]
    decode: Callable[[bytes], Any]
    name: str | None


class Calls:
    """The calls of a function, answered from a cache where they can be."""

    is_async: bool = False

    def __init__(
        self,
        function: Callable[..., Any],
        cache: Cache | Callable[[], Cache],
        codec: Codec | None,
        ignore: Collection[str],
        depends: Sequence[object],
        annotations: bool,
    ) -> None:
        self.hits: int = 0
        self.misses: int = 0
        self._function = function
        self._name = _name_of(function)
        self._arguments = Arguments(function, ignore)
        self._given_cache = cache
        self._codec = codec
        self._ignore = tuple(sorted(set(ignore)))
        self._depends = tuple(depends)
        self._annotations = annotations
        self._lock = threading.RLock()
        self._objects: ObjectCache[Any] | None = None
        _all.add(self)

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of a call."""
        key = self.key(args, kwargs)
        ran: list[bytes] = []

        def run() -> Any:
            ran.append(self._made_of(args, kwargs))
            return self._function(*args, **kwargs)

        try:
            if self._codec is None:
                return self._cache.get_or_compute(key, lambda: self._entry(run(), ran[0]))
            return self._object_cache.get_or_make_with(key, lambda: self._coded(run(), ran[0]))
        finally:
            self._count(ran)

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The key of a call."""
        values = self._arguments.bind(args, kwargs)
        # Functions get keys of their own: checking that such a key is still valid is much quicker than hashing a value.
        functions = {
            name: hash_function(values.pop(name), annotations=self._annotations)
            for name in [name for name, value in values.items() if is_function(value)]
        }
        told: list[Any] = [self._function_key(), hash_value(values), functions]
        if self._codec is not None:
            told.append(self._codec.name or self._key_of_part(self._codec.encode))
        if self._depends:
            told.append(hash_depends(self._depends))
        return digest("call", encode(told))

    def meaning(self) -> Any:
        """What stands for this function in the key of a function that calls it."""
        codec = self._codec
        # Its callers receive a result as the codec returns it, so both halves count; a name stands for both.
        told: tuple[Any, ...] = () if codec is None else (codec.name,) if codec.name else (codec.encode, codec.decode)
        if not self._ignore:
            return (self._function, self._depends, *told)
        # What this function ignores may matter to its caller, so this function is keyed separately.
        if self in _being_keyed.get():
            return ("itself", self._depends)
        return (self._function_key(), self._depends, *map(self._key_of_part, told))

    def ignores(self, name: str) -> bool:
        """Whether a name does not count."""
        return name in self._ignore

    def clear(self) -> int:
        """Remove every result that a function of this module and name has made; returns how many."""
        if self._objects is not None:
            self._objects.clear_memory()
        return self._cache.remove_where(self._is_mine)

    @property
    def objects(self) -> int:
        """How many decoded results are in memory."""
        return 0 if self._objects is None else self._objects.stats().memory_entries

    def after_fork(self) -> None:
        """In a forked child: a thread that does not exist here may hold the lock."""
        self._lock = threading.RLock()

    def _function_key(self) -> str:
        return self._key_of_part(self._function, annotations=self._annotations)

    def _key_of_part(self, part: Any, *, annotations: bool = True) -> str:
        """The key of the function, or of half of its codec; a name is a key already."""
        if isinstance(part, str):
            return part
        before = _being_keyed.set((*_being_keyed.get(), self))
        try:
            return hash_function(part, ignore=self._ignore, annotations=annotations)
        finally:
            _being_keyed.reset(before)

    @property
    def _cache(self) -> Cache:
        return self._given_cache if isinstance(self._given_cache, Cache) else self._given_cache()

    @property
    def _object_cache(self) -> ObjectCache[Any]:
        assert self._codec is not None
        cache = self._cache
        with self._lock:
            if self._objects is None or self._objects.cache is not cache:
                self._objects = ObjectCache(cache, encode=self._codec.encode, decode=self._codec.decode)
            return self._objects

    def _made_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The ingredients of a call's key, for people; taken before the call, which may change its arguments."""
        from kcachefs.caches import call_ingredients

        told, codec = self._arguments.bind(args, kwargs), self._codec
        encoding = None if codec is None else codec.name or codec.encode
        ingredients = call_ingredients.of_call(
            self._function, self._name, self._function_key(), told, encoding, self._ignore, self._depends
        )
        return pack_if_told(ingredients)

    def _entry(self, made: Any, made_of: bytes, maker: str = "") -> Entry:
        if not isinstance(made, bytes | bytearray | memoryview):
            kind = type(made).__name__
            raise TypeError(f"{maker}{self._name} returned {kind}; cached() keeps bytes: give it encode and decode")
        return Entry(bytes(made), {"function": self._name, MADE_OF: made_of})

    def _coded(self, made: Any, made_of: bytes) -> tuple[Any, Entry]:
        """A result as every process will decode it, and its entry."""
        assert self._codec is not None
        entry = self._entry(self._codec.encode(made), made_of, "encode of ")
        return self._codec.decode(entry.value), entry

    def _is_mine(self, meta: Meta) -> bool:
        name = meta.get("function")
        return isinstance(name, str) and _in_main(name) == self._name

    def _count(self, ran: list[bytes]) -> None:
        with self._lock:
            if ran:
                self.misses += 1
            else:
                self.hits += 1


class AsyncCalls(Calls):
    """The calls of a coroutine function."""

    is_async: bool = True

    async def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of a call."""
        key = self.key(args, kwargs)
        ran: list[bytes] = []

        async def run() -> Any:
            ran.append(self._made_of(args, kwargs))
            return await self._function(*args, **kwargs)

        async def entry() -> Entry:
            return self._entry(await run(), ran[0])

        async def coded() -> tuple[Any, Entry]:
            return self._coded(await run(), ran[0])

        try:
            if self._codec is None:
                return await self._cache.get_or_compute_async(key, entry)
            return await self._object_cache.get_or_make_with_async(key, coded)
        finally:
            self._count(ran)


def _name_of(function: Callable[..., Any]) -> str:
    """The module and the qualified name of a function; of a callable object, those of its class."""
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return _in_main(f"{getattr(named, '__module__', '')}.{named.__qualname__}")


def _in_main(name: str) -> str:
    """A name, without the other name that the program's module has in a process spawned by multiprocessing."""
    return "__main__." + name.removeprefix("__mp_main__.") if name.startswith("__mp_main__.") else name


_all: weakref.WeakSet[Calls] = weakref.WeakSet()


def _after_fork() -> None:
    for calls in list(_all):
        calls.after_fork()


os.register_at_fork(after_in_child=_after_fork)
