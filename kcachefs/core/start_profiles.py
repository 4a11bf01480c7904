"""Start profiles: what a command read in its last start, so that its next start finds it in memory.

A start is the first two minutes of a run. What the run hits or makes in that time is kept under the name of the
command, in the order of use, in a ring file of the store. When a run of that name begins, a thread reads the stored
bytes of all of it ahead, in one sweep: one piece at a time, so that a request finds at most one piece before it at the
disk, and with a pause after every few files, so that no request waits for this thread.

A name is what `kcachefs run --name` says, else the script of the command line. Each user has their own names, so
that nobody spoils the profile of another. `_lock` guards the names and the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kcachefs import background
from kcachefs.bounded import BoundedDict
from kcachefs.core.nodes import Nodes
from kcachefs.core.processes import Story, name_of
from kcachefs.core.walk import Walk
from kcachefs.errors import KcachefsError
from kcachefs.store import Store
from kcachefs.store.history_records import PROFILE_ENTRIES, ProfileRecord
from kcachefs.store.records import Content

log = logging.getLogger(__name__)

START_NS = 120 * 10**9
"""How long a start takes at most: what a run reads later is no part of it."""
SWEEP_MAX = 1 << 30
"""Stored bytes that are read ahead for a start."""
AGAIN_SECONDS = 300.0
"""For how long after a sweep its bytes are taken to be in memory still."""
_PIECE = 1 << 20
_GAP = 128 << 10
"""Bytes between two objects that are read along with them: quicker than to begin again behind them."""
_FILES_AT_A_TIME = 64
_PAUSE_SECONDS = 0.001
_REMEMBERED = 64

Range = tuple[int, int, int]
"""A volume, an offset in it, and a length."""


@dataclass(slots=True)
class _Start:
    """A start that is going on."""

    name_hash: bytes
    until: int
    entries: dict[int, None] = field(default_factory=dict)
    is_changed: bool = False


class StartProfiles:
    """The start profiles of one filesystem."""

    def __init__(self, store: Store, nodes: Nodes, walk: Walk) -> None:
        self._store = store
        self._ring = store.history.profiles
        self._nodes = nodes
        self._walk = walk
        self._lock = threading.Lock()
        self._starts: BoundedDict[int, _Start] = BoundedDict(_REMEMBERED)
        self._named: BoundedDict[int, str] = BoundedDict(_REMEMBERED)
        """Names of commands that are about to start, by the process that starts them."""
        self._swept: BoundedDict[bytes, float] = BoundedDict(_REMEMBERED)
        self._numbers: dict[bytes, int] | None = None
        """The records of the ring, by the hash of their names."""
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    # --- recording ----------------------------------------------------------------------------------------------------

    def expect(self, name: str, pid: int) -> int:
        """A command of that name is about to be started by a process; returns how many entries are read ahead."""
        name_hash = hash_of(name, _user_of(pid))
        with self._lock:
            if pid > 1:  # as in a container: here it is the ancestor of everybody
                self._named[pid] = name
            found = self._find(name_hash)
        self._begin_sweep(name_hash)
        return len(found)

    def run_began(self, run: int, story: Story) -> None:
        """A process came to the mount for the first time. Quick: the sweep is done elsewhere."""
        with self._lock:
            pids = [one.pid for one in (story.process, *story.ancestors)]
            name = next((self._named[pid] for pid in pids if pid in self._named), None)
            name = name or name_of(story.argv.decode(errors="replace").split())
            if not name:
                return
            name_hash = hash_of(name, story.uid)
            self._starts[run] = _Start(name_hash, story.started + START_NS)
        self._begin_sweep(name_hash)

    def note(self, run: int, entry: int) -> None:
        """A run hit an entry, or made it. Takes no lock: the catalog's may be held."""
        start = self._starts.get(run)
        if start is None or len(start.entries) >= PROFILE_ENTRIES or time.time_ns() > start.until:
            return
        if entry not in start.entries:
            start.entries[entry] = None
            start.is_changed = True

    def flush(self) -> None:
        """Write down the starts that went on since the last time. What their last starts read besides comes behind."""
        with self._lock:
            for start in [one for one in list(self._starts.values()) if one.is_changed]:
                start.is_changed = False
                entries = dict.fromkeys([*list(start.entries), *self._find(start.name_hash)])
                newest = list(entries)[:PROFILE_ENTRIES]
                with contextlib.suppress(KcachefsError, OSError):  # a full disk costs the profile, and nothing else
                    self._put(ProfileRecord(start.name_hash, time.time_ns(), array("Q", newest).tobytes()))

    def entries_of(self, name: str, uid: int = 0) -> list[int]:
        """What a user's last starts of that name read, in order; entries may be gone by now."""
        with self._lock:
            return self._find(hash_of(name, uid))

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

    # --- reading ahead ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read ahead from now on."""
        threading.Thread(target=self._sweep_forever, name="kcachefs-ahead", daemon=True).start()

    def _begin_sweep(self, name_hash: bytes) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._swept.get(name_hash, -AGAIN_SECONDS) < AGAIN_SECONDS:
                return
            self._swept[name_hash] = now
        self._queue.put(name_hash)

    def _sweep_forever(self) -> None:
        background.give_way()
        while True:
            name_hash = self._queue.get()
            try:
                self.sweep(name_hash)
            except Exception as error:  # what is not read ahead is read when it is needed
                log.debug("nothing was read ahead: %r", error)

    def sweep(self, name_hash: bytes) -> int:
        """Read ahead what the last starts of a name read; returns how many stored bytes that were."""
        with self._lock:
            entries = self._find(name_hash)
        done, volumes = 0, self._store.objects.volumes
        for ranges in _batches(self._ranges(entries)):
            for volume, offset, length in merged(ranges):
                for at in range(offset, offset + length, _PIECE):
                    piece = min(_PIECE, offset + length - at)
                    with contextlib.suppress(KcachefsError, OSError):  # compaction moved it, or it is gone
                        volumes.will_need(volume, at, piece)
                        volumes.read(volume, at + piece - 1, 1)  # waits until they are there
                    done += piece
                    if done >= SWEEP_MAX:
                        return done
        return done

    def _ranges(self, entries: Sequence[int]) -> Iterator[Range]:
        """Where the files of these entries lie, entry by entry."""
        looked_at = 0
        for entry in entries:
            with contextlib.suppress(KcachefsError):  # the entry is gone, or goes just now
                for ino, _, _ in self._walk.members(entry):
                    looked_at += 1
                    if looked_at % _FILES_AT_A_TIME == 0:
                        time.sleep(_PAUSE_SECONDS)
                    node = self._nodes.get(ino)
                    if node.content == Content.OBJECT:
                        found = self._store.objects.record(node.digest)
                        if found is not None and found.length:
                            yield found.volume, found.offset, found.length


