"""Publishes entries again that are still used, before the bucket's own rule deletes them. Needs no right to delete.

A pack is copied inside the bucket, with its record, if at least half of it is used. From other packs only the used
entries are put into a new pack, so that entries nobody uses grow old and are deleted.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from kcachefs.errors import FleetError, FleetMissing, PackError
from kcachefs.fleet import making, packfile
from kcachefs.fleet.bucket import Bucket
from kcachefs.fleet.bucket_layout import day_before, day_of
from kcachefs.fleet.finding import FoundEntry
from kcachefs.fleet.key_index import FOLDER, KeyIndex
from kcachefs.fleet.manifest import PackedEntry
from kcachefs.fleet.pack_records import PackReference
from kcachefs.fleet.publishing import PACK_BYTES, Publisher, key_of, new_run
from kcachefs.fleet.views import Child, Seen


class Renewed(NamedTuple):
    """What was published again."""

    copied: list[PackReference]
    """The new copies of packs."""
    repacked: list[PackReference]
    """New packs that hold the used entries of old ones."""


def renew(bucket: Bucket, publisher: Publisher, used: Collection[int]) -> Renewed:
    """Publish again those of the used entries whose packs have all passed two thirds of their time in the bucket.

    `used` are keys of entries that this node used recently. Load the index first. A pack that cannot be published does
    not hold back the others; the first error of the bucket is raised at the end.
    """
    index = KeyIndex.open(bucket.index_path)
    if index is None or not index.packs:
        return Renewed([], [])
    old = day_before(day_of(publisher.claims.now()), bucket.settings.days * 2 // 3)
    held = Counter(number for _, number, is_folder in index.rows() if not is_folder)
    wanted: dict[int, set[int]] = {}
    for key in used:
        number = index.find(key)
        if number is not None and number != FOLDER and index.packs[number].day <= old:
            wanted.setdefault(number, set()).add(key)
    copied, parts, today = [], _Parts(), ""
    repacked: list[PackReference] = []
    failed: list[FleetError] = []
    for number, keys in sorted(wanted.items()):
        reference = index.packs[number]
        # Outside the `try`: a bucket that does not even accept a claim would fail for every pack.
        now = publisher.claims.take(f"renew-{reference.day}-{reference.pack}")
        if now is None:
            continue
        today = day_of(now)
        try:
            if 2 * len(keys) >= held[number]:
                copied.append(_copy(bucket, reference, today))
            else:
                parts.add(bucket, reference, keys)
            if parts.bytes > PACK_BYTES:
                full, parts = parts, _Parts()
                repacked.append(full.put(bucket, publisher, today))
        except (FleetMissing, PackError):
            continue  # the pack is gone or useless: it is banned, and nobody can renew it
        except FleetError as error:
            failed.append(error)
    if parts.entries:
        try:
            repacked.append(parts.put(bucket, publisher, today))
        except FleetError as error:
            failed.append(error)
    if copied or repacked:
        bucket.load_index()
    if failed:
        raise failed[0]
    return Renewed(copied, repacked)


def _copy(bucket: Bucket, reference: PackReference, today: str) -> PackReference:
    """Copy a pack, with the record last, as when it was first published."""
    layout = bucket.layout
    try:
        for name in (layout.pack, layout.record):
            bucket.storage.copy(name(reference.day, reference.pack), name(today, reference.pack))
    except FleetMissing as error:
        bucket.ban(reference, str(error))
        raise
    return msgspec.structs.replace(reference, day=today)


class _Parts:
    """Entries of several packs, on their way into a new one."""

    def __init__(self) -> None:
        self.bytes = 0
        self.entries: list[FoundEntry] = []
        self._compile_ms = 0
        self._contents: dict[tuple[str, ...], Seen] = {}

    def add(self, bucket: Bucket, reference: PackReference, keys: Collection[int]) -> None:
        path = bucket.fetch_pack(reference)
        try:
            with packfile.opened(path, bucket.trusted) as pack:
                for frame, plain in pack.decoded():
                    for entry in frame.entries:
                        self._add(entry, plain, reference, keys)
        finally:
            path.unlink(missing_ok=True)

    def _add(self, entry: PackedEntry, plain: memoryview, reference: PackReference, keys: Collection[int]) -> None:
        size = sum(file.size for file in entry.files)
        found = FoundEntry(
            namespace=entry.namespace,
            path_in=tuple(entry.path),
            group=entry.group,
            files=[file.name for file in entry.files],
            bytes=size,
        )
        if key_of(found) not in keys:
            return
        for file in entry.files:
            content = bytes(plain[file.offset : file.offset + file.size])
            at = (entry.namespace, *entry.path, *file.name.split("/"))
            self._contents[at] = Seen(file.mode, file.mtime, content)
        self.entries.append(found)
        self.bytes += size
        self._compile_ms += reference.compile_ms * size // max(reference.plain, 1)

    def put(self, bucket: Bucket, publisher: Publisher, today: str) -> PackReference:
        """Publish the entries as one pack."""
        path = bucket.folder / f"renewing.{os.getpid()}.{secrets.token_hex(4)}.kcp"
        entries = sorted(self.entries, key=lambda one: (one.namespace, one.path_in, one.group))
        try:
            making.make(_Contents(self._contents), entries, path, level=making.QUICK_LEVEL, signer=publisher.signer)
            signed = publisher.put_pack(path, today, run=new_run(), compile_ms=self._compile_ms)
        finally:
            path.unlink(missing_ok=True)
        return signed.reference


class _Contents:
    """A view of files in memory."""

    def __init__(self, contents: dict[tuple[str, ...], Seen]) -> None:
        self._contents = contents

    def children(self, path: tuple[str, ...]) -> list[Child]:
        depth = len(path)
        names = {at[depth]: len(at) > depth + 1 for at in self._contents if at[:depth] == path}
        return [Child(name, is_folder, not is_folder) for name, is_folder in sorted(names.items())]

    def size(self, path: tuple[str, ...]) -> int:
        return len(self._contents[path].content)

    def read(self, path: tuple[str, ...]) -> Seen:
        return self._contents[path]
