"""`ObjectCache`: compiled modules, callables and other objects by key, in memory, as bytes also on disk."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from kcachefs.caches.cache import Cache
from kcachefs.caches.memory import Memory, Policy, stand_before
from kcachefs.caches.record import Entry, Key, Value, key_bytes
from kcachefs.caches.single_flight import SingleFlight
from kcachefs.errors import UsageError

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class ObjectStats:
    """What an object cache has done since it was made, in this process."""

    memory_hits: int
    loaded: int
    """Objects that were decoded from the bytes on disk."""
    made: int
    memory_evictions: int
    memory_entries: int
    memory_bytes: int


class ObjectCache(Generic[T]):
    """A cache of objects by key: in memory as they are, and as bytes in a `Cache` behind it.

    `encode` turns an object into bytes for `cache`, and `decode` turns them back; what was decoded is kept, so that a
    kernel is loaded once. Without the two, objects live in memory alone.

    Memory holds at most `memory_entries` objects, and at most `memory_bytes` of them as `size_of` measures one; without
    `size_of`, an object is as large as its encoding. The oldest goes first by `policy`. An object is shared by all who
    ask for it: treat it as immutable.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kernels = ObjectCache(Cache(folder), encode=str.encode, decode=bytes.decode)
    ...     kernels.get_or_make("add", lambda: "compiled add")
    ...     kernels.clear_memory()
    ...     kernels.get("add"), kernels.stats().loaded
    'compiled add'
    ('compiled add', 1)
    """

    @overload
    def __init__(
        self,
        cache: None = None,
        *,
        memory_entries: int = 1024,
        memory_bytes: int | None = None,
        size_of: Callable[[T], int] | None = None,
        policy: Policy = "lru",
    ) -> None: ...

    @overload
    def __init__(
        self,
        cache: Cache | None = None,
        *,
        encode: Callable[[T], Value],
        decode: Callable[[bytes], T],
        memory_entries: int = 1024,
        memory_bytes: int | None = None,
        size_of: Callable[[T], int] | None = None,
        policy: Policy = "lru",
    ) -> None: ...

    def __init__(
        self,
        cache: Cache | None = None,
        *,
        encode: Callable[[T], Value] | None = None,
        decode: Callable[[bytes], T] | None = None,
        memory_entries: int = 1024,
        memory_bytes: int | None = None,
        size_of: Callable[[T], int] | None = None,
        policy: Policy = "lru",
    ) -> None:
        if (encode is None) != (decode is None):
            raise UsageError("an object cache needs both encode and decode, or neither")
        if encode is None and cache is not None:
            raise UsageError("objects reach a cache on disk as bytes; give encode and decode")
        if memory_bytes is not None and encode is None and size_of is None:
            raise UsageError("memory_bytes bounds sizes; give size_of to say how large an object is")
        if encode is not None and cache is None:
            # Memory holds the object, so keeping the bytes that it was made of there too would be a waste.
            cache = Cache(name="objects", memory_entries=0)
        self._cache = cache
        self._encode = encode
        self._decode = decode
        self._size_of = size_of
        self._levels = None if cache is None else cache._levels
        folder = None if self._levels is None else self._levels.folder
        self._memory: Memory[tuple[T]] = Memory(
            memory_entries,
            memory_bytes,
            policy,
            None if folder is None else folder.is_current,
            None if folder is None else folder.uses,
        )
        if folder is not None:
            stand_before(str(folder.root), self._memory)
        self._single_flight: SingleFlight[tuple[T]] = SingleFlight()
        self._counts_lock = threading.RLock()
        self._loaded = self._made = 0
        _all.add(self)

    @property
    def cache(self) -> Cache | None:
        """The cache of bytes behind the objects, or None."""
        return self._cache

    @overload
    def get(self, key: Key) -> T | None: ...

    @overload
    def get(self, key: Key, default: D) -> T | D: ...

    def get(self, key: Key, default: Any = None) -> Any:
        """The object, from memory or decoded from its bytes; or `default`."""
        found = self._find(key_bytes(key))
        return default if found is None else found[0]

    def put(self, key: Key, value: T) -> bool:
        """Keep an object; returns whether its bytes are on disk, or, without a disk, whether it is in memory."""
        entry = None if self._encode is None else Entry(bytes(self._encode(value)), {}, isinstance(key, str))
        return self._keep(key_bytes(key), value, entry)

    def get_or_make(self, key: Key, make: Callable[[], T]) -> T:
        """The object; if there is none, `make` makes it, once for all threads and processes that ask while it runs."""
        return self.get_or_make_with(key, lambda: self._with_entry(key, make()))

    async def get_or_make_async(self, key: Key, make: Callable[[], Awaitable[T]]) -> T:
        """`get_or_make` for tasks of asyncio or trio, with a coroutine function; waiting blocks no event loop."""

        async def made() -> tuple[T, Entry | None]:
            return self._with_entry(key, await make())

        return await self.get_or_make_with_async(key, made)

    def delete(self, key: Key) -> bool:
        """Remove an object from memory and disk; returns whether there was one."""
        raw = key_bytes(key)
        in_memory = self._memory.drop(raw)
        on_disk = self._levels is not None and self._levels.drop(raw)
        return in_memory or on_disk

    def clear(self) -> None:
        """Remove every object, and everything in the cache behind them."""
        self._memory.clear()
        if self._levels is not None:
            self._levels.clear()

    def clear_memory(self) -> None:
        """Free every object in memory; objects on disk are decoded again when they are asked for."""
        self._memory.clear()

    def stats(self) -> ObjectStats:
        """What this cache has done, as seen from this process."""
        memory = self._memory
        with self._counts_lock:
            loaded, made = self._loaded, self._made
        return ObjectStats(memory.hits, loaded, made, memory.evictions, len(memory), memory.bytes)

    def __contains__(self, key: object) -> bool:
        """Whether there is an object, by its name alone: nothing is read or decoded."""
        raw = key_bytes(key)
        return raw in self._memory or (self._levels is not None and self._levels.has(raw))

    # --- for those who encode themselves -----------------------------------------------------------------------------

    def get_or_make_with(self, key: Key, make: Callable[[], tuple[T, Entry | None]]) -> T:
        """`get_or_make` where `make` gives the encoding along with the object."""
        raw = key_bytes(key)
        found = self._memory.get(raw)
        if found is None:
            lock = None if self._levels is None else self._levels.lock_path(raw)
            found = self._single_flight.run(raw, lambda: self._find(raw), lambda: self._keep_made(raw, *make()), lock)
        return found[0]

    async def get_or_make_with_async(self, key: Key, make: Callable[[], Awaitable[tuple[T, Entry | None]]]) -> T:
        """The same for tasks."""
        raw = key_bytes(key)
        found = self._memory.get(raw)
        if found is not None:
            return found[0]

        async def made() -> tuple[T]:
            return self._keep_made(raw, *await make())

        lock = None if self._levels is None else self._levels.lock_path(raw)
        return (await self._single_flight.run_async(raw, lambda: self._find(raw), made, lock))[0]

    def _with_entry(self, key: Key, value: T) -> tuple[T, Entry | None]:
        if self._encode is None:
            return value, None
        return value, Entry(bytes(self._encode(value)), {}, isinstance(key, str))

    def _find(self, raw: bytes) -> tuple[T] | None:
        found = self._memory.get(raw)
        if found is not None or self._levels is None or self._decode is None:
            return found
        stored = self._levels.find_stamped(raw)
        if stored is None:
            return None
        entry, stamp = stored
        value = self._decode(entry.value)
        with self._counts_lock:
            self._loaded += 1
        self._memory.put(raw, (value,), self._size(raw, value, entry), stamp)
        return (value,)

    def _keep_made(self, raw: bytes, value: T, entry: Entry | None) -> tuple[T]:
        with self._counts_lock:
            self._made += 1
        self._keep(raw, value, entry)
        return (value,)

    def _keep(self, raw: bytes, value: T, entry: Entry | None) -> bool:
        is_kept, stamp = True, None
        if self._levels is not None and entry is not None:
            is_kept, stamp = self._levels.keep(raw, entry)
        in_memory = self._memory.put(raw, (value,), self._size(raw, value, entry), stamp)
        return in_memory if self._levels is None else is_kept

    def _size(self, raw: bytes, value: T, entry: Entry | None) -> int:
        if self._size_of is not None:
            return len(raw) + self._size_of(value)
        return len(raw) + (0 if entry is None else len(entry.value))

    def _after_fork(self) -> None:
        self._counts_lock = threading.RLock()
        self._memory.after_fork()
        self._single_flight.after_fork()


_all: weakref.WeakSet[ObjectCache[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for objects in list(_all):
        objects._after_fork()


os.register_at_fork(after_in_child=_after_fork)
