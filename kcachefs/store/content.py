"""ContentStore: the store for library users. Bytes in, digest out; the same bytes are kept once.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder, ContentStore(folder) as store:
...     digest = store.put(b"a kernel " * 1000)
...     again = store.put(b"a kernel " * 1000)
...     digest == again, store.get(digest)[:8], store.read(digest, 2, 6)
(True, b'a kernel', b'kernel')

What `put` has stored survives the death of the process; after `sync` it survives a power cut too.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from types import TracebackType
from typing import IO, Self

import msgspec

from kcachefs.errors import ObjectMissing, StoreClosed, UsageError
from kcachefs.store.frames import FRAME_SIZE, frames_of
from kcachefs.store.ledger import Staged
from kcachefs.store.object_records import ObjectRecord
from kcachefs.store.objects import IN_MEMORY_MAX
from kcachefs.store.records import DIGEST_SIZE
from kcachefs.store.store import Options, Store

Digest = bytes | str
"""A BLAKE3 digest: 32 bytes, or 64 hexadecimal characters."""


class StoreStatistics(msgspec.Struct, frozen=True):
    """What a store holds."""

    objects: int
    plain_bytes: int
    """Uncompressed bytes, each object counted once."""
    referenced_bytes: int
    """The same, each object counted once per reference."""
    stored_bytes: int
    """Bytes that the objects take in volumes, compressed."""
    dead_bytes: int
    """Bytes of deleted objects that `compact` would free."""
    disk_bytes: int
    """Blocks allocated for everything in the store's directory."""
    damaged: int
    """Objects set aside since the store was opened."""


