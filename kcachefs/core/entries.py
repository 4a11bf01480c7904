"""Entries: what is used, counted and evicted as one, and the order in which they were last used.

Which entry a file belongs to is settled when it gets its name, by the layout of its namespace: below an entry's folder
everything belongs to it, and elsewhere `layouts.place` says. A folder's entry has the folder's inode as its number; a
group of files has one of its own.

An entry is counted from the first of its files that is sealed, in the transaction that seals it, so the request path
writes nothing for it. Uses are seen through the heartbeat: the name of an entry expires in the kernel after a second,
so a process that comes to it costs one lookup, however many files it then reads. Uses gather in memory and are written
every few seconds; a kill loses that much of the order and nothing else.

A hit is an entry found complete by a process that did not write it, and serves all its bytes. A miss is an entry that
had to be made: not one that was adopted, which the inode of its folder or of its first file tells.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, OrderedDict
from pathlib import Path

from kcachefs.core.layouts import Kind, Spot, is_temporary, place
from kcachefs.core.nodes import Nodes
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.records import (
    GROUP_BASE,
    ROOT_INO,
    Content,
    EntryRecord,
    Inode,
    NamespaceRecord,
    counts_key,
    entry_key,
    group_key,
    name_of,
    names_prefix,
    number_of,
    order_key,
    pack_number,
    temporary_key,
    unpack_name,
    unpack_number,
)

HEARTBEAT_SECONDS = 1
"""How long the kernel may remember an entry's name before it asks again."""
COMPLETE_NS = 200_000_000
"""How long after its last write an entry counts as complete: nobody tells when its writer is done."""
_FLUSH_CHUNK = 200
_SEEN_MAX = 65536
_STRUCTURE = Spot(Kind.STRUCTURE)


