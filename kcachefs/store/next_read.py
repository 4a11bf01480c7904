"""Fetches the object that the next read will probably ask for: that of a file that was just looked up.

A program that looks a small file up reads it some 10 µs later. In that time the engine's thread would only look for the
next request. Instead it fetches the object's record and its bytes as they are stored, so that the read only has to
decode them. It takes only bytes that are in the page cache, and does not wait for the volume's disk. When programs only
look at names, it fetches just one in 32 of the files looked up, to see whether programs read files again.
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
"""This many objects in a row that nobody read mean that programs look at names, not files; this many that could not be
fetched mean that objects are not in the page cache."""
TRIED = 32
"""After `VAIN_MAX` failures, one in this many lookups is still tried."""


class NextRead:
    """The engine's thread calls `expect` and `prepare`; any reader calls `take`."""

    def __init__(self, record: Callable[[bytes], ObjectRecord | None], volumes: Volumes, cache: FrameCache) -> None:
        self._record = record
        self._volumes = volumes
        self._cache = cache
        self._expected: bytes | None = None
        self._ready: tuple[bytes, ObjectRecord, bytearray] | None = None
        self._vain = 0
        """How many objects in a row were not read, or could not be fetched."""
        self._left_out = 0

    def expect(self, digest: bytes) -> None:
        """A lookup found a small file that consists of this object."""
        if self._ready is not None:
            self._ready = None
            self._vain += 1
        if self._vain >= VAIN_MAX:
            self._left_out += 1
            if self._left_out % TRIED:
                return
        self._expected = digest

    def prepare(self) -> None:
        """The engine is idle for a moment: fetch the expected object. Raises nothing."""
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
        except OSError:  # none of it is in the page cache, or this filesystem cannot tell
            length = 0
        if length == record.length:
            self._ready = digest, record, stored
        else:
            self._vain += 1

    def take(self, digest: bytes) -> tuple[ObjectRecord, bytearray] | None:
        """This object's record and its stored bytes, which are not checked yet; None if they were not fetched."""
        ready = self._ready
        if ready is None or ready[0] != digest:
            return None
        self._ready = None
        self._vain = 0
        return ready[1:]
