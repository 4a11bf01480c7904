"""Checks, after a power cut, the objects whose records are only in the journal.

A fold syncs volumes before it commits the records that point into them. A record in the journal has no such guarantee:
the disk may have the record but not the bytes. This runs when the store is opened, before anything is folded.
"""

from __future__ import annotations

import logging

from kcachefs.errors import ObjectDamaged
from kcachefs.store.catalog import Catalog
from kcachefs.store.dictionaries import Dictionaries
from kcachefs.store.frame_reader import FrameReader
from kcachefs.store.frames import Codec
from kcachefs.store.object_records import ObjectRecord
from kcachefs.store.volumes import Volumes

log = logging.getLogger(__name__)


def mark_damaged(catalog: Catalog, volumes: Volumes, dictionaries: Dictionaries) -> int:
    """Mark objects whose bytes are missing or wrong; returns how many. Reading one then reports the damage."""
    reader = FrameReader(volumes, Codec(dictionaries=dictionaries))
    marked = 0
    for key in catalog.unfolded_keys():
        raw = catalog.get(key) if key[:1] == b"o" else None
        record = ObjectRecord.unpack(raw) if raw is not None else None
        if record is None or not record.length or record.flags & ObjectRecord.DAMAGED:
            continue
        try:
            reader.check(key[1:], record)
        except (ObjectDamaged, FileNotFoundError) as error:
            log.info("object %s did not reach the disk before the machine went down: %s", key[1:].hex(), error)
            record.flags |= ObjectRecord.DAMAGED
            with catalog.transaction() as txn:
                txn.put(key, record.pack())
            marked += 1
    return marked
