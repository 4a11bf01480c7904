"""A storage that knows how long its first bytes usually take, and how often it was asked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kcachefs.fleet.object_storage import PATIENT, Got, Patience, Storage, Stored

_WEIGHT = 0.25
"""The weight of the newest answer in the average."""


class TimedStorage:
    """Passes every call on to another storage, and measures the answers."""

    def __init__(self, storage: Storage) -> None:
        self.url = storage.url
        self._storage = storage
        self.usual_seconds = 0.0
        """How long an answer usually takes; 0 until something was read."""
        self.requests = 0

    def stream(self, key: str, *, limit: int, patience: Patience = PATIENT) -> Iterator[bytes]:
        began, is_first = time.monotonic(), True
        self.requests += 1
        for chunk in self._storage.stream(key, limit=limit, patience=patience):
            if is_first:
                self._answered(time.monotonic() - began)
                is_first = False
            yield chunk

    def get(self, key: str, *, limit: int, patience: Patience = PATIENT) -> Got:
        began = time.monotonic()
        self.requests += 1
        got = self._storage.get(key, limit=limit, patience=patience)
        if len(got.content) <= 1 << 20:
            self._answered(time.monotonic() - began)
        return got

    def _answered(self, seconds: float) -> None:
        if self.usual_seconds:
            seconds = _WEIGHT * seconds + (1 - _WEIGHT) * self.usual_seconds
        self.usual_seconds = seconds

    def put(self, key: str, content: bytes | Path, *, if_absent: bool = False) -> bool:
        self.requests += 1
        return self._storage.put(key, content, if_absent=if_absent)

    def objects(self, prefix: str) -> Iterator[Stored]:
        self.requests += 1
        return self._storage.objects(prefix)

    def folders(self, prefix: str) -> list[str]:
        self.requests += 1
        return self._storage.folders(prefix)

    def head(self, key: str) -> Stored:
        self.requests += 1
        return self._storage.head(key)

    def unfinished(self, prefix: str) -> Iterator[Stored]:
        self.requests += 1
        return self._storage.unfinished(prefix)

    def copy(self, key: str, to: str) -> None:
        self.requests += 1
        self._storage.copy(key, to)

    def delete(self, keys: Sequence[str]) -> None:
        self.requests += len(keys)
        self._storage.delete(keys)
