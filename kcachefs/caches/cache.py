"""`Cache`: compiled things in two levels, safe between threads and processes.

L1 is memory and serves what this process has seen; L2 is a folder that all processes share. A key is taken to name its
content: L1 does not ask whether another process has since stored something else under the same key.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcachefs import config
from kcachefs.caches.flights import Flight, Flights, process_lock
from kcachefs.caches.folder import Folder, is_refusal
from kcachefs.caches.memory import Memory, Policy
from kcachefs.caches.record import Entry, Key, Meta, key_bytes
from kcachefs.errors import CacheClosed, CacheError

_log = logging.getLogger("kcachefs")

Value = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Stats:
    """What a cache has done since it was opened, in this process."""

    memory_hits: int
    disk_hits: int
    misses: int
    puts: int
    computed: int
    waited: int
    waiting: int
    damaged: int
    refused: int
    memory_evictions: int
    disk_evictions: int
    memory_entries: int
    memory_bytes: int

    @property
    def hits(self) -> int:
        return self.memory_hits + self.disk_hits


class Cache(MutableMapping[Key, bytes]):
    """A cache of bytes by key, in memory and in a folder.

    `path` is the folder; by default one named `name` in the mount, or where nothing is mounted in the user's cache
    directory. `memory_entries` and `memory_bytes` bound the first level, which drops the oldest by `policy`;
    `max_bytes` bounds the second where it is a plain directory (a mount has a quota of its own). `disk=False` leaves it
    out.

    A folder that cannot be written (read-only, full) still serves what is in it; what is put stays in memory alone.

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
        self._memory = Memory(memory_entries, memory_bytes, policy)
        self._folder = _folder(path, name, max_bytes) if disk else None
        self._flights = Flights()
        self._closed = False
        self._counts_lock = threading.Lock()
        self._counts = dict.fromkeys(("disk_hits", "misses", "puts", "computed", "waited", "refused"), 0)
        _caches.add(self)

    # --- one entry ---------------------------------------------------------------------------------------------------

    def entry(self, key: Key) -> Entry | None:
        """The value and its metadata, or None."""
        raw = key if type(key) is bytes else key_bytes(key)
        return self._memory.get(raw) or self._from_disk(raw)

    def get(self, key: Key, default: Any = None) -> Any:
        """The value, or `default`."""
        raw = key if type(key) is bytes else key_bytes(key)
        found = self._memory.get(raw) or self._from_disk(raw)
        return default if found is None else found.value

    def put(self, key: Key, value: Value, meta: Meta | None = None) -> bool:
        """Store a value with small metadata of plain data; whether it reached the folder (True where there is none)."""
        self._check_open()
        raw, text = key_bytes(key), isinstance(key, str)
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"a cache value is bytes, not {type(value).__name__}; encode it first")
        entry = Entry(bytes(value), dict(meta or {}), text)
        stored = self._to_disk(raw, entry)
        self._memory.put(raw, entry)
        self._count("puts")
        return stored

    def get_or_compute(self, key: Key, compute: Callable[[], Value | Entry]) -> bytes:
        """The value; where there is none, `compute` makes it, once for all threads and processes that ask meanwhile.

        If `compute` raises, so does this call, in every thread that waited for it; nothing is stored.
        """
        return self.entry_or_compute(key, compute).value

    def entry_or_compute(self, key: Key, compute: Callable[[], Value | Entry]) -> Entry:
        """`get_or_compute` with the metadata, which `compute` gives by returning an `Entry`."""
        while True:
            found = self.entry(key)
            if found is not None:
                return found
            raw = key_bytes(key)
            flight, mine = self._flights.join(raw)
            if mine:
                return self._fly(raw, isinstance(key, str), flight, compute)
            self._count("waited")
            if flight.error is not None:
                raise flight.error
            if flight.result is not None:
                return flight.result  # type: ignore[no-any-return]
            # The thread that computed was interrupted, which is no answer to anyone else: try again.

    def delete(self, key: Key) -> bool:
        """Remove an entry from both levels; whether there was one."""
        self._check_open()
        raw = key_bytes(key)
        in_memory = self._memory.drop(raw)
        on_disk = self._folder.delete(raw) if self._folder is not None else False
        return in_memory or on_disk

    # --- all of it ---------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The folder, or None without one."""
        return None if self._folder is None else self._folder.root

    def stats(self) -> Stats:
        """What this cache has done, as seen from this process."""
        memory, folder = self._memory, self._folder
        with self._counts_lock:
            counts = dict(self._counts)
        return Stats(
            memory_hits=memory.hits,
            waiting=self._flights.waiting,
            damaged=folder.damaged if folder is not None else 0,
            memory_evictions=memory.evictions,
            disk_evictions=folder.evictions if folder is not None else 0,
            memory_entries=len(memory),
            memory_bytes=memory.bytes,
            **counts,
        )

    def clear(self) -> None:
        """Remove every entry, for all processes; what others hold in memory they keep."""
        self._check_open()
        self._memory.clear()
        if self._folder is not None:
            self._folder.clear()

    def close(self) -> None:
        """Free the memory; the folder stays as it is. Closing twice is fine."""
        self._closed = True
        self._memory.clear()
        if self._folder is not None:
            self._folder.close()

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
        return self.entry(key) is not None  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Key]:
        self._check_open()
        if self._folder is not None:
            yield from self._folder.keys()
        for raw, entry in self._memory.items():
            if self._folder is None or not self._folder.has(raw):
                yield raw.decode("utf-8", "surrogatepass") if entry.text_key else raw

    def __len__(self) -> int:
        self._check_open()
        if self._folder is None:
            return len(self._memory)
        alone = sum(not self._folder.has(raw) for raw, _ in self._memory.items())
        return self._folder.count()[0] + alone

    # A cache is told by what it is, not by what is in it: comparing contents would read the whole folder.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Cache({str(self.path) if self.path else 'memory'!r})"

    # --- how ---------------------------------------------------------------------------------------------------------

    def _from_disk(self, raw: bytes) -> Entry | None:
        self._check_open()  # a hit in memory needs no such check: closing empties it
        found = None if self._folder is None else self._folder.get(raw)
        if found is None:
            self._count("misses")
            return None
        self._count("disk_hits")
        self._memory.put(raw, found)
        return found

    def _to_disk(self, raw: bytes, entry: Entry) -> bool:
        if self._folder is None:
            return True
        try:
            self._folder.put(raw, entry.text_key, entry.value, entry.meta)
        except OSError as error:
            if not is_refusal(error):
                raise
            self._refused(error)
            return False
        return True

    def _refused(self, error: OSError) -> None:
        if not self._counts["refused"]:
            _log.warning("%s: %s; entries stay in memory alone", self.path, error.strerror)
        self._count("refused")

    def _fly(self, raw: bytes, text: bool, flight: Flight, compute: Callable[[], Value | Entry]) -> Entry:
        try:
            flight.result = self._compute(raw, text, flight, compute)
        except Exception as error:
            flight.error = error
            raise
        finally:
            self._flights.finish(raw, flight)
        return flight.result  # type: ignore[no-any-return]

    def _compute(self, raw: bytes, text: bool, flight: Flight, compute: Callable[[], Value | Entry]) -> Entry:
        if self._folder is None:
            return self._store(raw, text, compute())
        self._folder.make_locks()
        with process_lock(self._folder.locks, raw, wait=not self._flights.is_computing(flight)):
            # While this process waited for the lock, its holder will have stored the entry.
            found = self._memory.get(raw) or self._folder.get(raw)
            if found is not None:
                self._memory.put(raw, found)
                return found
            return self._store(raw, text, compute())

    def _store(self, raw: bytes, text: bool, made: Value | Entry) -> Entry:
        entry = made if isinstance(made, Entry) else Entry(made)  # type: ignore[arg-type]
        self._count("computed")
        self.put(raw.decode("utf-8", "surrogatepass") if text else raw, entry.value, entry.meta)
        return Entry(bytes(entry.value), entry.meta, text)

    def _count(self, what: str) -> None:
        with self._counts_lock:
            self._counts[what] += 1

    def _check_open(self) -> None:
        if self._closed:
            raise CacheClosed("the cache is closed; open another")

    def _after_fork(self) -> None:
        self._counts_lock = threading.Lock()
        for part in (self._memory, self._flights, self._folder):
            if part is not None:
                part.after_fork()


def _folder(path: str | os.PathLike[str] | None, name: str, max_bytes: int | None) -> Folder:
    if max_bytes is not None and max_bytes <= 0:
        raise CacheError(f"max_bytes is {max_bytes}; it must be more than nothing, or None for no bound")
    root = config.library_directory(name) if path is None else Path(path).absolute()
    on_mount = config.is_on_mount(root)
    return Folder(root, None if on_mount else max_bytes or config.library_limit(), touches=not on_mount)


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()


def _after_fork() -> None:
    for cache in list(_caches):
        cache._after_fork()


os.register_at_fork(after_in_child=_after_fork)