class Entries:
    """The entries of one filesystem."""

    def __init__(self, store: Store, nodes: Nodes) -> None:
        self._catalog = store.catalog
        self._objects = store.objects
        self._nodes = nodes
        self._paths: dict[int, tuple[int, tuple[bytes, ...]]] = {}
        self._writers: OrderedDict[int, int] = OrderedDict()
        self._written: OrderedDict[int, int] = OrderedDict()
        self._seen: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.used: dict[int, int] = {}
        """When entries were last used, as far as it is not written down yet."""
        self._hits: Counter[int] = Counter()
        self._last_order = 0
        self.temporary = {number_of(key) for key, _ in store.catalog.walk(b"w")}
        """What is written under a temporary name; few at any time."""

    # --- which entry a file belongs to --------------------------------------------------------------------------------

    def label(self, txn: Transaction, ino: int, parent: int, folder: Inode, name: bytes, is_dir: bool, pid: int) -> int:
        """The entry of a new name, and who writes it."""
        if folder.entry:
            if is_temporary(name):
                self._note_temporary(txn, ino, pid)
            return folder.entry
        spot = self._spot(parent, folder, name, is_dir)
        entry = self._entry_at(txn, ino, parent, name, spot, is_dir)
        if spot.kind is Kind.TEMP:
            self._note_temporary(txn, ino, pid)
        elif entry:
            self._note_writer(entry, pid)
        return entry

    def moved(self, txn: Transaction, ino: int, node: Inode, new_parent: int, new_name: bytes, pid: int) -> None:
        """A name moved: what it leads to may belong to another entry now."""
        folder = self._nodes.get(new_parent)
        if ino in self.temporary and not is_temporary(new_name):
            self.removed(txn, ino)
        if node.is_dir:
            self._paths.clear()
        if folder.entry:
            entry = folder.entry
        else:
            spot = self._spot(new_parent, folder, new_name, node.is_dir)
            entry = self._entry_at(txn, ino, new_parent, new_name, spot, node.is_dir)
            if entry:
                self._note_writer(entry, pid)
        if entry == node.entry:
            if entry == ino:
                self._relocate(txn, entry, new_parent, new_name)
        elif node.is_dir:
            self._relabel(txn, ino, node, entry)
        else:
            self._change_label(txn, ino, node, entry)

    def removed(self, txn: Transaction, ino: int) -> None:
        """A name was removed: if it was a temporary one, there is nothing left to reap."""
        if ino in self.temporary:
            self.temporary.discard(ino)
            txn.delete(temporary_key(ino))

    def _spot(self, parent: int, folder: Inode, name: bytes, is_dir: bool) -> Spot:
        if parent == ROOT_INO:
            return _STRUCTURE if is_dir else Spot(Kind.GROUP, name)
        namespace, path = self._path(parent, folder)
        return place(self._nodes.get(namespace).target, (*path, name), is_dir)

    def _path(self, ino: int, node: Inode) -> tuple[int, tuple[bytes, ...]]:
        """A folder's namespace, and its path in there."""
        found = self._paths.get(ino)
        if found is None:
            if node.parent == ROOT_INO:
                found = (ino, ())
            else:
                namespace, above = self._path(node.parent, self._nodes.get(node.parent))
                found = (namespace, (*above, node.target))
            if len(self._paths) > 10000:
                self._paths.clear()
            self._paths[ino] = found
        return found

    def _entry_at(self, txn: Transaction, ino: int, parent: int, name: bytes, spot: Spot, is_dir: bool) -> int:
        if spot.kind is Kind.TREE or (spot.kind is Kind.TEMP and is_dir):
            return ino
        if spot.kind is not Kind.GROUP:
            return 0
        key = group_key(parent, spot.group)
        raw = txn.get(key)
        if raw is not None:
            return unpack_number(raw)
        entry = GROUP_BASE | ino
        txn.put(key, pack_number(entry))
        folder = self._nodes.get(parent)
        namespace = ROOT_INO if parent == ROOT_INO else self._path(parent, folder)[0]
        now = time.time_ns()
        txn.put(entry_key(entry), EntryRecord(namespace, parent, now, 0, 0, 0, 0, 0, 0, spot.group).pack())
        return entry

    def _relocate(self, txn: Transaction, entry: int, folder: int, name: bytes) -> None:
        raw = txn.get(entry_key(entry))
        if raw is not None:
            record = EntryRecord.unpack(raw)
            namespace = self._path(folder, self._nodes.get(folder))[0]
            if namespace != record.namespace:
                self._move_counts(txn, entry, record, namespace)
            record.folder, record.name = folder, name
            txn.put(entry_key(entry), record.pack())

    def _move_counts(self, txn: Transaction, entry: int, record: EntryRecord, namespace: int) -> None:
        for where, sign in ((record.namespace, -1), (namespace, +1)):
            counts = self.counts(txn, where)
            counts.entries += sign
            counts.files += sign * record.files
            counts.plain += sign * record.plain
            counts.stored += sign * record.stored
            txn.put(counts_key(where), counts.pack())
        if record.used and not record.flags & EntryRecord.PINNED:
            txn.delete(order_key(record.namespace, record.used))
            txn.put(order_key(namespace, record.used), pack_number(entry))
        record.namespace = namespace

    def _relabel(self, txn: Transaction, ino: int, node: Inode, entry: int) -> None:
        """A folder came to belong to another entry, and with it all below it that belonged to the same as it did."""
        old = node.entry
        self._change_label(txn, ino, node, entry)
        below = [(ino, node)]
        while below:
            folder, _ = below.pop()
            for _, raw in self._catalog.scan(names_prefix(folder)):
                child_ino = unpack_name(raw)[0]
                child = self._nodes.get(child_ino)
                if child.entry == old and old != 0:
                    self._change_label(txn, child_ino, child, entry)
                    self._nodes.save(txn, child_ino, child)
                    if child.is_dir:
                        below.append((child_ino, child))

    def _change_label(self, txn: Transaction, ino: int, node: Inode, entry: int) -> None:
        if node.content == Content.OBJECT:
            self.uncount(txn, node)
            node.entry = entry
            self.count(txn, ino, node)
        else:
            self.abandoned(txn, node)
            node.entry = entry

    # --- what an entry adds up to -------------------------------------------------------------------------------------

    def count(self, txn: Transaction, ino: int, node: Inode) -> None:
        """A file of an entry was sealed."""
        if not node.entry:
            return
        raw = txn.get(entry_key(node.entry))
        record = EntryRecord.unpack(raw) if raw is not None else self._new_record(txn, ino, node)
        if record is None:
            return
        self._written.pop(node.entry, None)
        stored = self._stored(txn, node)
        counts = self.counts(txn, record.namespace)
        if not record.used:
            self._enter(txn, node.entry, record, counts, self._is_adopted(node))
        record.files += 1
        record.plain += node.size
        record.stored += stored
        counts.files += 1
        counts.plain += node.size
        counts.stored += stored
        txn.put(entry_key(node.entry), record.pack())
        txn.put(counts_key(record.namespace), counts.pack())

    def uncount(self, txn: Transaction, node: Inode, *, gone: bool = True) -> None:
        """A sealed file of an entry goes, or (not `gone`) is about to be written again. The object is still there."""
        raw = txn.get(entry_key(node.entry)) if node.entry else None
        if raw is None:
            return
        record = EntryRecord.unpack(raw)
        stored = self._stored(txn, node)
        counts = self.counts(txn, record.namespace)
        record.files -= 1
        record.plain -= node.size
        record.stored -= stored
        counts.files -= 1
        counts.plain -= node.size
        counts.stored -= stored
        txn.put(entry_key(node.entry), record.pack())
        txn.put(counts_key(record.namespace), counts.pack())
        if gone:
            self.abandoned(txn, node)

    def counts(self, txn: Transaction | None, namespace: int) -> NamespaceRecord:
        return NamespaceRecord.unpack((txn or self._catalog).get(counts_key(namespace)))

    def abandoned(self, txn: Transaction, node: Inode) -> None:
        """A file goes; if its entry holds no sealed one any more, that goes too. What is unsealed makes it again."""
        raw = txn.get(entry_key(node.entry)) if node.entry else None
        record = EntryRecord.unpack(raw) if raw is not None else None
        if record is None or record.files:
            return
        if record.used:
            counts = self.counts(txn, record.namespace)
            counts.entries -= 1
            txn.put(counts_key(record.namespace), counts.pack())
        self._leave(txn, node.entry, record)

    def path_of(self, record: EntryRecord) -> tuple[bytes, ...]:
        """Where an entry stands: its namespace, the folders below it, its own name."""
        if record.folder == ROOT_INO:
            return (record.name,)
        namespace, path = self._path(record.folder, self._nodes.get(record.folder))
        return (self._nodes.get(namespace).target, *path, record.name)

    def namespaces(self) -> list[tuple[int, str, NamespaceRecord]]:
        """Every namespace that has ever held an entry: its folder's inode, its name, what it holds."""
        found = []
        for number in sorted(self._namespaces()):
            with contextlib.suppress(FsError):
                label = "" if number == ROOT_INO else self._nodes.get(number).target.decode(errors="replace")
                found.append((number, label, self.counts(None, number)))
        return found

    def _namespaces(self) -> set[int]:
        rows = self._catalog.scan(names_prefix(ROOT_INO))
        return {ROOT_INO} | {ino for ino, kind in (unpack_name(raw) for _, raw in rows) if kind == 4}

    def _new_record(self, txn: Transaction, ino: int, node: Inode) -> EntryRecord | None:
        entry = node.entry
        if entry >= GROUP_BASE:
            return self._regroup(txn, ino, node)
        try:
            root = self._nodes.get(entry)
            namespace = self._path(root.parent, self._nodes.get(root.parent))[0]
        except FsError:
            return None
        return EntryRecord(namespace, root.parent, time.time_ns(), 0, 0, 0, 0, 0, 0, root.target)

    def _regroup(self, txn: Transaction, ino: int, node: Inode) -> EntryRecord | None:
        """Make a group's record again, which went with another file of the group that was never sealed."""
        with contextlib.suppress(FsError):
            folder = self._nodes.get(node.parent)
            for key, raw in self._catalog.scan(names_prefix(node.parent)):
                if unpack_name(raw)[0] == ino:
                    name = name_of(key)[1]
                    spot = self._spot(node.parent, folder, name, False)
                    node.entry = self._entry_at(txn, ino, node.parent, name, spot, False)
                    found = txn.get(entry_key(node.entry)) if node.entry >= GROUP_BASE else None
                    return EntryRecord.unpack(found) if found is not None else None
        return None

    def _is_adopted(self, node: Inode) -> bool:
        with contextlib.suppress(FsError):
            root = node if node.entry >= GROUP_BASE else self._nodes.get(node.entry)
            return bool(root.flags & Inode.ADOPTED)
        return False

    def _enter(
        self, txn: Transaction, entry: int, record: EntryRecord, counts: NamespaceRecord, is_adopted: bool
    ) -> None:
        counts.entries += 1
        counts.misses += not is_adopted
        record.used = counts.used = self._next_order(time.time_ns())
        txn.put(order_key(record.namespace, record.used), pack_number(entry))

    def _leave(self, txn: Transaction, entry: int, record: EntryRecord) -> None:
        txn.delete(entry_key(entry))
        txn.delete(order_key(record.namespace, record.used))
        if entry >= GROUP_BASE:
            txn.delete(group_key(record.folder, record.name))

    def _stored(self, txn: Transaction, node: Inode) -> int:
        record = self._objects.record_in(txn, node.digest)
        return record.length if record is not None else 0

    def _next_order(self, now: int) -> int:
        self._last_order = max(now, self._last_order + 1)
        return self._last_order

    # --- uses ---------------------------------------------------------------------------------------------------------

    def written(self, entry: int) -> None:
        """A file of an entry is being written: that is a use, and for a moment the entry is not complete."""
        self.used[entry] = self._written[entry] = time.time_ns()
        if len(self._written) > _SEEN_MAX:
            self._written.popitem(last=False)

    def touch(self, entry: int, pid: int) -> None:
        """The kernel asked for an entry's name on behalf of a process."""
        now = time.time_ns()
        self.used[entry] = now
        if not pid or now - self._written.get(entry, 0) < COMPLETE_NS:
            return
        seen = (entry, pid)
        if seen in self._seen or self._writers.get(entry) == pid:
            return
        self._seen[seen] = None
        if len(self._seen) > _SEEN_MAX:
            self._seen.popitem(last=False)
        process, writer = process_of(pid), self._writers.get(entry)
        if writer is not None and process == process_of(writer):
            return
        if process != pid:
            if (entry, process) in self._seen:
                return
            self._seen[entry, process] = None
        self._hits[entry] += 1

    def flush(self) -> None:
        """Write down what was used since the last time."""
        used, self.used = self.used, {}
        hits, self._hits = self._hits, Counter()
        pending = sorted(used.items(), key=lambda item: item[1])
        for start in range(0, len(pending), _FLUSH_CHUNK):
            with self._nodes.change() as txn:
                for entry, when in pending[start : start + _FLUSH_CHUNK]:
                    if not self._write_use(txn, entry, when, hits.pop(entry, 0)):
                        # Not sealed yet: its hits are kept until it is.
                        self.used.setdefault(entry, when)

    def _write_use(self, txn: Transaction, entry: int, when: int, hits: int) -> bool:
        raw = txn.get(entry_key(entry))
        record = EntryRecord.unpack(raw) if raw is not None else None
        if record is None or not record.used:
            if hits and self._nodes.exists(entry & ~GROUP_BASE):
                self._hits[entry] += hits
                return False
            return True
        counts = self.counts(txn, record.namespace)
        if not record.flags & EntryRecord.PINNED:
            txn.delete(order_key(record.namespace, record.used))
            when = self._next_order(when)
            txn.put(order_key(record.namespace, when), pack_number(entry))
        record.used = when
        record.hits += hits
        counts.hits += hits
        counts.served += hits * record.plain
        counts.used = max(counts.used, when)
        txn.put(entry_key(entry), record.pack())
        txn.put(counts_key(record.namespace), counts.pack())
        return True

    def _note_writer(self, entry: int, pid: int) -> None:
        self._writers[entry] = pid
        if len(self._writers) > _SEEN_MAX:
            self._writers.popitem(last=False)

    def _note_temporary(self, txn: Transaction, ino: int, pid: int) -> None:
        self.temporary.add(ino)
        txn.put(temporary_key(ino), pack_number(time.time_ns()) + pack_number(pid))


def process_of(pid: int) -> int:
    """The process that a thread belongs to: requests carry the thread's number."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Tgid:"):
                return int(line[5:])
    return pid
