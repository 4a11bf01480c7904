"""Arrivals: brings in entries that were made on another host, each of them whole, while requests go on.

They belong to the mount's owner, and nobody else may write to them. They count as adopted: nobody missed them. An entry
that nobody asked for is brought in only while there is room, and becomes the least recently used entry.

Bytes are hashed and compressed without the lock. The names of an entry appear in one transaction. Requests wait while a
transaction lasts, so a folder of many files is put together under a temporary name, a few files at a time.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import stat
import time
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kcachefs.core.caller import Caller
from kcachefs.core.layouts import ADOPTING
from kcachefs.core.nodes import new_inode
from kcachefs.core.parts import Parts
from kcachefs.core.tree import RENAME_NOREPLACE
from kcachefs.core.unsealed import set_content
from kcachefs.core.user_eviction import HIGH_WATER
from kcachefs.errors import FsError, ObjectMissing
from kcachefs.store.catalog import Transaction
from kcachefs.store.entry_records import order_key, order_prefix, used_of
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.ledger import Staged
from kcachefs.store.objects import Objects
from kcachefs.store.records import Content, Inode, name_key, pack_name, unpack_name

PIECE_FILES = 24
"""The most files of a folder that one transaction adds. A group is added in one, however many files it has."""
_TRIES = 3


class ArrivingFile(NamedTuple):
    """A file of an entry; `name` is its path from the entry's folder."""

    name: tuple[bytes, ...]
    mode: int
    mtime: int
    content: bytes


class ArrivingEntry(NamedTuple):
    """An entry as it was made elsewhere: a folder with everything below it, or with `group` files side by side."""

    namespace: bytes
    path: tuple[bytes, ...]
    group: bytes
    files: Sequence[ArrivingFile]


