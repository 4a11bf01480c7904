"""An inspection: a store being checked, the problems found in it, and the ways to mend them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kcachefs.store import ledger
from kcachefs.store.object_records import TOTALS_KEY, ObjectRecord, VolumeRecord, object_key
from kcachefs.store.places import set_aside
from kcachefs.store.records import (
    NO_DIGEST,
    Content,
    Inode,
    inode_key,
    number_of,
    orphan_key,
    slot_key,
    spool_key,
    unpack_name,
)
from kcachefs.store.store import Store

Progress = Callable[[str, int, int], None]
"""Called with a label, how much is done, and how much there is to do."""

DIRECTORY = 0o040000 >> 12
"""A directory's type, as the records of names store it."""


def links_of_folder(folders: int) -> int:
    """The link count of a folder that holds this many folders: its name, its `.`, and the `..` of each of them."""
    return 2 + folders


class Finding(msgspec.Struct):
    """One problem."""

    check: str
    thing: str
    problem: str
    remedy: str
    """What a repair does, or did, about the problem."""
    repaired: bool = False


class Report(msgspec.Struct):
    """What a run of fsck found."""

    store: str
    findings: list[Finding] = []
    objects: int = 0
    inodes: int = 0

    @property
    def exit_code(self) -> int:
        """0 if the store is clean, 1 if everything was repaired, 2 if damage is left."""
        if not self.findings:
            return 0
        return 1 if all(finding.repaired for finding in self.findings) else 2


class Inspection:
    """A store being checked. Each mending method is one transaction, and can safely run again after a kill."""

    def __init__(self, store: Store, report: Report, repair: bool, progress: Progress) -> None:
        self.store = store
        self._findings = report.findings
        self.repair = repair
        self.progress = progress

    def report(self, check: str, thing: str, problem: str, remedy: str, mend: Callable[[], object]) -> None:
        """Add a finding to the report and, if this is a repair, mend the problem."""
        finding = Finding(check, thing, problem, remedy)
        self._findings.append(finding)
        if self.repair:
            mend()
            finding.repaired = True

    # --- reading ------------------------------------------------------------------------------------------------------

    def inodes(self) -> Iterator[tuple[int, Inode]]:
        """Every inode that can be read."""
        self.store.fold()
        for key, raw in self.store.catalog.walk(b"i"):
            if raw is not None:
                yield number_of(key), Inode.unpack(raw)

    def inode(self, ino: int) -> Inode | None:
        raw = self.store.catalog.get(inode_key(ino))
        return Inode.unpack(raw) if raw is not None else None

    def names(self) -> Iterator[tuple[bytes, int, int]]:
        """Every name that can be read: its key, its inode, and the inode's type."""
        self.store.fold()
        for key, raw in self.store.catalog.walk(b"n"):
            if raw is not None:
                yield key, *unpack_name(raw)

    def objects(self) -> Iterator[tuple[bytes, ObjectRecord]]:
        """The digest and record of every object whose record can be read."""
        self.store.fold()
        for key, raw in self.store.catalog.walk(b"o"):
            if raw is not None:
                yield key[1:], ObjectRecord.unpack(raw)

    # --- mending ------------------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes) -> None:
        with self.store.transaction() as txn:
            txn.put(key, value)

    def delete(self, key: bytes) -> None:
        with self.store.transaction() as txn:
            txn.delete(key)

    def recount(self) -> None:
        """Recompute the totals and volume records, and raise every counter above the numbers in use."""
        ledger.rebuild(self.store.catalog, self.store.volumes, self.store.spool)

    def set_references(self, digest: bytes, refs: int) -> None:
        """Set how many references an object has; an object without references is removed."""
        with self.store.transaction() as txn:
            raw = txn.get(object_key(digest))
            if raw is not None:
                self.store.objects.ledger.set_references(txn, digest, ObjectRecord.unpack(raw), refs)

    def release(self, digest: bytes) -> None:
        """Make ContentStore release an object."""
        with self.store.transaction() as txn:
            self.store.objects.unlink(txn, digest, held=True)

    def drop_name(self, key: bytes, kind: int) -> None:
        """Remove a name, and count one name less in its directory, if the directory exists."""
        with self.store.transaction() as txn:
            txn.delete(key)
            raw = txn.get(inode_key(number_of(key)))
            if raw is not None:
                parent = Inode.unpack(raw)
                parent.size = max(0, parent.size - 1)
                parent.nlink -= kind == DIRECTORY and parent.nlink > links_of_folder(0)
                txn.put(inode_key(number_of(key)), parent.pack())

    def drop_inode(self, ino: int) -> None:
        """Remove an inode, along with its reference to an object, a spool file or a slot."""
        with self.store.transaction() as txn:
            raw = txn.get(inode_key(ino))
            if raw is None:
                return
            inode = Inode.unpack(raw)
            if inode.digest != NO_DIGEST:
                self.store.objects.unlink(txn, inode.digest)
            if inode.content == Content.SPOOL:
                txn.delete(spool_key(inode.spool))
            elif inode.content == Content.SLOT:
                txn.delete(slot_key(inode.spool))
            txn.delete(orphan_key(ino))
            txn.delete(inode_key(ino))

    def drop_volume(self, key: bytes) -> None:
        """Remove the record of a volume whose file is gone."""
        with self.store.transaction() as txn:
            raw = txn.get(key)
            if raw is not None:
                totals = ledger.read_totals(txn)
                totals.volumes -= VolumeRecord.unpack(raw).size
                txn.put(TOTALS_KEY, totals.pack())
                txn.delete(key)

    def quarantine(self, path: Path) -> None:
        set_aside(self.store.path, path)
