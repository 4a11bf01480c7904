"""The two levels of a cache as one: finds, keeps, drops and counts entries in both."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kcachefs import config
from kcachefs.caches.bound import check_limit, check_whole
from kcachefs.caches.folder import Folder, is_refusal
from kcachefs.caches.memory import Memory, Policy, stand_before, tell_others
from kcachefs.caches.record import Entry, Key
from kcachefs.caches.single_flight import SingleFlight
from kcachefs.errors import CacheClosed, UsageError


class Levels:
    """Memory before a folder, or memory alone."""

    def __init__(self, folder: Folder | None, memory: Memory[Entry]) -> None:
        self.folder = folder
        self.memory = memory
        self.single_flight: SingleFlight[Entry] = SingleFlight()
        self._is_closed = False
        self._counts_lock = threading.RLock()
        self._counts = dict.fromkeys(("disk_hits", "misses", "puts", "computed", "refused"), 0)
        if folder is not None:
            stand_before(str(folder.root), memory)
        _all.add(self)

    # --- one entry ---------------------------------------------------------------------------------------------------

    def from_disk(self, raw: bytes) -> Entry | None:
        """An entry that is not in memory."""
        self.check_open()  # a hit in memory needs no such check: closing empties it
        found = self._read(raw)
        self.count("misses" if found is None else "disk_hits")
        return found

    def find_again(self, raw: bytes) -> Entry | None:
        """An entry that was missing a moment ago, and may have been stored since."""
        return self.memory.get(raw) or self._read(raw)

    def find_stamped(self, raw: bytes) -> tuple[Entry, bytes | None] | None:
        """An entry with the stamp by which the folder tells it from others; the stamp is None if only memory has it."""
        self.check_open()
        kept = self.memory.get_stamped(raw)
        if kept is not None:
            return kept
        found = None if self.folder is None else self.folder.get(raw)
        if found is not None:
            self.count("disk_hits")
            self._remember(raw, *found)
        return found

    def keep(self, raw: bytes, entry: Entry) -> tuple[bool, bytes | None]:
        """Store an entry; returns whether it is in the folder (or in memory, without a folder), and its stamp there."""
        self.check_open()
        self.count("puts")
        stamp, refusal = None, ""
        if self.folder is not None:
            try:
                stamp = self.folder.put(raw, entry.text_key, entry.value, entry.meta)
            except OSError as error:
                if not is_refusal(error):
                    raise
                refusal = f"{error.strerror}; entries stay in memory alone"
                # An older value must not be served, although nothing takes its place.
                with contextlib.suppress(OSError):
                    self.folder.delete(raw)
        if self.folder is not None and stamp is None and not refusal:
            self.memory.drop(raw)
            refusal = f"a value of {len(entry.value)} bytes is larger than the bound and is not kept"
        elif not self.memory.put(raw, entry, len(raw) + len(entry.value), stamp) and self.folder is None:
            refusal = f"a value of {len(entry.value)} bytes is larger than the memory and is not kept"
        self._tell_others(raw)
        if refusal:
            self._refused(refusal)
        return not refusal, stamp

    def drop(self, raw: bytes) -> bool:
        """Remove an entry; returns whether there was one."""
        self.check_open()
        in_memory = self.memory.drop(raw)
        on_disk = self.folder is not None and self.folder.delete(raw)
        self._tell_others(raw)
        return in_memory or on_disk

    def has(self, raw: bytes) -> bool:
        """Whether there is an entry, by its name alone."""
        self.check_open()
        return raw in self.memory or (self.folder is not None and self.folder.has(raw))

    def lock_path(self, raw: bytes) -> str | None:
        """The file by which processes agree on who computes `raw`; None without a folder."""
        return None if self.folder is None else self.folder.lock_path(raw)

    # --- all of them -------------------------------------------------------------------------------------------------

    def keys(self) -> Iterator[Key]:
        """Every key, in no order."""
        self.check_open()
        if self.folder is not None:
            yield from self.folder.keys()
        for raw, entry in self._in_memory_alone():
            yield raw.decode("utf-8", "surrogatepass") if entry.text_key else raw

    def __len__(self) -> int:
        self.check_open()
        on_disk = 0 if self.folder is None else self.folder.count()[0]
        return on_disk + len(self._in_memory_alone())

    def clear(self) -> None:
        """Remove every entry."""
        self.check_open()
        self.memory.clear()
        if self.folder is not None:
            self.folder.clear()
        self._tell_others(None)

    def remove_where(self, condition: Callable[[dict[str, Any]], bool]) -> int:
        """Remove every entry whose metadata meets a condition; returns how many."""
        self.check_open()
        removed = {raw for raw, entry in self.memory.items() if condition(entry.meta)}
        for raw in removed:
            self.memory.drop(raw)
        if self.folder is not None:
            removed.update(self.folder.remove_where(condition))
        for raw in removed:
            self._tell_others(raw)
        return len(removed)

    def close(self) -> None:
        """Free the memory; the folder stays as it is."""
        self._is_closed = True
        self.memory.clear()
        if self.folder is not None:
            self.folder.close()

    def check_open(self) -> None:
        """Raise once `close` has been called."""
        if self._is_closed:
            raise CacheClosed("the cache is closed; open another")

    def counts(self) -> dict[str, int]:
        """How often each thing has happened."""
        with self._counts_lock:
            return dict(self._counts)

    def count(self, what: str) -> None:
        """Count that `what` has happened once more."""
        with self._counts_lock:
            self._counts[what] += 1

    def after_fork(self) -> None:
        """In a forked child: threads that do not exist here may have held locks."""
        self._counts_lock = threading.RLock()
        self.memory.after_fork()
        self.single_flight.after_fork()
        if self.folder is not None:
            self.folder.after_fork()

    def _read(self, raw: bytes) -> Entry | None:
        found = None if self.folder is None else self.folder.get(raw)
        if found is None:
            return None
        self._remember(raw, *found)
        return found[0]

    def _remember(self, raw: bytes, entry: Entry, stamp: bytes) -> None:
        self.memory.put(raw, entry, len(raw) + len(entry.value), stamp)

    def _in_memory_alone(self) -> list[tuple[bytes, Entry]]:
        return [item for item in self.memory.items() if self.folder is None or not self.folder.has(item[0])]

    def _tell_others(self, raw: bytes | None) -> None:
        if self.folder is not None:
            tell_others(str(self.folder.root), self.memory, raw)

    def _refused(self, why: str) -> None:
        if not self._counts["refused"]:
            _warn(f"{self.folder.root if self.folder else 'memory'}: {why}")
        self.count("refused")


def _warn(what: str) -> None:
    try:
        import logging
    except ImportError:  # the process has given up its privileges, and cannot read Python's own files any more
        return
    logging.getLogger("kcachefs").warning("%s", what)


def open_levels(
    path: str | os.PathLike[str] | None,
    name: str,
    memory_entries: int,
    memory_bytes: int,
    policy: Policy,
    max_bytes: int | None,
    disk: bool,
) -> Levels:
    """The levels that the arguments of `Cache` ask for."""
    if path is not None and not os.fspath(path):  # which the disk would take for the current directory
        raise UsageError("path is empty; give the cache a directory, or leave path out for the default one")
    if not disk:
        if max_bytes is not None:
            check_whole("max_bytes", max_bytes)
        return Levels(None, Memory(memory_entries, memory_bytes, policy))
    if not name and path is None:
        raise UsageError("name is empty; give the cache a name of its own in the directory of all caches")
    check_limit(max_bytes)
    root = config.library_directory(name) if path is None else Path(path).absolute()
    on_mount = config.is_on_mount(root)
    limit = None if on_mount else max_bytes
    if max_bytes is None and not on_mount:
        limit = config.library_limit()
        check_limit(limit, config.LIBRARY_LIMIT)
    uses: dict[bytes, int] | None = None if limit is None else {}
    folder = Folder(root, limit, keeps_ages=not on_mount, uses=uses)
    return Levels(folder, Memory(memory_entries, memory_bytes, policy, folder.is_current, uses))


_all: weakref.WeakSet[Levels] = weakref.WeakSet()


def _after_fork() -> None:
    for levels in list(_all):
        levels.after_fork()


os.register_at_fork(after_in_child=_after_fork)
