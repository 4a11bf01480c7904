"""`Cache`: bytes by key in two levels, safe between threads and processes.

The first level is memory and serves what this process has seen; the second is a folder that all processes share. A key
is assumed to name its content. When an entry is replaced, deleted or cleared through one handle, every other handle of
the same process sees that at once. Other processes see it at once where they read the folder, and within
`memory.STALE_SECONDS` where they have the entry in memory.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

from kcachefs.caches.levels import Levels, open_levels
from kcachefs.caches.memory import Policy
from kcachefs.caches.record import Entry, Key, Meta, Value, key_bytes

D = TypeVar("D")


class Stats(NamedTuple):
    """What a cache has done since it was opened, in this process."""

    memory_hits: int
    disk_hits: int
    misses: int
    puts: int
    computed: int
    waited: int
    """How often a thread or task waited for another to compute."""
    waiting: int
    """How many wait right now."""
    damaged: int
    refused: int
    """Values that the cache could not keep: see `Cache.put`."""
    memory_evictions: int
    disk_evictions: int
    memory_entries: int
    memory_bytes: int

    @property
    def hits(self) -> int:
        """Hits in memory and on disk."""
        return self.memory_hits + self.disk_hits


class Cache(MutableMapping[Key, bytes]):
    """A cache of bytes by key, in memory and in a folder.

    `path` is the folder; by default one called `name` in the mount, or in the user's cache directory where nothing is
    mounted. `memory_entries` and `memory_bytes` bound the first level, which drops the oldest by `policy`. `max_bytes`
    bounds the second where it is a plain directory (a mount has a quota of its own), least recently used first.
    `disk=False` leaves the second level out.

    A folder that cannot be written (read-only, full) still serves what is in it; new values stay in memory alone.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Cache(folder) as cache:
    ...     cache.put("kernel", b"cubin", {"arch": "sm_90"})
    ...     cache.get("kernel"), cache.entry("kernel").meta, cache.get("another")
    ...     cache.get_or_compute("slow", lambda: b"compiled")
    True
    (b'cubin', {'arch': 'sm_90'}, None)
    b'compiled'
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        name: str = "default",
        memory_entries: int = 4096,
        memory_bytes: int = 256 << 20,
        policy: Policy = "lru",
        max_bytes: int | None = None,
        disk: bool = True,
    ) -> None:
        self._levels = open_levels(path, name, memory_entries, memory_bytes, policy, max_bytes, disk)
        self._memory = self._levels.memory

    # --- one entry ---------------------------------------------------------------------------------------------------

    def entry(self, key: Key) -> Entry | None:
        """The value and its metadata, or None."""
        raw = key if type(key) is bytes else key_bytes(key)
        return self._memory.get(raw) or self._levels.from_disk(raw)

    @overload
    def get(self, key: Key) -> bytes | None: ...

    @overload
    def get(self, key: Key, default: D) -> bytes | D: ...

    def get(self, key: Key, default: Any = None) -> Any:
        """The value, or `default`."""
        raw = key if type(key) is bytes else key_bytes(key)
        found = self._memory.get(raw) or self._levels.from_disk(raw)
        return default if found is None else found.value

    def put(self, key: Key, value: Value, meta: Meta | None = None) -> bool:
        """Store a value with small metadata of plain data; returns whether the cache keeps it.

        True means that the value is in the folder, or in memory if there is no folder. False means that the disk
        refused it, so that it is at most in memory, or that it is larger than the bound and not stored at all. The
        first refusal is logged, and `stats().refused` counts all of them.
        """
        self._levels.check_open()
        return self._levels.keep(key_bytes(key), _entry(value, meta or {}, isinstance(key, str)))[0]

    def get_or_compute(self, key: Key, compute: Callable[[], Value | Entry]) -> bytes:
        """The value; if there is none, `compute` makes it, once for all threads and processes that ask while it runs.

        If `compute` raises, so does this call, in every thread that waited for it; nothing is stored.
        """
        return self.entry_or_compute(key, compute).value

    def entry_or_compute(self, key: Key, compute: Callable[[], Value | Entry]) -> Entry:
        """`get_or_compute` with the metadata, which `compute` gives by returning an `Entry`."""
        raw, levels = key_bytes(key), self._levels
        found = self.entry(raw)
        if found is not None:
            return found

        def make() -> Entry:
            return _computed(levels, raw, isinstance(key, str), compute())

        return levels.single_flight.run(raw, lambda: levels.find_again(raw), make, levels.lock_path(raw))

    async def get_or_compute_async(self, key: Key, compute: Callable[[], Awaitable[Value | Entry]]) -> bytes:
        """`get_or_compute` for tasks of asyncio or trio, with a coroutine function; waiting blocks no event loop."""
        raw, levels = key_bytes(key), self._levels
        found = self.entry(raw)
        if found is not None:
            return found.value

        async def make() -> Entry:
            return _computed(levels, raw, isinstance(key, str), await compute())

        made = await levels.single_flight.run_async(raw, lambda: levels.find_again(raw), make, levels.lock_path(raw))
        return made.value

    def delete(self, key: Key) -> bool:
        """Remove an entry from both levels, for all processes; returns whether there was one."""
        return self._levels.drop(key_bytes(key))

    # --- all of it ---------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The folder, or None without one."""
        return None if self._levels.folder is None else self._levels.folder.root

    def stats(self) -> Stats:
        """What this cache has done, as seen from this process."""
        memory, folder, single_flight = self._memory, self._levels.folder, self._levels.single_flight
        return Stats(
            memory_hits=memory.hits,
            waited=single_flight.waited,
            waiting=single_flight.waiting,
            damaged=folder.damaged if folder is not None else 0,
            memory_evictions=memory.evictions,
            disk_evictions=folder.evictions if folder is not None else 0,
            memory_entries=len(memory),
            memory_bytes=memory.bytes,
            **self._levels.counts(),
        )

    def clear(self) -> None:
        """Remove every entry, for all processes."""
        self._levels.clear()

    def clear_memory(self) -> None:
        """Free the memory; what is in the folder stays, and is read again when it is asked for."""
        self._memory.clear()

    def remove_where(self, condition: Callable[[Meta], bool]) -> int:
        """Remove every entry whose metadata meets a condition, for all processes; returns how many.

        Reads the head of every file in the folder, not the values.
        """
        return self._levels.remove_where(condition)

    def close(self) -> None:
        """Free the memory; the folder stays as it is. Closing twice is fine."""
        self._levels.close()

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the mapping -------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Key) -> bytes:
        found = self.entry(key)
        if found is None:
            raise KeyError(key)
        return found.value

    def __setitem__(self, key: Key, value: Value) -> None:
        self.put(key, value)

    def __delitem__(self, key: Key) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        """Whether there is an entry. Its value is not read, so it may turn out to be damaged."""
        return self._levels.has(key_bytes(key))

    def __iter__(self) -> Iterator[Key]:
        return self._levels.keys()

    def __len__(self) -> int:
        return len(self._levels)

    # A cache equals only itself: comparing contents would read the whole folder.
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Cache({str(self.path) if self.path else 'memory'!r})"


def _entry(value: Value, meta: Meta, is_text: bool) -> Entry:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a cache value is bytes, not {type(value).__name__}; encode it first")
    return Entry(bytes(value), dict(meta), is_text)


def _computed(levels: Levels, raw: bytes, is_text: bool, made: Value | Entry) -> Entry:
    entry = _entry(made.value, made.meta, is_text) if isinstance(made, Entry) else _entry(made, {}, is_text)
    levels.count("computed")
    levels.keep(raw, entry)
    return entry
