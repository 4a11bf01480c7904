"""Publishes the entries that a bucket does not have, as packs: the claim comes first, the record last.

A publisher killed between any two steps leaves a claim that others take over, or a pack that no record names and that
the bucket's own rule deletes. Publishing never needs the right to delete.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from kcachefs.errors import UsageError
from kcachefs.fleet import making, pack_records, snapshotting
from kcachefs.fleet.bucket import Bucket
from kcachefs.fleet.bucket_layout import day_of
from kcachefs.fleet.claims import Claims
from kcachefs.fleet.finding import FoundEntry, Say
from kcachefs.fleet.key_index import KeyIndex, key_of_names, keys_of_entries, packed_keys
from kcachefs.fleet.pack_records import PACK_MAX, PackRecord, PackReference, SignedRecord
from kcachefs.fleet.signing import Signer
from kcachefs.fleet.views import View
from kcachefs.frameworks.copying import Skipped

PACK_BYTES = 128 << 20
"""A pack ends before the entry that would take its files beyond this: so it is one frame, fetched in one go."""

_GAP = 60 * 10**9
"""Nanoseconds without a new file after which a start is taken to have stopped compiling."""

_LOOK_AGAIN = 3.0
"""Seconds between two checks of whether others have published what they claimed."""

log = logging.getLogger(__name__)


class Published(NamedTuple):
    """What became of the entries."""

    packs: list[PackReference]
    """Packs that are new in the bucket."""
    present: int
    """Entries that the bucket had already."""
    waiting: list[FoundEntry]
    """Entries that somebody else is publishing now: try again after `claims.CLAIM_SECONDS`."""
    entered: int = 0
    """Entries that are in the new packs."""
    lost: int = 0
    """Packs that are gone although their records still exist and name some of the entries."""


class Publisher:
    """Publishes into one scope of a bucket, with one key."""

    def __init__(self, bucket: Bucket, signer: Signer, claims: Claims | None = None) -> None:
        if signer.public not in bucket.trusted:
            raise UsageError("the key that signs is not among those that are trusted here; add it with --trust")
        self._bucket = bucket
        self.signer = signer
        self.claims = claims or Claims(bucket.storage, bucket.layout)

    def publish(
        self,
        view: View,
        entries: Sequence[FoundEntry],
        *,
        run: str = "",
        compile_ms: int = 0,
        level: int = making.QUICK_LEVEL,
        say: Say = lambda skipped: None,
        progress: Callable[[int], None] = lambda count: None,
    ) -> Published:
        """Publish the entries that the bucket does not have.

        `run` names the entries that were compiled together (`new_run`). `compile_ms` is how long that took; if 0, it is
        judged by the times of the files.
        """
        run = run or new_run()
        self._bucket.load_index()
        index = KeyIndex.open(self._bucket.index_path)
        missing = [one for one in entries if index is None or index.find(key_of(one)) is None]
        progress(sum(one.bytes for one in entries) - sum(one.bytes for one in missing))
        total, packs, entered, waiting, today = sum(one.bytes for one in missing) or 1, [], 0, [], ""
        for group in _groups(missing):
            # Nodes that compiled almost the same entries mostly agree on the least of their keys.
            with self.claims.taken(f"{min(map(key_of, group)):016x}") as now:
                if now is None:
                    waiting += group
                    progress(sum(one.bytes for one in group))
                    continue
                took = compile_ms * sum(one.bytes for one in group) // total
                today = day_of(now)
                put = self._put(view, group, today, run, took, level, say, progress)
                if put is not None:
                    packs.append(put[0])
                    entered += put[1]
        if packs:
            self._bucket.load_index()
            snapshotting.make_due(self._bucket, self.claims, self.signer, today)
        return Published(packs, len(entries) - len(missing), waiting, entered)

    def publish_patiently(
        self,
        view: View,
        entries: Sequence[FoundEntry],
        *,
        wait: float,
        waits: Callable[[int], None],
        level: int,
        say: Say,
        progress: Callable[[int], None],
    ) -> Published:
        """`publish`, for a caller that cannot try again later: waits up to `wait` seconds for what others publish.

        By then those entries are in the bucket, or the others' claims are old and the entries are published here.
        `waits` is called with the number of these entries, if there are any. The entries of packs that the bucket has
        lost are published again.
        """
        run, lost = new_run(), self._forget_lost(entries)
        done = self.publish(view, entries, run=run, level=level, say=say, progress=progress)
        if done.waiting and wait:
            waits(len(done.waiting))
        until = time.monotonic() + wait
        while done.waiting:
            left = until - time.monotonic()
            time.sleep(max(0.0, min(left, _LOOK_AGAIN)))
            again = self.publish(view, done.waiting, run=run, level=level, say=say)
            present, entered = done.present + again.present, done.entered + again.entered
            done = Published(done.packs + again.packs, present, again.waiting, entered)
            if left <= 0:
                break
        return done._replace(lost=lost)

    def _forget_lost(self, entries: Sequence[FoundEntry]) -> int:
        """Ban packs that should hold some of the entries but are gone; returns how many.

        A mount notices a lost pack when it fetches it; a host that only publishes never would.
        """
        asked: set[PackReference] = set()
        lost = 0
        while True:
            self._bucket.load_index()
            index = KeyIndex.open(self._bucket.index_path)
            newest = (index.find_all(key_of(one))[:1] for one in entries) if index is not None else ()
            holding = {one for found in newest for one in found} - asked
            gone = self._bucket.lost(holding)
            for one in gone:
                self._bucket.bans.add(one, "its pack is gone")
            if not gone:
                return lost
            asked |= holding
            lost += len(gone)

    def put_pack(self, path: Path, day: str, *, run: str, compile_ms: int) -> SignedRecord:
        """Put a pack that is a local file into the bucket, then its record."""
        from kcachefs.fleet import packfile

        with packfile.opened(path, self._bucket.trusted) as pack:
            manifest = pack.manifest
        keys, folders = keys_of_entries(manifest.entries)
        hasher = blake3()
        hasher.update_mmap(path)
        record = PackRecord(
            scope=self._bucket.layout.scope,
            pack=hasher.hexdigest()[:32],
            size=path.stat().st_size,
            plain=manifest.bytes,
            run=run,
            compile_ms=compile_ms,
            facts=manifest.facts,
            entries=packed_keys(keys),
            folders=packed_keys(folders),
        )
        signed = pack_records.sign(record, self.signer, day)
        storage, layout = self._bucket.storage, self._bucket.layout
        # Both objects are named by their content: an existing one is the same, and replacing it may not be allowed.
        if storage.put(layout.pack(day, record.pack), path, if_absent=True):
            self._bucket.bans.lift(signed.reference)
        storage.put(layout.record(day, record.pack), signed.raw, if_absent=True)
        return signed

    def _put(
        self,
        view: View,
        group: Sequence[FoundEntry],
        day: str,
        run: str,
        compile_ms: int,
        level: int,
        say: Say,
        progress: Callable[[int], None],
    ) -> tuple[PackReference, int] | None:
        """Make a pack and put it into the bucket; returns it and how many entries it holds, or None without any."""
        path = self._bucket.folder / f"publishing.{os.getpid()}.{secrets.token_hex(4)}.kcp"
        try:
            made = making.make(view, group, path, level=level, signer=self.signer, say=say, progress=progress)
            if not made.entries:
                return None
            if path.stat().st_size > PACK_MAX:
                say(Skipped(f"a pack of {len(made.entries)} entries is too large for a fleet"))
                return None
            took = compile_ms or writing_ms(file.mtime for entry in made.entries for file in entry.files)
            return self.put_pack(path, day, run=run, compile_ms=took).reference, len(made.entries)
        finally:
            path.unlink(missing_ok=True)


def writing_ms(times: Iterable[int]) -> int:
    """For how many milliseconds a start was busy compiling, judged by when its files were written, in nanoseconds.

    A long gap means another start, or no compiling, and does not count.

    >>> writing_ms([0, 4 * 10**9, 7 * 10**9, 9000 * 10**9])
    7000
    """
    ordered = sorted(times)
    gaps = (later - earlier for earlier, later in itertools.pairwise(ordered))
    return sum(gap for gap in gaps if gap <= _GAP) // 10**6


def new_run() -> str:
    """A new name for packs that are published together."""
    return secrets.token_hex(8)


def key_of(found: FoundEntry) -> int:
    """The key of an entry of a tree."""
    return key_of_names(found.namespace, found.path_in, found.group)


def _groups(entries: Sequence[FoundEntry]) -> Iterator[list[FoundEntry]]:
    group: list[FoundEntry] = []
    size = 0
    for one in entries:
        if group and size + one.bytes > PACK_BYTES:
            yield group
            group, size = [], 0
        group.append(one)
        size += one.bytes
    if group:
        yield group
