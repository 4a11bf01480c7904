"""What a bucket says about one pack: a signed record, small enough that all records together are the index.

The record says which entries the pack holds, by hashes of their names, and how to recognize its bytes. It leaves out
the names: it serves to find entries, not to list them.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Annotated, NamedTuple

import msgspec

from kcachefs.errors import PackError, PackUntrusted
from kcachefs.fleet import signing

PACK_MAX = 512 << 20
"""The most bytes of a pack that is fetched from a bucket."""
RECORD_MAX = 32 << 20
"""The most bytes of a record."""
_HEADER = struct.Struct("<8sI4x32s64s")
"""Magic, bytes of the body, public key, signature."""
_MAGIC = b"KCFLEET1"
_SIGNED = b"kcachefs fleet 1\n"
"""The signed message is this prefix and then the body, so that no signature made for something else fits."""

PackId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class PackReference(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Where a pack is and what it must be. An index holds one for each pack."""

    day: str
    """The bucket's folder that holds the pack, like 2026-11-16. It is not signed: it only says where to look."""
    pack: PackId
    """The first half of the BLAKE3 of its bytes."""
    size: int
    plain: int
    """The bytes of its files when unpacked."""
    run: str
    """A name shared by the packs that were published together."""
    compile_ms: int
    """How long compiling the entries took, in milliseconds; 0 if unknown."""
    signer: bytes
    """The public key that signed the record."""

    @property
    def place(self) -> tuple[str, str]:
        """What identifies a pack: the same bytes, published again on another day, are another pack."""
        return self.day, self.pack


class PackRecord(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """The signed part of a record."""

    scope: str
    pack: PackId
    size: Annotated[int, msgspec.Meta(ge=1, le=PACK_MAX)]
    plain: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
    run: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    compile_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
    facts: dict[str, list[str]]
    entries: bytes
    """Hashes of the entries' names (`key_index.key_of_entry`), eight bytes each."""
    folders: bytes
    """Hashes of the folders above the entries."""


class SignedRecord(NamedTuple):
    """A record of a bucket, with the bytes it came as."""

    day: str
    record: PackRecord
    signer: bytes
    raw: bytes

    @property
    def reference(self) -> PackReference:
        told = self.record
        return PackReference(
            day=self.day,
            pack=told.pack,
            size=told.size,
            plain=told.plain,
            run=told.run,
            compile_ms=told.compile_ms,
            signer=self.signer,
        )


def sign(record: PackRecord, signer: signing.Signer, day: str) -> SignedRecord:
    """The record as it is put into the bucket."""
    body = msgspec.msgpack.encode(record, order="deterministic")
    raw = _HEADER.pack(_MAGIC, len(body), signer.public, signer.sign(_SIGNED + body)) + body
    return SignedRecord(day, record, signer.public, raw)


def length_of(raw: bytes | memoryview) -> int:
    """The length of the record that begins here, by its header."""
    if len(raw) < _HEADER.size or bytes(raw[: len(_MAGIC)]) != _MAGIC:
        raise PackError("is not the record of a pack")
    length: int = _HEADER.size + _HEADER.unpack(raw[: _HEADER.size])[1]
    if length > RECORD_MAX or length > len(raw):
        raise PackError("is cut off, or not the record of a pack")
    return length


def read(raw: bytes, day: str, scope: str, trusted: Collection[bytes] | None) -> SignedRecord:
    """Check a record that came from a bucket: who signed it, unless `trusted` is None, then every field."""
    if length_of(raw) != len(raw):
        raise PackError("something follows the end of the record")
    _, _, public, signature = _HEADER.unpack(raw[: _HEADER.size])
    body = raw[_HEADER.size :]
    if trusted is not None:
        if public not in trusted:
            raise PackUntrusted(f"is signed by {signing.public_text(public)}, which is not trusted")
        signing.check(public, signature, _SIGNED + body)
    try:
        record = msgspec.msgpack.decode(body, type=PackRecord)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PackError(f"makes no sense: {error}") from None
    if record.scope != scope:
        raise PackError("was published for another scope")
    if len(record.entries) % 8 or len(record.folders) % 8 or not record.entries:
        raise PackError("makes no sense: its hashes are cut off")
    return SignedRecord(day, record, public, raw)
