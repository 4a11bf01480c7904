"""Snapshots: many records in one object, so that a node that starts does not fetch thousands.

A snapshot of a day holds the records of that day so far. A snapshot *until* a day holds the records of all days up to
it, and says that nothing else has to be read for those days. So it counts only if a trusted key signed it together with
its name: otherwise anybody who can write into the bucket could hide what others published.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from typing import NamedTuple

from blake3 import blake3

from kcachefs.errors import PackError, PackUntrusted
from kcachefs.fleet import pack_records, signing
from kcachefs.fleet.bucket_layout import Layout, SnapshotName, is_day
from kcachefs.fleet.object_storage import Stored
from kcachefs.fleet.pack_records import SignedRecord

SNAPSHOT_MAX = 256 << 20
"""The most bytes of a snapshot."""
SNAPSHOT_AFTER = 8
"""A day gets a new snapshot when this many of its records are in no snapshot."""
_TRIES = 4
"""How many snapshots of one kind and day are tried before all are considered useless."""
_HEADER = struct.Struct("<8s32s64s")
"""Magic, public key, signature."""
_MAGIC = b"KCSNAPS1"
_SIGNED = b"kcachefs snapshot 1\n"
_DAY_BYTES = 10


class Snapshots(NamedTuple):
    """The snapshots that a bucket has, the best first."""

    until: list[SnapshotName]
    days: dict[str, list[SnapshotName]]


def sorted_out(layout: Layout, listed: Iterable[Stored]) -> Snapshots:
    """The snapshots by kind and day: the newest of those until a day, and of each day those with the most records."""
    until: list[SnapshotName] = []
    days: dict[str, list[SnapshotName]] = {}
    for stored in listed:
        told = layout.snapshot_name(stored.key)
        if told is not None:
            (until if told[0] == "until" else days.setdefault(told[1].day, [])).append(told[1])
    for names in (until, *days.values()):
        names.sort(key=lambda one: (one.day, one.records), reverse=True)
        del names[_TRIES:]
    return Snapshots(until, days)


def encode(records: Iterable[SignedRecord], signer: signing.Signer, layout: Layout, kind: str, day: str) -> bytes:
    """A snapshot of these records; the same bytes for the same records."""
    ordered = sorted(records, key=lambda one: (one.day, one.record.pack))
    body = b"".join(one.day.encode() + one.raw for one in ordered)
    return _HEADER.pack(_MAGIC, signer.public, signer.sign(_said(layout, kind, day, body))) + body


def received(arriving: Iterable[bytes], trusted: Collection[bytes]) -> bytearray:
    """Receive a snapshot. If its header is wrong or names no trusted key, nothing after the header is received."""
    content, is_checked = bytearray(), False
    for chunk in arriving:
        content += chunk
        if not is_checked and len(content) >= _HEADER.size:
            _check_header(content, trusted)
            is_checked = True
    return content


def decode(
    content: bytes | bytearray,
    layout: Layout,
    kind: str,
    name: SnapshotName,
    trusted: Collection[bytes],
    known: Collection[tuple[str, str]] = frozenset(),
) -> list[SignedRecord]:
    """The records of a snapshot that trusted keys signed, without those whose day and pack are in `known`."""
    public, signature = _check_header(content, trusted)
    body = memoryview(content)[_HEADER.size :]
    signing.check(public, signature, _said(layout, kind, name.day, body))
    records, at, count = [], 0, 0
    while at < len(body):
        start = at + _DAY_BYTES
        at, count = start + pack_records.length_of(body[start:]), count + 1
        of = bytes(body[start - _DAY_BYTES : start]).decode("ascii", "replace")
        # Whoever signed the snapshot has checked the signatures in it, and may run code here anyway.
        record = pack_records.read(bytes(body[start:at]), of, layout.scope, None)
        if is_day(of) and record.signer in trusted and (of, record.record.pack) not in known:
            records.append(record)
    if count != name.records:  # its name is not signed: a copy of a small one could claim more, and go first
        raise PackError("does not have as many records as its name says")
    return records


def _check_header(content: bytes | bytearray, trusted: Collection[bytes]) -> tuple[bytes, bytes]:
    """The key that is said to have signed a snapshot, and the signature. PackError if it is no snapshot, or the key is
    not trusted."""
    if len(content) < _HEADER.size or not content.startswith(_MAGIC):
        raise PackError("is not a snapshot")
    public: bytes
    _, public, signature = _HEADER.unpack(content[: _HEADER.size])
    if public not in trusted:
        raise PackUntrusted(f"is signed by {signing.public_text(public)}, which is not trusted")
    return public, signature


def digest(content: bytes) -> str:
    return blake3(content).hexdigest()


def _said(layout: Layout, kind: str, day: str, body: bytes | memoryview) -> bytes:
    """The signed message. It includes the snapshot's name, so that an old one does not pass for a new one."""
    return _SIGNED + f"{layout.scope} {kind} {day}\n".encode() + blake3(body).digest()
