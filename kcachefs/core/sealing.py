"""Sealing: turns files that have rested into objects, while requests go on and readers are still served.

The clock says when a file rests, not its last close: a kernel that need not send OPEN sends no RELEASE either, not even
for what it CREATEd. An engine that receives OPEN counts handles, and then a file is not sealed while it is open.

Bytes are hashed here and not as they are written: they have to be read anyway to be compressed, and the thread that
answers requests has better things to do. Small files are sealed a few at a time, in one transaction. Several threads
may use a `Sealer` at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Container, Sequence
from typing import NamedTuple

from kcachefs.core.entry_counts import EntryCounts
from kcachefs.core.files import Files
from kcachefs.core.nodes import Nodes
from kcachefs.core.seal_queue import SealQueue
from kcachefs.core.unsealed import SpoolFile, Unsealed, refresh, set_content
from kcachefs.errors import FsError, NoSpace, ObjectDamaged, ObjectMissing, RecordDamaged
from kcachefs.store import Store
from kcachefs.store.frames import FRAME_SIZE
from kcachefs.store.ledger import Staged
from kcachefs.store.records import Content, Inode

log = logging.getLogger(__name__)

REST_SECONDS = 2.0
"""How long after its last write a file is sealed: a file that is deleted before is never sealed."""
QUIET_SECONDS = 60.0
"""How long a mutable file must be unchanged before it is sealed after all."""
HOLE_MIN = 256 << 20
"""Files larger than this that are mostly holes stay plain files."""
TOGETHER_MAX = 8
"""At most this many files are sealed in one transaction. Most belong to one entry, whose counts then change once."""
FULL_SECONDS, FULL_MOST_SECONDS = 0.5, 4.0
"""How long sealing pauses after a full disk, at first and at most: each attempt uses up numbers and space."""
SMALL = FRAME_SIZE
"""Larger files are sealed alone: the other files of a transaction would wait until the large ones are stored."""
FINISH_SECONDS = 5.0


class _Begun(NamedTuple):
    """A file that is being sealed."""

    ino: int
    spool: SpoolFile | None
    data: bytes
    """Its bytes, if they are in no spool file."""
    is_synced: bool


_Ready = tuple[_Begun, Staged | None]
"""A file, and its bytes as they were stored; None for an empty file."""


class Sealer:
    """Seals the files of one filesystem."""

    def __init__(
        self, store: Store, nodes: Nodes, counts: EntryCounts, unsealed: Unsealed, files: Files, queue: SealQueue
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._counts = counts
        self._unsealed = unsealed
        self._files = files
        self._queue = queue
        self._lock = store.catalog.lock
        self._together = TOGETHER_MAX
        """Files sealed at a time. Fewer on a full disk: bytes stored and then not linked take the last of its room."""
        self._pause, self._not_before = FULL_SECONDS, 0.0

    def queue_unsealed(self) -> None:
        """At mount: queue the files that an earlier daemon left unsealed; watch mutable ones until they are quiet."""
        for ino, node in self._unsealed.files():
            if node.flags & Inode.MUTABLE:
                self._queue.mutable.add(ino)
            else:
                self._queue.add(ino, 0.0, node.uid)

    def waiting(self) -> int:
        """How many files wait: until they are sealed, they can be neither compressed nor evicted."""
        return len(self._queue)

    @property
    def is_pausing(self) -> bool:
        """Whether the disk was full a moment ago. Callers that can wait should; an unmount cannot."""
        return time.monotonic() < self._not_before

    def is_pressing(self) -> bool:
        """Whether so many files wait, or one for so long, that they must be sealed even while requests come in."""
        return self._queue.is_pressing()

    def seal_waiting(self, until: float, is_enough: Callable[[], bool]) -> None:
        """Seal waiting files even if they have not rested, until `until` or until `is_enough`: the quota is near."""
        waiting = len(self._queue)
        while waiting > 0 and time.monotonic() < until and (taken := self.seal_next(0)):
            waiting -= taken
            if is_enough():
                return

    def seal_next(self, rest_seconds: float = REST_SECONDS) -> int:
        """Seal the files that have waited longest, if they have rested that long: a few small ones, or a large one.

        Returns how many it took from the queue; some may be gone by now, or were put back because they changed.
        """
        now, taken = time.monotonic(), 0
        small: list[int] = []
        large: list[int] = []
        odd: list[int] = []
        failed: Exception | None = None
        while taken < self._together and not large and (ino := self._queue.take(rest_seconds, now)) is not None:
            taken += 1
            try:
                node = self._files.attributes(ino)
            except FsError:  # unlinked while it waited
                continue
            except Exception as error:
                failed = failed or error
                if _may_pass(error):
                    odd.append(ino)
                continue
            age = (time.time_ns() - node.mtime) / 1e9
            if rest_seconds and (ino in self._nodes.handles or 0 <= age < rest_seconds):
                # It was written since then: it has to rest again.
                self._queue.add(ino, now - max(0.0, min(age, rest_seconds)), node.uid)
            elif node.content == Content.SLOT and node.size <= SMALL:
                small.append(ino)
            else:
                large.append(ino)
        self._put_back(odd, now)
        try:
            for batch in (small, large):
                failed = self._seal_together(batch) or failed
        except NoSpace:
            self._together, self._not_before = 1, time.monotonic() + self._pause
            self._pause = min(2 * self._pause, FULL_MOST_SECONDS)
            self._put_back([*small, *large], now)
            raise
        self._together, self._pause = min(2 * self._together, TOGETHER_MAX), FULL_SECONDS
        if failed is not None:
            raise failed
        return taken

    def _put_back(self, inos: list[int], now: float) -> None:
        """Queue again the files that could not be sealed."""
        for ino in inos:
            with contextlib.suppress(FsError):
                node = self._nodes.get(ino)
                if _is_unsealed(node) and not node.flags & Inode.MUTABLE and not self._queue.is_being_sealed(ino):
                    self._queue.add(ino, now, node.uid)

    def _seal_together(self, inos: Sequence[int]) -> Exception | None:
        """Seal all of these files. One that fails does not stop the others; returns the first error."""
        if len(inos) > 1:
            try:
                self._try_together(inos)
                return None
            except NoSpace:
                raise
            except Exception as error:  # sealing them one by one shows which of them fails
                log.debug("%d files could not be sealed together: %r", len(inos), error)
        failed: Exception | None = None
        again: list[int] = []
        for ino in inos:
            try:
                with contextlib.suppress(FsError):  # it was unlinked
                    if ino not in self._queue:  # else it was written again, and rests
                        self.seal(ino)
            except NoSpace:
                raise
            except Exception as error:
                failed = failed or error
                if _may_pass(error):
                    again.append(ino)
        self._put_back(again, time.monotonic())
        return failed

    def _try_together(self, inos: Sequence[int]) -> None:
        begun: list[_Begun] = []
        ready: list[_Ready] = []
        full: NoSpace | None = None
        try:
            for ino in inos:
                with contextlib.suppress(FsError):
                    if (one := self._begin(ino)) is not None:
                        begun.append(one)
            try:
                for one in begun:
                    ready.append((one, self._stage(one, {staged.digest for _, staged in ready if staged is not None})))
            except NoSpace as error:
                full = error
            self._commit(ready)  # on a full disk too, so that what has been stored so far is used
        finally:
            self._end(begun, ready)
        if full is not None:
            raise full

    def finish(self) -> None:
        """Wait for the files that other threads are sealing, but not for long: a large file takes its time."""
        until = time.monotonic() + FINISH_SECONDS
        while self._queue.is_any_being_sealed() and time.monotonic() < until:
            time.sleep(0.002)

    def unsealed_bytes(self, uid: int) -> int:
        """How many bytes of a user's files are not sealed yet."""
        total = 0
        for ino in self._queue.unsealed(uid):
            with contextlib.suppress(FsError, RecordDamaged):
                node = self._files.attributes(ino)
                if node.uid == uid and node.content in (Content.SLOT, Content.SPOOL):
                    total += node.size
        return total

    def seal_of(self, uid: int, entries: Collection[int]) -> None:
        """Seal the waiting files of one user and of these entries, even if they have not rested."""
        for ino in self._queue.waiting():
            try:
                node = self._nodes.get(ino)
                if (node.uid == uid or node.entry in entries) and ino not in self._nodes.handles:
                    self.seal(ino)
            except (FsError, NoSpace):  # it was unlinked; or it stays in the queue
                continue
        self.finish()

    def seal_quiet(
        self, quiet_seconds: float = QUIET_SECONDS, may_seal: Callable[[int, int], bool] = lambda ino, size: True
    ) -> None:
        """Seal the mutable files that have not changed for this long; `may_seal` is given inode number and size."""
        now, quiet = time.time_ns(), int(quiet_seconds * 1e9)
        failed: Exception | None = None
        for ino in list(self._queue.mutable):
            try:
                node = self._files.attributes(ino)
                if abs(now - node.ctime) < quiet or not may_seal(ino, node.size):
                    continue
                self._queue.mutable.discard(ino)  # before it is sealed: a change during that puts it back
                self.seal(ino)
            except FsError:
                self._queue.mutable.discard(ino)
            except Exception as error:
                self._queue.mutable.add(ino)
                failed = failed or error
        if failed is not None:  # only now: one file that fails does not stop the others
            raise failed

    def seal(self, ino: int, condition: Callable[[int], bool] = lambda ino: True) -> bool:
        """Turn a file into an object. False if it changed during that, or cannot be sealed.

        `condition` is evaluated under the lock: the file is sealed in the state for which it was true.
        """
        while True:
            one = self._begin(ino, condition)
            if one is None:
                return False
            ready: list[_Ready] = []
            try:
                if _is_left_plain(one):
                    return False
                ready.append((one, self._stage(one)))
                return self._commit(ready) == 1
            except ObjectMissing:
                continue  # the object that it was to share was deleted at that moment: store it after all
            finally:
                self._end([one], ready)

    def _begin(self, ino: int, condition: Callable[[int], bool] = lambda ino: True) -> _Begun | None:
        with self._lock:
            node = self._nodes.get(ino)
            if not _is_unsealed(node) or node.nlink == 0 or not condition(ino):
                return None
            data = self._unsealed.read_slot(node, 0, node.size) if node.content == Content.SLOT else b""
            spool = self._unsealed.spool_of(ino, node) if node.content == Content.SPOOL else None
            if (spool is not None and spool.changing) or not self._queue.begin(ino):
                self._queue.await_rest(ino, node)
                return None
            return _Begun(ino, spool, data, bool(node.flags & Inode.SYNCED))

    def _stage(self, one: _Begun, beside: Container[bytes] = ()) -> Staged | None:
        if one.spool is not None and os.fstat(one.spool.fd).st_size:
            return self._store.objects.stage_file(one.spool.fd)
        return self._store.objects.stage(one.data, beside) if one.data else None

    def _commit(self, ready: Sequence[_Ready]) -> int:
        """Returns how many of them are sealed now: all that did not change since they were begun."""
        if any(one.is_synced for one, _ in ready):  # before anything says that the synced bytes are no longer needed
            self._store.volumes.sync()
        with self._nodes.change() as txn:
            intact: list[tuple[int, Inode, Staged | None]] = []
            for one, staged in ready:
                # In this order: a file that was removed is stale, and has no inode any more.
                if not self._queue.is_stale(one.ino) and _is_unsealed(node := self._nodes.get(one.ino)):
                    if one.spool is not None:
                        refresh(node, one.spool)
                    intact.append((one.ino, node, staged))
            # First, because a file may let go of the very object that it becomes.
            if linked := [staged for _, _, staged in intact if staged is not None]:
                self._store.objects.link(txn, *linked)
            for ino, node, staged in intact:
                self._unsealed.give_up(txn, ino, node)
                self._unsealed.forget_synced(txn, node)
                if staged is not None:
                    set_content(node, Content.OBJECT, digest=staged.digest, size=staged.plain)
                    # The kernel keeps the pages that a program writes, except the last, which is written in part: the
                    # first reader asks for that page, and should not have to wait until it is decoded.
                    self._store.objects.remember(staged)
                else:
                    set_content(node, Content.NONE)
            self._counts.count(txn, [(ino, node) for ino, node, staged in intact if staged is not None])
            for ino, node, _ in intact:
                node.flags &= ~Inode.MUTABLE
                self._nodes.save(txn, ino, node)
        return len(intact)

    def _end(self, begun: Sequence[_Begun], ready: Sequence[_Ready]) -> None:
        for one in begun:
            self._queue.end(one.ino)
        for _, staged in ready:
            if staged is not None:
                self._store.objects.settle(staged)

    def statistics(self) -> dict[str, int]:
        """The numbers of unsealed files. Takes no lock: it is called when something hangs."""
        return {**self._queue.statistics(), "open_spool_files": self._unsealed.open_count}


def _is_unsealed(node: Inode) -> bool:
    """Whether there is something to seal. An emptied file with synced bytes counts: sealing notes its emptiness."""
    return node.content in (Content.SLOT, Content.SPOOL) or (node.content == Content.NONE and node.keeps_synced)


def _may_pass(error: Exception) -> bool:
    """Whether a retry may succeed: yes after too few descriptors or a disk error, no if bytes are lost."""
    return not isinstance(error, ObjectDamaged | ObjectMissing | RecordDamaged)


def _is_left_plain(one: _Begun) -> bool:
    return one.spool is not None and is_mostly_hole(one.spool.fd)


def is_mostly_hole(fd: int) -> bool:
    """Whether sealing would mostly read zeros: for hours, if a file of terabytes holds one page."""
    state = os.fstat(fd)
    return state.st_size > HOLE_MIN and state.st_blocks * 512 * 16 < state.st_size
