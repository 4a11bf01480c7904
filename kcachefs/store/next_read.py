"""Fetches what the next read will probably ask for: the object of a file that was just looked up.

A program that looks a small file up reads it some 10 µs later. In that time the engine's thread would only look for the
next request. Instead it fetches the object's record and its bytes as they are stored, so that the read only has to
decode them. It takes only bytes that are in the page cache, and does not wait for the volume's disk. When programs only
look at names, it all but stops: it then fetches one in 32 of the files looked up, to see whether that one is read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from kcachefs.store.frame_cache import FrameCache
from kcachefs.store.object_records import ObjectRecord
from kcachefs.store.volumes import Volumes

STORED_MAX = 64 << 10
"""Longer objects take longer to fetch than a program takes to ask for them."""
VAIN_MAX = 4
"""If nobody read this many in a row, programs look at names, not files; if this many could not be fetched, they are not
in the page cache."""
TRIED = 32
"""One of this many lookups is tried all the same."""


class NextRead:
    """`expect` and `prepare` are for the engine's thread, `take` for every reader."""

    def __init__(self, record: Callable[[bytes], ObjectRecord | None], volumes: Volumes, cache: FrameCache) -> None:
        self._record = record
        self._volumes = volumes
        self._cache = cache
        self._expected: bytes | None = None
        self._ready: tuple[bytes, ObjectRecord, bytearray] | None = None
        self._vain = 0
        """How many in a row were not read or could not be fetched."""
        self._left_out = 0

    def expect(self, digest: bytes) -> None:
        """A small file was looked up that consists of this object."""
        if self._ready is not None:
            self._ready = None
            self._vain += 1
        if self._vain >= VAIN_MAX:
            self._left_out += 1
            if self._left_out % TRIED:
                return
        self._expected = digest

    def prepare(self) -> None:
        """The engine is idle for a moment: fetch what is expected. Raises nothing."""
        digest, self._expected = self._expected, None
        if digest is not None:
            with contextlib.suppress(Exception):  # the read meets the same error, and reports it
                self._fetch(digest)

    def _fetch(self, digest: bytes) -> None:
        record = self._record(digest) if self._cache.get((digest, 0)) is None else None
        if record is None or record.frames != 1 or record.length > STORED_MAX or record.flags & ObjectRecord.DAMAGED:
            return
        reader = self._volumes.readers.get(record.volume)
        if reader is None:  # the first read of a volume opens it
            self._vain += 1
            return
        stored = bytearray(record.length)
        try:
            length = os.preadv(reader.fd, (stored,), record.offset, os.RWF_NOWAIT)
        except OSError:  # the page cache has nothing of it, or this filesystem cannot tell
            length = 0
        if length == record.length:
            self._ready = digest, record, stored
        else:
            self._vain += 1

    def take(self, digest: bytes) -> tuple[ObjectRecord, bytearray] | None:
        """The record of this object and its bytes as stored, not checked yet, if they were fetched."""
        ready = self._ready
        if ready is None or ready[0] != digest:
            return None
        self._ready = None
        self._vain = 0
        return ready[1:]
