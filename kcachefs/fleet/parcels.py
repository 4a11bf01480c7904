"""Parcels: entries with their bytes in anonymous memory, handed from process to process as a descriptor.

bytes of the table, 8 bytes | the table, msgpack | the bytes of the files
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterable, Sequence

import msgspec

from kcachefs.errors import PackError

_LENGTH = struct.Struct("<Q")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""Nobody can change a parcel after it was sent, so the mapped bytes stay as they were checked."""


class ParcelFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file; `name` is its path from the entry's folder."""

    name: str
    mode: int
    mtime: int
    offset: int
    size: int


class ParcelEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry, as in a pack's manifest."""

    namespace: str
    path: tuple[str, ...]
    group: str
    files: tuple[ParcelFile, ...]


_decoder = msgspec.msgpack.Decoder(list[ParcelEntry])


def make(entries: Sequence[ParcelEntry], chunks: Iterable[bytes | memoryview]) -> int:
    """A descriptor of a parcel; the offsets of files count from the first chunk. The caller closes it."""
    table = msgspec.msgpack.encode(entries)
    fd = os.memfd_create("kcachefs-parcel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(_LENGTH.pack(len(table)))
            file.write(table)
            for chunk in chunks:
                file.write(chunk)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


class OpenParcel:
    """A parcel that was received. The descriptor can be closed afterwards."""

    def __init__(self, fd: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
            raise PackError("a parcel can still be changed by whoever sent it")
        size = os.fstat(fd).st_size
        if size < _LENGTH.size:
            raise PackError("a parcel is cut off")
        self._map = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        (length,) = _LENGTH.unpack_from(self._map)
        self._start = _LENGTH.size + length
        if self._start > size:
            raise PackError("a parcel is cut off")
        try:
            self.entries = _decoder.decode(self._map[_LENGTH.size : self._start])
        except msgspec.DecodeError as error:
            raise PackError(f"a parcel makes no sense: {error}") from None
        for entry in self.entries:
            for file in entry.files:
                if min(file.offset, file.size) < 0 or self._start + file.offset + file.size > size:
                    raise PackError("a file of a parcel lies outside of it")

    def content(self, file: ParcelFile) -> bytes:
        start = self._start + file.offset
        return self._map[start : start + file.size]
