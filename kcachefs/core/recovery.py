"""Recovery: the first mount after the machine went down drops or takes back files that may not have reached the disk.

The catalog is in a state that it once had: in a power cut the journal loses its end, never something in the middle. So
names, and which bytes belong to which file, are consistent. Objects are too, because opening the store checked those
that were not folded yet. Everything else is *doubtful*:

- bytes in slots and spool files, which nobody syncs;
- files without bytes that are only moments old: their maker may have been about to write to them.

A doubtful file that was synced goes back to the state that was synced. Any other doubtful file is lost, and with it its
entry, because an entry is whole or absent: every file of the entry that was not synced is dropped. If some files were
synced, they stay, and the entry is what it was at that sync. If one of the synced files is lost too, which takes a
damaged disk, the whole entry goes. Only a file under a temporary name does not harm its entry: nothing refers to it
yet.

Runs before an engine serves. A kill in the middle is harmless: the next mount starts over.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable

from kcachefs.core.future_uses import EARLIEST_NS
from kcachefs.core.parts import Parts
from kcachefs.core.unsealed import set_content
from kcachefs.errors import FsError
from kcachefs.store.object_records import ObjectRecord
from kcachefs.store.records import NO_DIGEST, Content, Inode, name_of, number_of, unpack_name, unpack_time

log = logging.getLogger(__name__)

YOUNG_SECONDS = 10.0
"""An empty file made within this time of the store's last change is doubtful; an older one is taken as intended."""


def recover(parts: Parts) -> None:
    """Deal with what the power cut may have damaged, and note in the store that this was done."""
    Recovery(parts).run()
    parts.store.power_loss_settled()


class Recovery:
    """Looks at all inodes once, and acts on what it finds."""

    def __init__(self, parts: Parts) -> None:
        self._store = parts.store
        self._nodes = parts.nodes
        self._tree = parts.tree
        self._distrust = parts.distrust
        self._walk = parts.walk
        self._placement = parts.placement
        self._counts = parts.counts
        self._table = parts.table
        self._history = parts.history
        self._unsealed = parts.unsealed
        self._temporaries = parts.temporaries
        self._damaged: set[bytes] = set()

    def run(self) -> None:
        doubtful = self._doubtful()
        taken_back = {ino for ino in doubtful if self._take_back(ino)}
        lost = doubtful - taken_back
        entries = {entry for ino in lost for entry in self._entries_of(ino)} | self._entries_by_other_names(lost)
        for entry in entries:
            self._drop_entry(entry, lost)
        for _ in self._distrust.drop_files({ino for ino in lost if self._nodes.exists(ino)}):
            pass  # no engine serves yet that could tell the kernel
        if doubtful:
            log.warning(
                "the machine went down while the store was in use: %d files had not reached the disk and were dropped, "
                "%d entries with them; %d files are as they were when they were synced",
                len(lost),
                len(entries),
                len(taken_back),
            )

    # --- looking ------------------------------------------------------------------------------------------------------

    def _doubtful(self) -> set[int]:
        catalog = self._store.catalog
        catalog.fold()
        for key, raw in catalog.walk(b"o"):
            if raw is not None and ObjectRecord.unpack(raw).flags & ObjectRecord.DAMAGED:
                self._damaged.add(key[1:])
        doubtful: set[int] = set()
        empty: dict[int, int] = {}
        newest, now = 0, time.time_ns()
        for key, raw in catalog.walk(b"i"):
            node = Inode.unpack(raw) if raw is not None else None
            if node is None or not node.is_file or not node.nlink:
                continue
            if node.ctime <= now or now < EARLIEST_NS:  # else the clock was ahead, and young files would look old
                newest = max(newest, node.ctime)
            if self._is_doubtful(node):
                doubtful.add(number_of(key))
            elif node.content == Content.NONE and not node.flags & Inode.SYNCED:
                empty[number_of(key)] = node.ctime
        horizon = newest - int(YOUNG_SECONDS * 1e9)
        return doubtful | {ino for ino, changed in empty.items() if changed > horizon}

    def _is_doubtful(self, node: Inode) -> bool:
        if node.content == Content.OBJECT:
            return node.digest in self._damaged
        return node.content in (Content.SLOT, Content.SPOOL) or node.keeps_synced

    def _entries_of(self, ino: int) -> Iterable[int]:
        """The entry that a file is part of; none if the file, or a folder above it there, has a temporary name."""
        node = self._nodes.get(ino)
        if node.entry:
            above = ino
            while above != node.entry and self._nodes.get(above).entry == node.entry:
                if above in self._temporaries:
                    return
                above = self._nodes.get(above).parent
            yield node.entry

    def _entries_by_other_names(self, lost: set[int]) -> set[int]:
        """The entries that lose a file because another of its names, a hard link, is in them."""
        linked = {ino for ino in lost if self._nodes.get(ino).nlink > 1}
        entries: set[int] = set()
        for key, raw in self._store.catalog.walk(b"n") if linked else ():
            if raw is not None and unpack_name(raw)[0] in linked:
                parent, name = number_of(key), name_of(key)[1]
                with contextlib.suppress(FsError):
                    entries.add(self._nodes.get(parent).entry or self._placement.group_at(parent, name))
        return entries - {0}

    # --- acting -------------------------------------------------------------------------------------------------------

    def _take_back(self, ino: int) -> bool:
        """Take a file back to its synced state; False if it was never synced, or if that state is damaged."""
        with self._nodes.change() as txn:
            node = self._nodes.get(ino)
            record = self._store.objects.record_in(txn, node.digest) if node.digest != NO_DIGEST else None
            if not node.keeps_synced or node.digest in self._damaged or (node.digest != NO_DIGEST and record is None):
                return False
            kept, mtime = node.digest, unpack_time(node.target)
            self._unsealed.give_up(txn, ino, node)
            node.target, node.mtime = b"", mtime
            node.flags &= ~Inode.MUTABLE
            if record is None:
                set_content(node, Content.NONE)
            else:
                set_content(node, Content.OBJECT, digest=kept, size=record.plain)
                self._counts.count(txn, ((ino, node),))
            self._nodes.save(txn, ino, node)
        return True

    def _drop_entry(self, entry: int, lost: set[int]) -> None:
        """Drop an entry's unsynced files in one transaction: a kill leaves none of them, or all for the next mount."""
        with self._nodes.change() as txn:
            record = self._table.get(entry, txn)
            members = list(self._walk.members(entry))
            nodes = {ino: self._nodes.get(ino) for ino, _, _ in members}
            synced = {ino for ino, node in nodes.items() if node.flags & Inode.SYNCED}
            if synced and not synced & lost:
                members = [row for row in members if nodes[row[0]].is_file and row[0] not in synced]
            self._tree.remove_all(txn, members)
        if record is not None:
            self._history.note_gone(record, "power cut")