def merged(ranges: Sequence[Range]) -> list[Range]:
    """The same bytes in fewer ranges, in the order of the disk.

    >>> merged([(1, 5000, 10), (1, 0, 100), (2, 0, 7), (1, 1 << 30, 1)])
    [(1, 0, 5010), (1, 1073741824, 1), (2, 0, 7)]
    """
    found: list[Range] = []
    for volume, offset, length in sorted(ranges):
        if found and found[-1][0] == volume and offset <= found[-1][1] + found[-1][2] + _GAP:
            begin = found[-1][1]
            found[-1] = (volume, begin, max(found[-1][2], offset + length - begin))
        else:
            found.append((volume, offset, length))
    return found


def hash_of(name: str, uid: int = 0) -> bytes:
    told = f"{uid}\0{name}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(told, digest_size=16).digest()


def _user_of(pid: int) -> int:
    """Whose process that is; ours if it cannot be seen from here."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return os.getuid()


def _batches(ranges: Iterator[Range]) -> Iterator[list[Range]]:
    """A few at a time: what is used first is to be read first, and neighbours together."""
    batch: list[Range] = []
    for one in ranges:
        batch.append(one)
        if len(batch) == 4 * _FILES_AT_A_TIME:
            yield batch
            batch = []
    if batch:
        yield batch