class ContentStore:
    """A content-addressed store in a directory. Threads may share it; while it is open, no other process may open it.

    A store does not survive a fork: in a child of the process that opened it, every use raises StoreClosed, and `close`
    changes nothing on disk.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ContentStore(folder) as store:
    ...         digest = store.put(b"x" * 100_000)
    ...         store.exists(digest), store.statistics().objects, store.delete(digest), store.exists(digest)
    (True, 1, True, False)
    """

    def __init__(self, directory: str | os.PathLike[str], *, create: bool = True, level: int = 3) -> None:
        if not os.fspath(directory):  # Path would take it for the current directory
            raise UsageError("directory is empty; give the store a directory of its own")
        self._opened = Store(directory, Options(create=create, level=level))

    def put(self, data: bytes | bytearray | memoryview | IO[bytes]) -> bytes:
        """Store bytes, or everything that a binary file returns, and return the digest.

        >>> import io, tempfile
        >>> with tempfile.TemporaryDirectory() as folder, ContentStore(folder) as store:
        ...     store.put(io.BytesIO(b"abc")) == store.put(b"abc")
        True
        """
        if isinstance(data, bytes | bytearray | memoryview):
            return self._put_bytes(bytes(data))
        if not hasattr(data, "read"):
            raise UsageError(f"a store keeps bytes, or what a binary file returns, not {type(data).__name__}")
        frames = frames_of(partial(_read_some, data))
        head = list(islice(frames, IN_MEMORY_MAX // FRAME_SIZE))
        if len(head) < IN_MEMORY_MAX // FRAME_SIZE:
            return self._put_bytes(b"".join(head))
        return self._link(self._store.objects.stage_frames(chain(head, frames)))

    def get(self, digest: Digest) -> bytes:
        """All of an object's bytes. Raises ObjectMissing, or ObjectDamaged if they are not what was stored."""
        return self._store.objects.get(self._present(digest))

    def read(self, digest: Digest, offset: int, size: int) -> bytes:
        """A range of an object; decodes only the frames that hold it."""
        if offset < 0 or size < 0:
            raise UsageError(f"cannot read {size} bytes from offset {offset}: neither may be negative")
        return self._store.objects.read(self._present(digest), offset, size)

    def exists(self, digest: Digest) -> bool:
        return self._store.objects.exists(_digest(digest))

    def verify(self, digest: Digest) -> bool:
        """Read an object from the disk and check it. If it is damaged, set it aside and return False."""
        return self._store.objects.verify(_digest(digest))

    def delete(self, digest: Digest) -> bool:
        """Delete an object; its bytes stay if a file of the mount has them too. False if the store did not hold it."""
        with self._store.transaction() as txn:
            return self._store.objects.unlink(txn, _digest(digest), held=True)

    def digests(self) -> Iterator[bytes]:
        """The digest of every object that is not damaged, in order."""
        self._store.fold()
        for key, raw in self._store.catalog.walk(b"o"):
            if raw is not None and not ObjectRecord.unpack(raw).flags & ObjectRecord.DAMAGED:
                yield key[1:]
                self._check_process()  # the caller may have forked since, and LMDB must not be read in the child

    def statistics(self) -> StoreStatistics:
        totals = self._store.objects.totals()
        return StoreStatistics(
            objects=totals.objects,
            plain_bytes=totals.plain,
            referenced_bytes=totals.referenced,
            stored_bytes=totals.live,
            dead_bytes=totals.volumes - totals.live,
            disk_bytes=self._store.disk_bytes(),
            damaged=self._store.objects.damaged,
        )

    def sync(self) -> None:
        """When this returns, everything put so far survives a power cut."""
        self._store.sync()

    def compact(self) -> int:
        """Free the space of deleted objects; returns how many bytes."""
        return self._store.compact()

    def close(self) -> None:
        """Write everything to its place and let others open the store. Closing twice is fine.

        A store that is dropped without being closed is closed with a ResourceWarning.
        """
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        store = vars(self).get("_opened")  # absent if opening the store failed
        if store is None or store.is_closed or store.lock.is_inherited or sys.is_finalizing():
            return  # if the interpreter is exiting, closing would wait for a thread that no longer runs
        if store.folding is not None and store.folding.ident == threading.get_ident():
            # The garbage collector may run in the middle of a fold, and closing waits for the fold.
            threading.Thread(target=store.close, name="kcachefs-close").start()
        else:
            store.close()
        warnings.warn(f"{store.path}: the store was not closed; use `with`", ResourceWarning, 2, source=self)

    @property
    def _store(self) -> Store:
        self._check_process()
        return self._opened

    def _check_process(self) -> None:
        if self._opened.lock.is_inherited:
            raise StoreClosed(f"{self._opened.path}: was opened before this process was forked; open it after the fork")

    def _put_bytes(self, data: bytes) -> bytes:
        while True:
            try:
                return self._link(self._store.objects.stage(data))
            except ObjectMissing:  # the object was deleted between being found and being linked: write it after all
                continue

    def _link(self, staged: Staged) -> bytes:
        try:
            with self._store.transaction() as txn:
                self._store.objects.link(txn, staged, held=True)
        finally:
            self._store.objects.settle(staged)
        return staged.digest

    def _present(self, digest: Digest) -> bytes:
        # The frame cache may still have frames of a deleted object: only the record says whether it exists.
        raw = _digest(digest)
        if self._store.objects.record(raw) is None:
            raise ObjectMissing(f"object {raw.hex()} is not in the store")
        return raw


def _read_some(file: IO[bytes], size: int) -> bytes:
    data: bytes | str | None = file.read(size)
    if data is None:
        raise UsageError(f"{file!r} does not block; open it in blocking mode")
    if isinstance(data, str):
        raise UsageError(f"{file!r} returns text; open it in binary mode")
    return data


def _digest(digest: Digest) -> bytes:
    raw = b""
    if isinstance(digest, str):
        with suppress(ValueError):
            raw = bytes.fromhex(digest)
    elif isinstance(digest, bytes | bytearray | memoryview):
        raw = bytes(digest)
    if len(raw) != DIGEST_SIZE:
        raise UsageError(f"{digest!r} is not a BLAKE3 digest: pass 32 bytes or 64 hexadecimal characters")
    return raw
