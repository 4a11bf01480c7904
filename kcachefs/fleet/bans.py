"""Packs that are never asked for again, because they are gone or do not match their record. A small local file."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import msgspec

from kcachefs.bounded import BoundedDict
from kcachefs.fleet.pack_records import PackReference
from kcachefs.printable import printable

_MAX = 100_000


class Bans:
    """The banned packs, each identified by its place: the same bytes, published on another day, get another chance.

    Safe in any thread: the agent fetches several packs at a time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._reasons: BoundedDict[str, str] = BoundedDict(_MAX)
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            self._reasons.update(msgspec.json.decode(path.read_bytes(), type=dict[str, str]))

    def __contains__(self, reference: PackReference) -> bool:
        return _name(reference) in self._reasons

    def __len__(self) -> int:
        return len(self._reasons)

    @property
    def reasons(self) -> dict[str, str]:
        """Why each pack is banned, by day and pack."""
        return dict(self._reasons)

    @property
    def places(self) -> set[tuple[str, str]]:
        """The day and the pack of each ban."""
        return {(day, pack) for day, _, pack in (name.partition("/") for name in self.reasons)}

    def add(self, reference: PackReference, why: str) -> None:
        with self._lock:
            self._reasons[_name(reference)] = printable(why)
            self._write()

    def lift(self, reference: PackReference) -> None:
        """Allow a pack again, because the right bytes were put there."""
        with self._lock:
            if self._reasons.pop(_name(reference), None) is not None:
                self._write()

    def forget_before(self, day: str) -> None:
        """Drop the bans of older days, whose packs are in no index any more."""
        with self._lock:
            old = [name for name in self._reasons if name < day]
            for name in old:
                del self._reasons[name]
            if old:
                self._write()

    def _write(self) -> None:
        part = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        try:
            part.write_bytes(msgspec.json.encode(self._reasons))
            os.replace(part, self._path)
        finally:
            part.unlink(missing_ok=True)


def _name(reference: PackReference) -> str:
    return f"{reference.day}/{reference.pack}"
