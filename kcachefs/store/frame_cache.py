"""Decoded frames, kept so that repeated reads of an object, and the sequential read of a large one, decode once."""

from __future__ import annotations

import threading
from collections import OrderedDict

OVERHEAD = 320
"""What it takes to keep a frame, however short: its key, its places in the order."""


class FrameCache:
    """The least recently used goes first. Any thread."""

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

    def drop(self, digest: bytes, frames: int) -> None:
        """Forget an object of that many frames."""
        with self._lock:
            for index in range(frames):
                if (frame := self._frames.pop((digest, index), None)) is not None:
                    self._size -= _taken(frame)

    def clear(self) -> None:
        with self._lock:
            self._frames.clear()
            self._size = 0


def _taken(frame: bytes) -> int:
    """How much memory keeping it takes."""
    return len(frame) + OVERHEAD
