"""Which files wait to be sealed, which are mutable, and which are being sealed right now.

A file that was written is queued and sealed when it has rested. A file that is written again after it was sealed is
*mutable*: it is left alone until it has been quiet for long. The engine's thread adds to the queue; the sealer, the
evictor and the code that settles a mount take from it. Users take turns, so that nobody waits behind another's files.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque

from kcachefs.store.catalog import Transaction
from kcachefs.store.records import Inode

QUEUE_MAX = 16384
"""When this many files wait, files of the user who has most of them are sealed whatever else is going on. Writing that
many takes some three seconds; a burst that had to share the interpreter with the sealer before its end took twice as
long (benchmarks/README.md)."""
PATIENCE_SECONDS = 10.0
"""How long a file waits at most for requests to pause: a compiler's burst of writes goes first."""


class SealQueue:
    """The state of sealing, by inode."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._waiting: dict[int, deque[tuple[int, float]]] = {}
        """Files, and since when each has not changed, by owner. The owner whose turn is next comes first."""
        self._queued: set[int] = set()
        self.mutable: set[int] = set()
        self._sealing: dict[int, bool] = {}
        """Inodes that are being sealed, and whether they changed since that began."""

    def __len__(self) -> int:
        return len(self._queued)

    def __contains__(self, ino: int) -> bool:
        """Whether a file waits."""
        return ino in self._queued

    def add(self, ino: int, since: float, uid: int = 0) -> None:
        """Queue a user's file that has not changed since `since`, by the monotonic clock."""
        with self._lock:
            if ino not in self._queued:
                self._queued.add(ino)
                self._waiting.setdefault(uid, deque()).append((ino, since))

    def take(self, rest_seconds: float, now: float) -> int | None:
        """A file that has waited long enough, the oldest of the user whose turn it is; None when there is none.

        If too many wait, it is the oldest of the user who has most of them.
        """
        with self._lock:
            if len(self._queued) >= QUEUE_MAX:
                return self._take_from(max(self._waiting, key=lambda uid: len(self._waiting[uid])))
            for uid, files in self._waiting.items():
                if now - files[0][1] >= rest_seconds:
                    return self._take_from(uid)
            return None

    def _take_from(self, uid: int) -> int:
        files = self._waiting.pop(uid)
        ino, _ = files.popleft()
        self._queued.discard(ino)
        if files:
            self._waiting[uid] = files
        return ino

    def is_pressing(self) -> bool:
        """Whether so many files wait, or one for so long, that they must be sealed even while requests come in."""
        return len(self._queued) >= QUEUE_MAX or self._longest_seconds() > PATIENCE_SECONDS

    def _longest_seconds(self) -> float:
        """How long the oldest file has waited. Takes no lock."""
        oldest = now = time.monotonic()
        for files in list(self._waiting.values()):
            with contextlib.suppress(IndexError):  # it was taken just now
                oldest = min(oldest, files[0][1])
        return now - oldest

    def waiting(self) -> list[int]:
        """Every file that waits, by user, the longest waiting first."""
        with self._lock:
            return [ino for files in self._waiting.values() for ino, _ in files]

    def unsealed(self, uid: int) -> set[int]:
        """The files that were a user's when they began to wait, and everybody's that are mutable or being sealed."""
        with self._lock:
            waiting = [ino for ino, _ in self._waiting.get(uid, ())]
        return {*waiting, *list(self.mutable), *list(self._sealing)}

    # --- changes: the catalog's lock is held --------------------------------------------------------------------------

    def changed(self, ino: int, node: Inode) -> None:
        """A file's bytes change."""
        if ino in self._sealing:
            self._sealing[ino] = True
        self.await_rest(ino, node)

    def await_rest(self, ino: int, node: Inode) -> None:
        if node.flags & Inode.MUTABLE:
            self.mutable.add(ino)
        elif ino not in self._queued:
            self.add(ino, time.monotonic(), node.uid)

    def emptied(self, txn: Transaction, ino: int, uid: int) -> None:
        """A file loses all its bytes: what the sealer has read is stale, and there is nothing to seal."""
        if ino in self._sealing:
            self._sealing[ino] = True
            txn.undo(lambda: self.add(ino, time.monotonic(), uid))

    def make_mutable(self, ino: int, node: Inode) -> None:
        node.flags |= Inode.MUTABLE
        self.mutable.add(ino)

    def gone(self, txn: Transaction, ino: int, uid: int) -> None:
        """A file goes for good, if the transaction succeeds."""
        if ino in self.mutable:
            txn.undo(lambda: self.mutable.add(ino))
            self.mutable.discard(ino)
        if ino in self._sealing:
            self._sealing[ino] = True
            txn.undo(lambda: self.add(ino, time.monotonic(), uid))

    # --- being sealed -------------------------------------------------------------------------------------------------

    def begin(self, ino: int) -> bool:
        """Begin to seal a file; False if another thread is sealing it. The catalog's lock is held."""
        if ino in self._sealing:
            return False
        self._sealing[ino] = False
        return True

    def is_any_being_sealed(self) -> bool:
        """Whether any thread is sealing a file. Takes no lock."""
        return bool(self._sealing)

    def is_being_sealed(self, ino: int) -> bool:
        return ino in self._sealing

    def is_stale(self, ino: int) -> bool:
        """Whether a file changed since `begin`. The catalog's lock is held."""
        return self._sealing[ino]

    def end(self, ino: int) -> None:
        self._sealing.pop(ino, None)

    def statistics(self) -> dict[str, int]:
        """Takes no lock: it is called when something hangs."""
        return {
            "waiting_for_sealing": len(self._queued),
            "longest_waiting_s": round(self._longest_seconds()),
            "being_sealed": len(self._sealing),
            "mutable": len(self.mutable),
        }
