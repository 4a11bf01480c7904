"""Keeps decoded frames: reading an object again, or a large one in small pieces, then decodes each frame only once."""

from __future__ import annotations

import threading
from collections import OrderedDict

OVERHEAD = 320
"""Bytes that keeping a frame takes on top of the frame itself: its key and its place in the order."""


class FrameCache:
    """Keeps at most `limit` bytes and drops the least recently used frame first. Any thread may use it."""

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
        """How many frames are kept, and how many bytes they take."""
        return len(self._frames), self._size

    def drop(self, digest: bytes, frames: int) -> None:
        """Forget all frames of an object; `frames` says how many it has."""
        with self._lock:
            for index in range(frames):
                if (frame := self._frames.pop((digest, index), None)) is not None:
                    self._size -= _taken(frame)

    def clear(self) -> None:
        with self._lock:
            self._frames.clear()
            self._size = 0

    def after_fork(self) -> None:
        """In a forked child: forget everything. The thread that held the lock may not exist here."""
        self._lock = threading.Lock()
        self.clear()


def _taken(frame: bytes) -> int:
    """Bytes of memory that keeping a frame takes."""
    return len(frame) + OVERHEAD
