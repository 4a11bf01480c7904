"""Keeps decoded frames, so that reading an object again, or a large one in small pieces, decodes each frame once."""

from __future__ import annotations

import threading
from collections import OrderedDict

OVERHEAD = 320
"""Bytes that keeping a frame takes besides its own: its key and its place in the order."""


class FrameCache:
    """At most `limit` bytes; the least recently used frame goes first. Any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._frames: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[bytes, int]) -> bytes | None:
        frame = self._frames.get(key)
        if frame is not None:
            with self._lock:
                if key in self._frames:
                    self._frames.move_to_end(key)
        return frame

    def put(self, key: tuple[bytes, int], frame: bytes) -> None:
        with self._lock:
            if key in self._frames:
                return
            self._frames[key] = frame
            self._size += _taken(frame)
            while self._size > self._limit:
                self._size -= _taken(self._frames.popitem(last=False)[1])

    def statistics(self) -> tuple[int, int]:
        """How many frames are kept, and how many bytes that takes."""
        return len(self._frames), self._size

    def drop(self, digest: bytes, frames: int) -> None:
        """Forget all frames of an object; `frames`: how many it has."""
        with self._lock:
            for index in range(frames):
                if (frame := self._frames.pop((digest, index), None)) is not None:
                    self._size -= _taken(frame)

    def clear(self) -> None:
        with self._lock:
            self._frames.clear()
            self._size = 0

    def after_fork(self) -> None:
        """In a forked child: forget everything. Another thread may have held the lock, and it does not exist here."""
        self._lock = threading.Lock()
        self.clear()


def _taken(frame: bytes) -> int:
    """Bytes of memory that keeping a frame takes."""
    return len(frame) + OVERHEAD
