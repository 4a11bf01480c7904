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

On a user's account are the entries that they made, and the files and bytes that they own, in whose entry ever: nobody
can use up another's quota.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path

from kcachefs.core.layouts import Kind, Spot, is_temporary, place
from kcachefs.core.nodes import Nodes
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.records import (
    GROUP_BASE,
    ROOT_INO,
    TENANTS,
    Content,
    EntryRecord,
    Inode,
    NamespaceRecord,
    counts_key,
    entry_key,
    group_key,
    name_key,
    name_of,
    names_prefix,
    number_of,
    order_key,
    pack_number,
    share_key,
    share_of,
    shares_prefix,
    temporary_key,
    unpack_name,
    unpack_number,
)

HEARTBEAT_SECONDS = 1
"""How long the kernel may remember an entry's name before it asks again."""
COMPLETE_NS = 200_000_000
"""How long after its last write an entry counts as complete: nobody tells when its writer is done."""
_FLUSH_CHUNK = 200
_LOOKED_AT = 256
"""Names of a folder that are looked at for another name of a file, while requests wait."""
_SEEN_MAX = 65536
_STRUCTURE = Spot(Kind.STRUCTURE)
_Held = tuple[int, int, int]
"""Files, their bytes, the bytes stored for them."""


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
        self._hits: dict[int, Counter[int]] = {}
        """By entry and by who had them, as far as they are not written down yet."""
        self._last_order = 0
        raw = self._catalog.get(name_key(ROOT_INO, TENANTS))
        self.tenants = unpack_name(raw)[0] if raw is not None else 0
        """The folder of the users who have a tree of their own, or 0."""
        self.roots = {ROOT_INO, *(unpack_name(row)[0] for _, row in self._catalog.scan(names_prefix(self.tenants)))}
        """Folders that hold namespaces: the root, and one of each of these users."""
        self.temporary = set(map(number_of, store.catalog.keys(b"w")))
        """What is written under a temporary name; few at any time."""

    # --- which entry a file belongs to --------------------------------------------------------------------------------

    def label(
        self, txn: Transaction, ino: int, parent: int, folder: Inode, name: bytes, is_dir: bool, uid: int, pid: int
    ) -> int:
        """The entry of a new name, and who writes it."""
        if folder.entry:
            if is_temporary(name):
                self._note_temporary(txn, ino, pid)
            return folder.entry
        spot = self._spot(parent, folder, name, is_dir)
        entry = self._entry_at(txn, ino, parent, spot, is_dir, uid)
        if spot.kind is Kind.TEMP:
            self._note_temporary(txn, ino, pid)
        elif entry:
            self._note_writer(entry, pid)
        return entry

    def moved(self, txn: Transaction, ino: int, node: Inode, new_parent: int, new_name: bytes, pid: int) -> None:
        """A name moved: what it leads to may belong to another entry now."""
        if ino in self.temporary and not is_temporary(new_name):
            self.removed(txn, ino)
        if node.is_dir:
            self._paths.clear()
        entry, begins = self._entry_under(txn, ino, node, new_parent, new_name)
        if entry and entry != self._nodes.get(new_parent).entry:
            self._note_writer(entry, pid)
        if begins and ino not in self.temporary:
            self._note_temporary(txn, ino, pid)
        if entry == node.entry:
            if entry == ino:
                self._relocate(txn, entry, new_parent, new_name)
        elif node.is_dir:
            self._relabel(txn, ino, node, entry)
        else:
            self._change_label(txn, ino, node, entry)

    def linked(self, txn: Transaction, ino: int, node: Inode, parent: int, name: bytes) -> None:
        """A file got one more name. It stays in its entry; what was temporary comes to that of the new name."""
        if ino not in self.temporary:
            node.parent = parent
        elif not node.entry:  # its folder stays that of the temporary name, which is the one to be reaped
            self._change_label(txn, ino, node, self._entry_under(txn, ino, node, parent, name)[0])

    def unlinked(self, txn: Transaction, ino: int, node: Inode, parent: int, name: bytes) -> None:
        """One name of several goes. If it was the one in the file's entry, the file belongs where another name is.

        That is looked for where it is found quickly. Where it is not, the evictor looks when it finds the entry empty.
        """
        if (self._nodes.get(parent).entry or self.group_at(parent, name, txn)) == node.entry:
            for key in self._names_near(node.parent, parent, name):
                raw = txn.get(key)
                if raw is not None and unpack_name(raw)[0] == ino:
                    self.rehome(txn, ino, node, number_of(key), name_of(key)[1])
                    return

    def _names_near(self, newest: int, parent: int, name: bytes) -> Iterator[bytes]:
        """Where a file that had this name may have another: in the folder of its newest one, or beside it."""
        yield name_key(newest, name)
        for folder in (newest, parent):
            for key, _ in self._catalog.scan(names_prefix(folder), limit=_LOOKED_AT):
                yield key

    def rehome(self, txn: Transaction, ino: int, node: Inode, parent: int, name: bytes) -> None:
        """Have a file belong to the entry of that name of it."""
        node.parent = parent
        entry, _ = self._entry_under(txn, ino, node, parent, name)
        if entry != node.entry:
            self._change_label(txn, ino, node, entry)

    def removed(self, txn: Transaction, ino: int) -> None:
        """A name was removed: if it was a temporary one, there is nothing left to reap."""
        if ino in self.temporary:
            txn.undo(lambda: self.temporary.add(ino))
            self.temporary.discard(ino)
            txn.delete(temporary_key(ino))

    def is_lock(self, ino: int, node: Inode) -> bool:
        """Whether a file is in no entry because it is a lock; it may also be in the making, or have lost its name."""
        return not (node.entry or node.nlink == 0 or node.flags & Inode.PUBLISHED or ino in self.temporary)

    def kind_at(self, parent: int, name: bytes, *, is_dir: bool) -> Kind:
        """What a name in that folder is, or would be, by the layout alone."""
        return self._spot(parent, self._nodes.get(parent), name, is_dir).kind

    def group_at(self, parent: int, name: bytes, txn: Transaction | None = None) -> int:
        """The entry of the group that a file of that name in a folder belongs to; 0 where there is none."""
        spot = self._spot(parent, self._nodes.get(parent), name, False)
        raw = (txn or self._catalog).get(group_key(parent, spot.group)) if spot.kind is Kind.GROUP else None
        return unpack_number(raw) if raw is not None else 0

    def _entry_under(self, txn: Transaction, ino: int, node: Inode, parent: int, name: bytes) -> tuple[int, bool]:
        """The entry that an inode belongs to by one of its names, and whether that is one of a part in the making."""
        folder = self._nodes.get(parent)
        if folder.entry:
            return folder.entry, is_temporary(name)
        spot = self._spot(parent, folder, name, node.is_dir)
        return self._entry_at(txn, ino, parent, spot, node.is_dir, node.uid), spot.kind is Kind.TEMP

    def _spot(self, parent: int, folder: Inode, name: bytes, is_dir: bool) -> Spot:
        if parent in self.roots or parent == self.tenants:
            return _STRUCTURE if is_dir else Spot(Kind.GROUP, name)
        namespace, path = self._path(parent, folder)
        return place(self._nodes.get(namespace).target, (*path, name), is_dir)

    def _path(self, ino: int, node: Inode) -> tuple[int, tuple[bytes, ...]]:
        """A folder's namespace, and its path in there."""
        found = self._paths.get(ino)
        if found is None:
            if node.parent in self.roots:
                found = (ino, ())
            else:
                namespace, above = self._path(node.parent, self._nodes.get(node.parent))
                found = (namespace, (*above, node.target))
            if len(self._paths) > 10000:
                self._paths.clear()
            self._paths[ino] = found
        return found

    def _entry_at(self, txn: Transaction, ino: int, parent: int, spot: Spot, is_dir: bool, uid: int) -> int:
        if spot.kind is Kind.TREE or (spot.kind is Kind.TEMP and is_dir):
            return ino
        if spot.kind is not Kind.GROUP:
            return 0
        key = group_key(parent, spot.group)
        raw = txn.get(key)
        if raw is not None:
            return unpack_number(raw)
        entry = GROUP_BASE | ino
        if txn.get(entry_key(entry)) is not None:  # the file began another group, which others may still be in
            entry = GROUP_BASE | self._nodes.allocate(txn)
        txn.put(key, pack_number(entry))
        namespace = parent if parent in self.roots else self._path(parent, self._nodes.get(parent))[0]
        txn.put(entry_key(entry), _new(namespace, parent, uid, spot.group).pack())
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
        owners = self._owners(txn, entry, record)
        for where, sign in ((record.namespace, -1), (namespace, +1)):
            with self.booked(txn, where, record.uid) as accounts:
                for counts in accounts:
                    counts.entries += sign
            for uid, held in owners.items():
                self._book(txn, where, uid, held, sign)
        if record.used and not record.flags & EntryRecord.PINNED:
            txn.delete(order_key(record.namespace, record.used))
            txn.put(order_key(namespace, record.used), pack_number(entry))
        record.namespace = namespace

    def _owners(self, txn: Transaction, entry: int, record: EntryRecord) -> dict[int, _Held]:
        """What is whose in an entry that is a folder. What has no name there any more is its maker's."""
        sealed: dict[int, Inode] = {}
        folders = [entry]
        while folders:
            for _, raw in self._catalog.scan(names_prefix(folders.pop())):
                ino = unpack_name(raw)[0]
                node = self._nodes.get(ino)
                if node.is_dir:
                    folders.append(ino)
                elif node.content == Content.OBJECT and node.entry == entry:
                    sealed[ino] = node
        owners: dict[int, _Held] = {}
        left = (record.files, record.plain, record.stored)
        for node in sealed.values():
            if node.uid != record.uid:
                held = (1, node.size, self._stored(txn, node))
                owners[node.uid] = _sum(owners.get(node.uid, (0, 0, 0)), held)
                left = _sum(left, held, -1)
        return owners | {record.uid: left}

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
        record = self.record(txn, node.entry) or self._new_record(txn, ino, node)
        if record is None:
            node.entry, node.flags = 0, node.flags | Inode.PUBLISHED  # no lock for that
            return
        self._written.pop(node.entry, None)
        stored = self._stored(txn, node)
        if not record.used:
            self._enter(txn, node.entry, record, self._is_adopted(node))
        record.files += 1
        record.plain += node.size
        record.stored += stored
        self._book(txn, record.namespace, node.uid, (1, node.size, stored))
        txn.put(entry_key(node.entry), record.pack())

    def uncount(self, txn: Transaction, node: Inode, *, gone: bool = True) -> None:
        """A sealed file of an entry goes, or (not `gone`) is about to be written again. The object is still there."""
        record = self.record(txn, node.entry) if node.entry else None
        if record is None:
            return
        stored = self._stored(txn, node)
        record.files -= 1
        record.plain -= node.size
        record.stored -= stored
        self._book(txn, record.namespace, node.uid, (1, node.size, stored), -1)
        txn.put(entry_key(node.entry), record.pack())
        if gone:
            self.abandoned(txn, node)

    def handed_over(self, txn: Transaction, node: Inode, uid: int) -> None:
        """A file is about to become another user's."""
        raw = txn.get(entry_key(node.entry)) if node.entry and node.content == Content.OBJECT else None
        if raw is not None:
            namespace, held = EntryRecord.unpack(raw).namespace, (1, node.size, self._stored(txn, node))
            self._book(txn, namespace, node.uid, held, -1)
            self._book(txn, namespace, uid, held)

    def counts(self, namespace: int) -> NamespaceRecord:
        return NamespaceRecord.unpack(self._catalog.get(counts_key(namespace)))

    @contextlib.contextmanager
    def booked(self, txn: Transaction, namespace: int, uid: int) -> Iterator[tuple[NamespaceRecord, NamespaceRecord]]:
        """The account of a namespace and that of a user in it, to be changed alike."""
        keys = counts_key(namespace), share_key(uid, namespace)
        whole, part = (NamespaceRecord.unpack(txn.get(key)) for key in keys)
        yield whole, part
        for key, counts in zip(keys, (whole, part), strict=True):
            txn.put(key, counts.pack())

    def _book(self, txn: Transaction, namespace: int, uid: int, held: _Held, sign: int = 1) -> None:
        with self.booked(txn, namespace, uid) as accounts:
            for counts in accounts:
                counts.files += sign * held[0]
                counts.plain += sign * held[1]
                counts.stored += sign * held[2]

    def shares(self) -> dict[int, int]:
        """What each user's files hold, as if nothing were shared: stored bytes by uid."""
        held: Counter[int] = Counter()
        self._catalog.fold()
        for key, raw in self._catalog.scan(b"u"):
            held[share_of(key)[0]] += NamespaceRecord.unpack(raw).stored
        return held

    def abandoned(self, txn: Transaction, node: Inode) -> None:
        """A file goes; if its entry holds no sealed one any more, that goes too. What is unsealed makes it again."""
        record = self.record(txn, node.entry) if node.entry and not node.is_dir else None
        if record is not None and not record.files:
            self._leave(txn, node.entry, record)

    def record(self, txn: Transaction, entry: int) -> EntryRecord | None:
        raw = txn.get(entry_key(entry))
        return EntryRecord.unpack(raw) if raw is not None else None

    def inherit(self, txn: Transaction, ino: int, node: Inode, lost: EntryRecord) -> None:
        """A file took the name of the last one that was sealed of an entry, whose record went: pin and hits stay."""
        is_pinned = lost.flags & EntryRecord.PINNED
        if not node.is_file or not node.entry or not (is_pinned or lost.hits):
            return
        record = self.record(txn, node.entry) or self._new_record(txn, ino, node)
        if record is not None:
            record.hits += lost.hits
            record.flags |= is_pinned
            if is_pinned and record.used:
                txn.delete(order_key(record.namespace, record.used))
            txn.put(entry_key(node.entry), record.pack())

    def strike(self, txn: Transaction, entry: int) -> None:
        """No file belongs to an entry: whatever its record says, it goes, and what is counted for it."""
        record = self.record(txn, entry)
        if record is not None:
            self._book(txn, record.namespace, record.uid, (record.files, record.plain, record.stored), -1)
            self._leave(txn, entry, record)

    def path_of(self, record: EntryRecord) -> tuple[bytes, ...]:
        """Where an entry stands: its namespace, the folders below it, its own name."""
        if record.folder in self.roots:
            return (*self._above(record.folder), record.name)
        namespace, path = self._path(record.folder, self._nodes.get(record.folder))
        return (*self._above_namespace(namespace), *path, record.name)

    def path_in(self, record: EntryRecord) -> tuple[bytes, ...]:
        """The same, from its namespace on."""
        return self.path_of(record)[len(self._above_namespace(record.namespace)) :]

    def _above_namespace(self, namespace: int) -> tuple[bytes, ...]:
        if namespace in self.roots:
            return self._above(namespace)
        found = self._nodes.get(namespace)
        return (*self._above(found.parent), found.target)

    def _above(self, root: int) -> tuple[bytes, ...]:
        """What leads to a root of namespaces: nothing, or a user's folder."""
        return () if root == ROOT_INO else (TENANTS, self._nodes.get(root).target)

    def namespaces(self) -> list[tuple[int, str, NamespaceRecord]]:
        """Every namespace of every tree: its folder's inode, its name, what it holds. A root's own files have none."""
        return [(number, label, self.counts(number)) for number, label in self._labels().items()]

    def share(self, uid: int) -> list[tuple[int, str, NamespaceRecord]]:
        """The same, of what that user made, as it was a second ago at most: anybody may ask as often as they like."""
        found = []
        for key, raw in self._catalog.scan(shares_prefix(uid)):
            namespace = share_of(key)[1]
            with contextlib.suppress(FsError):
                found.append((namespace, self.label_of(namespace), NamespaceRecord.unpack(raw)))
        return found

    def label_of(self, namespace: int) -> str:
        """A namespace's name; empty for a root."""
        return "" if namespace in self.roots else self._nodes.get(namespace).target.decode(errors="replace")

    def _labels(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for root in sorted(self.roots):
            rows = (unpack_name(raw) for _, raw in self._catalog.scan(names_prefix(root)))
            for number in sorted({root, *(ino for ino, kind in rows if kind == 4)}):
                with contextlib.suppress(FsError):
                    found[number] = self.label_of(number)
        return found

    def _new_record(self, txn: Transaction, ino: int, node: Inode) -> EntryRecord | None:
        entry = node.entry
        if entry >= GROUP_BASE:
            return self._regroup(txn, ino, node)
        try:
            root = self._nodes.get(entry)
            namespace = self._path(root.parent, self._nodes.get(root.parent))[0]
        except FsError:
            return None
        return _new(namespace, root.parent, root.uid, root.target)

    def _regroup(self, txn: Transaction, ino: int, node: Inode) -> EntryRecord | None:
        """Make a group's record again, which went with another file of the group that was never sealed."""
        with contextlib.suppress(FsError):
            folder = self._nodes.get(node.parent)
            for key, raw in self._catalog.scan(names_prefix(node.parent)):
                if unpack_name(raw)[0] == ino:
                    name = name_of(key)[1]
                    spot = self._spot(node.parent, folder, name, False)
                    node.entry = self._entry_at(txn, ino, node.parent, spot, False, node.uid)
                    found = txn.get(entry_key(node.entry)) if node.entry >= GROUP_BASE else None
                    return EntryRecord.unpack(found) if found is not None else None
        return None

    def _is_adopted(self, node: Inode) -> bool:
        with contextlib.suppress(FsError):
            root = node if node.entry >= GROUP_BASE else self._nodes.get(node.entry)
            return bool(root.flags & Inode.ADOPTED)
        return False

    def _enter(self, txn: Transaction, entry: int, record: EntryRecord, is_adopted: bool) -> None:
        record.used = self._next_order(time.time_ns())
        with self.booked(txn, record.namespace, record.uid) as accounts:
            for counts in accounts:
                counts.entries += 1
                counts.misses += not is_adopted
                counts.used = record.used
        if not record.flags & EntryRecord.PINNED:
            txn.put(order_key(record.namespace, record.used), pack_number(entry))

    def _leave(self, txn: Transaction, entry: int, record: EntryRecord) -> None:
        if record.used:
            with self.booked(txn, record.namespace, record.uid) as accounts:
                for counts in accounts:
                    counts.entries -= 1
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

    def touch(self, entry: int, pid: int, uid: int) -> None:
        """The kernel asked for an entry's name on behalf of a user's process."""
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
        self._hits.setdefault(entry, Counter())[uid] += 1

    def flush(self) -> None:
        """Write down what was used since the last time."""
        used, self.used = self.used, {}
        hits, self._hits = self._hits, {}
        pending = sorted(used.items(), key=lambda item: item[1])
        for start in range(0, len(pending), _FLUSH_CHUNK):
            with self._nodes.change() as txn:
                for entry, when in pending[start : start + _FLUSH_CHUNK]:
                    if not self._write_use(txn, entry, when, hits.pop(entry, Counter())):
                        # Not sealed yet: its hits are kept until it is.
                        self.used.setdefault(entry, when)

    def _write_use(self, txn: Transaction, entry: int, when: int, hits: Counter[int]) -> bool:
        raw = txn.get(entry_key(entry))
        record = EntryRecord.unpack(raw) if raw is not None else None
        if record is None or not record.used:
            if hits and self._nodes.exists(entry & ~GROUP_BASE):
                self._hits.setdefault(entry, Counter()).update(hits)
                return False
            return True
        if not record.flags & EntryRecord.PINNED:
            txn.delete(order_key(record.namespace, record.used))
            when = self._next_order(when)
            txn.put(order_key(record.namespace, when), pack_number(entry))
        record.used = when
        record.hits += hits.total()
        with self.booked(txn, record.namespace, record.uid) as accounts:
            for counts in accounts:
                counts.used = max(counts.used, when)
            accounts[0].hits += hits.total()
            accounts[0].served += hits.total() * record.plain
        for uid, count in hits.items():  # a hit is on the account of who had it, whoever made the entry
            share = NamespaceRecord.unpack(txn.get(share_key(uid, record.namespace)))
            share.hits += count
            share.served += count * record.plain
            txn.put(share_key(uid, record.namespace), share.pack())
        txn.put(entry_key(entry), record.pack())
        return True

    def _note_writer(self, entry: int, pid: int) -> None:
        self._writers[entry] = pid
        if len(self._writers) > _SEEN_MAX:
            self._writers.popitem(last=False)

    def _note_temporary(self, txn: Transaction, ino: int, pid: int) -> None:
        txn.undo(lambda: self.temporary.discard(ino))
        self.temporary.add(ino)
        process = pid if not pid or _is_process(pid) else process_of(pid)
        txn.put(temporary_key(ino), pack_number(time.time_ns()) + pack_number(process))


def _new(namespace: int, folder: int, uid: int, name: bytes) -> EntryRecord:
    return EntryRecord(namespace, folder, time.time_ns(), 0, 0, 0, 0, 0, uid, 0, name)


def _sum(one: _Held, two: _Held, sign: int = 1) -> _Held:
    return one[0] + sign * two[0], one[1] + sign * two[1], one[2] + sign * two[2]


def _is_process(pid: int) -> bool:
    """Whether it is a process's number and no other thread's: the quicker half of `process_of`."""
    try:
        os.close(os.pidfd_open(pid))
    except OSError:
        return False
    return True


def process_of(pid: int) -> int:
    """The process that a thread belongs to: requests carry the thread's number."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Tgid:"):
                return int(line[5:])
    return pid