class Arrivals:
    """Brings entries into one filesystem. One thread at a time."""

    def __init__(self, parts: Parts, name_gone: Callable[[int, bytes], None]) -> None:
        self._catalog = parts.store.catalog
        self._objects = parts.store.objects
        self._nodes = parts.nodes
        self._tree = parts.tree
        self._table = parts.table
        self._counts = parts.counts
        self._membership = parts.membership
        self._room = parts.room
        self._walk = parts.walk
        self._owner = Caller(parts.options.uid, parts.options.gid)
        self._name_gone = name_gone
        self._coldest: dict[int, int] = {}
        """By namespace: the oldest time of use given to an arrival."""

    def has_room(self, *, is_asked: bool) -> bool:
        """Whether another entry may come in: an entry that nobody asked for must not push out those that are here."""
        return not self._room.is_full if is_asked else self._room.excess(HIGH_WATER) < 0

    def find_folder(self, place: tuple[bytes, ...]) -> int | None:
        """The folder at a place, which is a namespace and a path in it; None if there is no such folder."""
        ino = ROOT_INO
        for name in place:
            found = self._tree.find(ino, name)
            if found is None:
                return None
            ino = found
        return ino

    def make_folder(self, place: tuple[bytes, ...]) -> int | None:
        """The folder at a place, made if it is missing; None if something else is there, or it has no namespace."""
        ino = ROOT_INO
        for depth, name in enumerate(place):
            found = self._tree.find(ino, name)
            if found is None:
                if depth == 0:
                    return None  # not one of our namespaces
                # Everybody may add entries of their own next to those that arrive.
                with contextlib.suppress(FsError):
                    self._tree.create(self._owner, ino, name, stat.S_IFDIR | 0o1777)
                found = self._tree.find(ino, name)
            if found is None or not self._nodes.get(found).is_dir:
                return None
            ino = found
        return ino

    def bring(self, entry: ArrivingEntry, *, is_asked: bool, was_missed: Callable[[tuple[bytes, ...]], bool]) -> bool:
        """Bring an entry in, unless it is here already; returns whether it came in.

        `was_missed` says which names the kernel remembers as missing.
        """
        above = entry.path if entry.group else entry.path[:-1]
        folder = self.make_folder((entry.namespace, *above))
        if folder is None or self._nodes.get(folder).entry:
            return False
        for _ in range(_TRIES):
            with contextlib.suppress(ObjectMissing):  # an object that the entry shares was deleted at that moment
                names = self._bring(folder, entry, is_asked)
                for name in names:
                    if was_missed((entry.namespace, *above, name)):
                        self._name_gone(folder, name)
                return bool(names)
        return False

    def _bring(self, folder: int, entry: ArrivingEntry, is_asked: bool) -> list[bytes]:
        """The names that appeared in the folder."""
        if not entry.group:
            return [entry.path[-1]] if self._bring_tree(folder, entry, is_asked) else []
        # Whole or not at all: an index that was made here must not meet data of the same name from elsewhere.
        names = [file.name[0] for file in entry.files]
        if self._table.group(folder, entry.group) or any(self._tree.find(folder, name) for name in names):
            return []
        with _Staging(self._objects, entry.files) as staged, self._nodes.change() as txn:
            if self._table.group(folder, entry.group, txn) or any(txn.get(name_key(folder, name)) for name in names):
                return []
            for file in entry.files:
                self._add_file(txn, folder, file, staged[file.name])
            if not is_asked:
                raw = txn.get(name_key(folder, names[0])) or b""
                self._make_cold(txn, self._nodes.get(unpack_name(raw)[0]).entry)
        return names

    # --- an entry that is a folder ------------------------------------------------------------------------------------

    def _bring_tree(self, parent: int, entry: ArrivingEntry, is_asked: bool) -> bool:
        name = entry.path[-1]
        if self._tree.find(parent, name) is not None:
            return False
        if len(entry.files) > PIECE_FILES:
            return self._bring_large_tree(parent, entry, is_asked)
        with _Staging(self._objects, entry.files) as staged, self._nodes.change() as txn:
            if txn.get(name_key(parent, name)) is not None:
                return False
            top = self._add_folder(txn, parent, name)
            self._add_files(txn, {(): top}, entry.files, staged)
            if not is_asked:
                self._make_cold(txn, top)
        return True

    def _bring_large_tree(self, parent: int, entry: ArrivingEntry, is_asked: bool) -> bool:
        name, staging = entry.path[-1], ADOPTING + uuid.uuid4().hex.encode()
        top, _ = self._tree.create(self._owner, parent, staging, stat.S_IFDIR | 0o755)
        try:
            folders: dict[tuple[bytes, ...], int] = {(): top}
            for start in range(0, len(entry.files), PIECE_FILES):
                piece = entry.files[start : start + PIECE_FILES]
                with _Staging(self._objects, piece) as staged, self._nodes.change() as txn:
                    self._add_files(txn, folders, piece, staged)
            self._tree.rename(self._owner, parent, staging, parent, name, RENAME_NOREPLACE)
        except BaseException as error:
            self._discard(parent, staging)
            if isinstance(error, FsError) and error.errno == errno.EEXIST:
                return False
            raise
        if not is_asked:
            with self._nodes.change() as txn:
                self._make_cold(txn, top)
        return True

    def _discard(self, parent: int, name: bytes) -> None:
        ino = self._tree.find(parent, name)
        if ino is None:
            return
        for child, folder, child_name in reversed(list(self._walk.below(ino))):
            is_dir = self._nodes.get(child).is_dir
            (self._tree.rmdir if is_dir else self._tree.unlink)(self._owner, folder, child_name)
        self._tree.rmdir(self._owner, parent, name)

    # --- inside a transaction -----------------------------------------------------------------------------------------

    def _add_files(
        self,
        txn: Transaction,
        folders: dict[tuple[bytes, ...], int],
        files: Sequence[ArrivingFile],
        staged: _Staging,
    ) -> None:
        for file in files:
            path = file.name[:-1]
            for depth in range(len(path) + 1):
                if path[:depth] not in folders:
                    above = folders[path[: depth - 1]]
                    folders[path[:depth]] = self._add_folder(txn, above, path[depth - 1])
            self._add_file(txn, folders[path], file, staged[file.name])

    def _add_folder(self, txn: Transaction, parent: int, name: bytes) -> int:
        node = new_inode(stat.S_IFDIR | 0o755, self._owner.uid, self._owner.gid, parent)
        node.nlink, node.target = 2, name
        return self._add(txn, parent, name, node)

    def _add_file(self, txn: Transaction, parent: int, file: ArrivingFile, staged: Staged | None) -> None:
        # Readable by all, as under `publish`: otherwise other users would get a refusal here, instead of a miss.
        mode = (file.mode | 0o444 | (0o111 if file.mode & 0o100 else 0)) & 0o755
        node = new_inode(stat.S_IFREG | mode, self._owner.uid, self._owner.gid, parent)
        node.mtime, node.flags = file.mtime, Inode.PUBLISHED
        ino = self._add(txn, parent, file.name[-1], node)
        if staged is not None:
            self._objects.link(txn, staged)
            set_content(node, Content.OBJECT, digest=staged.digest, size=staged.plain)
            self._counts.count(txn, ((ino, node),))
            self._objects.remember(staged)  # somebody is about to read it
            self._nodes.save(txn, ino, node)

    def _add(self, txn: Transaction, parent: int, name: bytes, node: Inode) -> int:
        ino, folder = self._nodes.allocate(txn), self._nodes.get(parent)
        self._membership.assign(txn, self._owner, ino, node, parent, folder, name)
        node.flags |= Inode.ADOPTED
        self._nodes.save(txn, ino, node)
        txn.put(name_key(parent, name), pack_name(ino, node.mode))
        folder.size += 1
        folder.nlink += node.is_dir
        folder.mtime = folder.ctime = node.ctime
        self._nodes.save(txn, parent, folder)
        return ino

    def _make_cold(self, txn: Transaction, entry: int) -> None:
        """Make an entry that nobody has used the first to be evicted."""
        record = self._table.get(entry, txn)
        if record is None or not record.used:
            return
        rows = self._catalog.page(order_prefix(record.namespace), order_key(record.namespace, 0), 1)
        oldest = used_of(rows[0][0]) if rows else time.time_ns()
        new = copy.copy(record)
        new.used = self._coldest[record.namespace] = min(oldest, self._coldest.get(record.namespace, oldest)) - 1
        self._table.put(txn, entry, record, new)


class _Staging:
    """The bytes of some files, stored but not yet linked, by the files' names; None for an empty file."""

    def __init__(self, objects: Objects, files: Sequence[ArrivingFile]) -> None:
        self._objects = objects
        self._files = files
        self._staged: dict[tuple[bytes, ...], Staged | None] = {}

    def __enter__(self) -> _Staging:
        try:
            for file in self._files:
                self._staged[file.name] = self._objects.stage(file.content) if file.content else None
        except BaseException:
            self.__exit__()
            raise
        return self

    def __getitem__(self, name: tuple[bytes, ...]) -> Staged | None:
        return self._staged[name]

    def __exit__(self, *_: object) -> None:
        for staged in self._staged.values():
            if staged is not None:
                self._objects.settle(staged)
