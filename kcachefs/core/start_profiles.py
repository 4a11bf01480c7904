"""Start profiles: what a command read in its last start, so that `read_ahead.py` can have it in memory for the next.

A start is the first two minutes of a run. What the run hits or makes in that time is kept under the name of the
command, in the order of use, in a ring file of the store.

The name of a command is the one that `kcachefs run --name` gives, else the script of the command line. Each user has
their own names, so that nobody spoils the profile of another. `_lock` guards the names and the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
import time
from array import array
from dataclasses import dataclass, field

from kcachefs.bounded import BoundedDict
from kcachefs.core.processes import Story, name_of
from kcachefs.errors import KcachefsError
from kcachefs.store import Store
from kcachefs.store.history_records import PROFILE_ENTRIES, ProfileRecord

START_NS = 120 * 10**9
"""How long a start takes at most: what a run reads later is not part of it."""
AGAIN_SECONDS = 300.0
"""How long after a start we assume that what it read is still in memory."""
_REMEMBERED = 64


@dataclass(slots=True)
class _Start:
    """A start in progress."""

    name_hash: bytes
    until: int
    entries: dict[int, None] = field(default_factory=dict)
    is_changed: bool = False


class StartProfiles:
    """The start profiles of one filesystem."""

    def __init__(self, store: Store) -> None:
        self._ring = store.history.profiles
        self._lock = threading.Lock()
        self._starts: BoundedDict[int, _Start] = BoundedDict(_REMEMBERED)
        self._named: BoundedDict[int, str] = BoundedDict(_REMEMBERED)
        """Names of commands that are about to start, by the process that starts them."""
        self._announced: BoundedDict[bytes, float] = BoundedDict(_REMEMBERED)
        self._numbers: dict[bytes, int] | None = None
        """The records of the ring, by the hash of their names."""
        self.starting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        """Hashes of the names of commands that start now, each at most once in `AGAIN_SECONDS`."""

    def expect(self, name: str, pid: int) -> int:
        """A command of that name is about to be started by a process; returns how many entries are read ahead."""
        name_hash = hash_of(name, _user_of(pid))
        with self._lock:
            if pid > 1:  # 1, as in a container, would be the ancestor of everybody
                self._named[pid] = name
            found = self._find(name_hash)
        self._announce(name_hash)
        return len(found)

    def run_began(self, run: int, story: Story) -> None:
        """A process came to the mount for the first time. Quick: another thread reads ahead."""
        with self._lock:
            pids = [one.pid for one in (story.process, *story.ancestors)]
            name = next((self._named[pid] for pid in pids if pid in self._named), None)
            name = name or name_of(story.argv.decode(errors="replace").split())
            if not name:
                return
            name_hash = hash_of(name, story.uid)
            self._starts[run] = _Start(name_hash, story.started + START_NS)
        self._announce(name_hash)

    def note(self, run: int, entry: int) -> None:
        """A run hit an entry, or made it. Takes no lock: the catalog's may be held."""
        start = self._starts.get(run)
        if start is None or len(start.entries) >= PROFILE_ENTRIES or time.time_ns() > start.until:
            return
        if entry not in start.entries:
            start.entries[entry] = None
            start.is_changed = True

    def flush(self) -> None:
        """Save each start that used more entries since the last flush, then what its name's earlier starts read."""
        with self._lock:
            for start in [one for one in list(self._starts.values()) if one.is_changed]:
                start.is_changed = False
                entries = dict.fromkeys([*list(start.entries), *self._find(start.name_hash)])
                newest = list(entries)[:PROFILE_ENTRIES]
                with contextlib.suppress(KcachefsError, OSError):  # a full disk costs the profile, and nothing else
                    self._put(ProfileRecord(start.name_hash, time.time_ns(), array("Q", newest).tobytes()))

    def entries_of(self, name: str, uid: int = 0) -> list[int]:
        """The entries that a user's last starts of this name read, in order; some may be gone by now."""
        return self.entries_under(hash_of(name, uid))

    def entries_under(self, name_hash: bytes) -> list[int]:
        """The same by the hash of user and name."""
        with self._lock:
            return self._find(name_hash)

    def _announce(self, name_hash: bytes) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._announced.get(name_hash, -AGAIN_SECONDS) < AGAIN_SECONDS:
                return
            self._announced[name_hash] = now
        self.starting.put(name_hash)

    def _find(self, name_hash: bytes) -> list[int]:
        number = self._known().get(name_hash)
        raw = self._ring.get(number) if number is not None else None
        if raw is None:
            return []
        record = ProfileRecord.unpack(raw)
        return record.numbers if record.name_hash == name_hash else []

    def _put(self, record: ProfileRecord) -> None:
        known = self._known()
        number, following = known.get(record.name_hash), self._ring.next_number
        if number is None or number <= following - self._ring.slots:  # new, or in the slot that is to be used next
            number = following
        self._ring.put(number, record.pack())
        known[record.name_hash] = number
        if len(known) > 2 * self._ring.slots:  # most of them were overwritten by now
            oldest = self._ring.next_number - self._ring.slots
            self._numbers = {name: number for name, number in known.items() if number >= oldest}

    def _known(self) -> dict[bytes, int]:
        if self._numbers is None:
            self._numbers = {ProfileRecord.unpack(raw).name_hash: number for number, raw in self._ring.records()}
        return self._numbers


def hash_of(name: str, uid: int = 0) -> bytes:
    told = f"{uid}\0{name}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(told, digest_size=16).digest()


def _user_of(pid: int) -> int:
    """The user of a process; our own if it cannot be seen from here."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return os.getuid()
