"""Salvage: sets a catalog with a damaged LMDB file aside and makes a new one from the records that can still be read.

LMDB trusts its pages and may crash on damaged ones, so child processes read the file: one from the first record
forward, one from the last record backward. A record that they print before they finish or crash is kept if it passes
its checksum. If no object record is left, the objects whose trailers are in the volumes are registered as held.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb

from kcachefs import own_python
from kcachefs.errors import ObjectDamaged, StoreError
from kcachefs.store.checksum import is_intact
from kcachefs.store.compaction import trailers
from kcachefs.store.descriptor import sync_directory
from kcachefs.store.journal import decode_records, encode_record
from kcachefs.store.lmdb_file import DEFAULT_MAP_SIZE, make_lmdb
from kcachefs.store.object_records import (
    META_VOLUME,
    TOTALS_KEY,
    ObjectRecord,
    Totals,
    VolumeRecord,
    object_key,
    volume_key,
)
from kcachefs.store.places import free_name, make_folder
from kcachefs.store.records import Content, Inode, number_of, pack_number, slot_key, spool_key
from kcachefs.store.volumes import Volumes


def rebuild_catalog(path: Path) -> str:
    """Replace the catalog of the store at `path`, which is locked and not open; returns in words what was done.

    The new one is made beside the old one and takes its place when it is complete. A kill or a full disk before that
    leaves the old one, or none at all, but never an empty one: opening an empty one would remove all files as unknown.
    """
    new = path / "catalog.new"
    if new.is_dir() and not (path / "catalog").is_dir():
        os.rename(new, path / "catalog")
        sync_directory(path)
        return "put in place, as left ready by an interrupted repair"
    volumes = Volumes(path / "volumes", path / "incoming")
    records = _readable(path / "catalog")
    salvaged = len(records)
    found = 0
    if not any(key[:1] == b"o" for key in records):
        for record, digest in objects_in(volumes):
            record.refs, record.flags = 1, ObjectRecord.HELD
            records[object_key(digest)] = record.pack()
            found += 1
    _protect_files(volumes, records)
    volumes.close()
    part = path / "catalog.part"
    for left in (part, new):
        shutil.rmtree(left, ignore_errors=True)
    try:
        make_lmdb(part, records.items())
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    os.rename(part, new)
    sync_directory(path)
    fate = "was missing"
    if (path / "catalog").is_dir():
        make_folder(path, "quarantine")
        aside = free_name(path / "quarantine", "catalog")
        os.rename(path / "catalog", aside)
        fate = f"set aside as {aside.name}"
    os.rename(new, path / "catalog")
    sync_directory(path)
    return f"{fate}; {salvaged} records could be read" + (
        f", {found} objects were found in the volumes and are held" if found else ""
    )


def objects_in(volumes: Volumes, wanted: set[bytes] | None = None) -> Iterator[tuple[ObjectRecord, bytes]]:
    """Records, without references, of the objects with trailers in the volumes; each object once, newest first."""
    seen: set[bytes] = set()
    for number in reversed(volumes.numbers()):
        try:
            for offset, trailer in trailers(volumes, number):
                if trailer.digest not in seen and (wanted is None or trailer.digest in wanted):
                    seen.add(trailer.digest)
                    length, plain, frames = trailer.length, trailer.plain, trailer.frames
                    yield ObjectRecord(number, offset, length, plain, frames, 0), trailer.digest
        except (ObjectDamaged, OSError):
            continue


def _protect_files(volumes: Volumes, records: dict[bytes, bytes]) -> None:
    # Opening the store removes files without a record. The checks that follow find out which files are dead.
    numbers = volumes.numbers()
    for number in numbers:
        if volume_key(number) not in records:
            records[volume_key(number)] = VolumeRecord(volumes.size(number), 0, VolumeRecord.CLOSED).pack()
    for key, raw in list(records.items()):
        if key[:1] == b"i":
            inode = Inode.unpack(raw)
            if inode.content == Content.SPOOL:
                records.setdefault(spool_key(inode.spool), pack_number(number_of(key)))
            elif inode.content == Content.SLOT:
                records.setdefault(slot_key(inode.spool), pack_number(number_of(key)))
    records.setdefault(META_VOLUME, pack_number(max(numbers, default=0) + 1))
    records.setdefault(TOTALS_KEY, Totals().pack())


def _readable(directory: Path) -> dict[bytes, bytes]:
    records: dict[bytes, bytes] = {}
    for direction in ("forward", "backward"):
        reader = subprocess.run(
            own_python.command(__name__, str(directory.absolute()), direction),
            capture_output=True,
            check=False,
            cwd=own_python.DIRECTORY,
            env=own_python.environment(),
        )
        if reader.returncode > 0:  # not a crash on the catalog: the child could not even read it
            reason = reader.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise StoreError(f"{directory}: cannot be read: {reason}; nothing was changed")
        for batch in decode_records(0, reader.stdout):
            for key, raw in batch.items():
                if key and raw is not None and is_intact(key, raw):  # a page of zeros reads as an empty key that passes
                    records[key] = raw[:-4]
    return records


def _dump(directory: str, direction: str) -> None:
    """The child process: prints record after record until it has printed all, or crashes."""
    with contextlib.suppress(lmdb.Error, FileNotFoundError):  # then nothing more can be read
        left = os.stat(os.path.join(directory, "data.mdb")).st_size
        env = lmdb.open(directory, map_size=DEFAULT_MAP_SIZE, readonly=True, lock=False, create=False)
        with env.begin(buffers=True) as txn, txn.cursor() as cursor:
            more, before = cursor.first() if direction == "forward" else cursor.last(), None
            while more:
                key, value = bytes(cursor.key()), cursor.value()
                # If pages lead in a circle, or to the same bytes again and again, the walk would never end.
                left -= len(key) + len(value)
                if left < 0 or (before is not None and (key > before) != (direction == "forward")):
                    return
                os.write(1, encode_record(0, {key: bytes(value)}))  # at once: the next step may crash
                more, before = cursor.next() if direction == "forward" else cursor.prev(), key


if __name__ == "__main__":
    _dump(sys.argv[1], sys.argv[2])
