"""Reading ahead: a command that starts finds in memory the files that its last starts read (see `start_profiles.py`).

A thread reads the stored bytes of all these files in one sweep: one piece at a time, so that a request finds at most
one piece before it at the disk, and with a pause after every few files, so that no request waits for this thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence

from kcachefs import background
from kcachefs.core.nodes import Nodes
from kcachefs.core.start_profiles import StartProfiles
from kcachefs.core.walk import Walk
from kcachefs.errors import KcachefsError
from kcachefs.store import Store
from kcachefs.store.records import Content

log = logging.getLogger(__name__)

SWEEP_MAX = 1 << 30
"""Stored bytes that are read ahead for a start, at most."""
_PIECE = 1 << 20
_GAP = 128 << 10
"""Gaps of up to this size between objects are read as well: that is quicker than a new read after the gap."""
_FILES_AT_A_TIME = 64
_PAUSE_SECONDS = 0.001

Range = tuple[int, int, int]
"""A volume, an offset in it, and a length."""


class ReadAhead:
    """Reads ahead for the starts of one filesystem."""

    def __init__(self, store: Store, nodes: Nodes, walk: Walk, profiles: StartProfiles) -> None:
        self._objects = store.objects
        self._nodes = nodes
        self._walk = walk
        self._profiles = profiles

    def start(self) -> None:
        """Read ahead from now on."""
        threading.Thread(target=self._sweep_forever, name="kcachefs-ahead", daemon=True).start()

    def _sweep_forever(self) -> None:
        background.give_way()
        while True:
            name_hash = self._profiles.starting.get()
            try:
                self.sweep(name_hash)
            except Exception as error:  # then the files are read when they are needed
                log.debug("nothing was read ahead: %r", error)

    def sweep(self, name_hash: bytes) -> int:
        """Read ahead what the last starts of a name read; returns how many stored bytes that was."""
        entries = self._profiles.entries_under(name_hash)
        done, volumes = 0, self._objects.volumes
        for ranges in _batches(self._ranges(entries)):
            for volume, offset, length in merged(ranges):
                for at in range(offset, offset + length, _PIECE):
                    piece = min(_PIECE, offset + length - at)
                    with contextlib.suppress(KcachefsError, OSError):  # compaction moved it, or it is gone
                        volumes.will_need(volume, at, piece)
                        volumes.read(volume, at + piece - 1, 1)  # waits until the bytes are in memory
                    done += piece
                    if done >= SWEEP_MAX:
                        return done
        return done

    def _ranges(self, entries: Sequence[int]) -> Iterator[Range]:
        """Where the files of these entries lie, entry by entry."""
        looked_at = 0
        for entry in entries:
            with contextlib.suppress(KcachefsError):  # the entry is gone, or is going
                for ino, _, _ in self._walk.members(entry):
                    looked_at += 1
                    if looked_at % _FILES_AT_A_TIME == 0:
                        time.sleep(_PAUSE_SECONDS)
                    node = self._nodes.get(ino)
                    if node.content == Content.OBJECT:
                        found = self._objects.record(node.digest)
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


def _batches(ranges: Iterator[Range]) -> Iterator[list[Range]]:
    """The ranges, a few at a time: what is used first is read first, and neighbours are read together."""
    batch: list[Range] = []
    for one in ranges:
        batch.append(one)
        if len(batch) == 4 * _FILES_AT_A_TIME:
            yield batch
            batch = []
    if batch:
        yield batch
