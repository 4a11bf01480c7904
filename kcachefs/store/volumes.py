"""Volumes: the files in which objects lie. One active volume takes small objects; a large object has one of its own.

Small objects share a file because a file each costs a block and an inode. The corpus of benchmarks/store.py, 855 files
with 25.7 MB, in allocated blocks with folders and everything (its `size` table prints these):

    files as they are             28.4 MB
    a zstd file for each           6.3 MB    4.5 times smaller
    values in LMDB                 4.3 MB    6.6               a value over half a page takes whole pages
    volumes                        3.9 MB    7.2               the store's catalog included

A volume is only appended to. Deleting an object makes its bytes dead; a volume with nothing alive is unlinked, one that
is mostly dead is copied together by `Objects.compact`. Any thread may append (under one lock) and read (under none).
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

from kcachefs.errors import ObjectDamaged, or_no_space
from kcachefs.store.descriptor import Descriptor, sync_directory

_MAX_OPEN = 256
_NAME = re.compile(r"([0-9a-f]{8})\.vol")


class Volumes:
    """The files themselves: append, read, sync, remove. What lies where is the catalog's business."""

    def __init__(self, directory: Path, incoming: Path) -> None:
        self._directory = directory
        self._incoming = incoming
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._readers: OrderedDict[int, Descriptor] = OrderedDict()
        self._active = -1
        self._active_fd = Descriptor(-1)
        self._active_size = 0
        self._unsynced: set[int] = set()
        self._directory_unsynced = False
        self.staged: Counter[int] = Counter()
        """Appended and not yet in the catalog, by volume: such a volume stays, however empty it looks."""

    # --- the active volume --------------------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Number of the active volume, or -1."""
        return self._active

    @property
    def active_size(self) -> int:
        return self._active_size

    def open_active(self, number: int, size: int) -> int | None:
        """A descriptor to `switch` to, its file cut to the `size` that the catalog knows.

        None, and nothing is changed, when the file is shorter: a power loss took its end, and what the catalog says is
        there must be found missing, not overwritten.
        """
        path = self.path(number)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise or_no_space(error, path) from error
        if os.fstat(fd).st_size < size:
            os.close(fd)
            return None
        os.ftruncate(fd, size)
        return fd

    def switch(self, number: int, fd: int, size: int) -> None:
        """Make `number` the volume that `append` writes to. Under the catalog's lock, with the record that says so."""
        with self._lock:
            self._active, self._active_fd, self._active_size = number, Descriptor(fd), size
            self._directory_unsynced = True

    def append(self, parts: Sequence[bytes]) -> tuple[int, int]:
        """Write an object's parts at the end of the active volume; returns the volume and the offset.

        The place is taken under the lock and written outside it, so that appenders do not queue behind the disk. A
        write that fails leaves a gap, which is dead space like any other.
        """
        length = sum(map(len, parts))
        with self._lock:
            number, fd, offset = self._active, self._active_fd, self._active_size
            self._active_size = offset + length
            self.staged[number] += 1
        try:
            written = os.pwritev(fd.fd, parts, offset)
            while written < length:  # a disk that is nearly full takes a part, and says so at the next try
                written += os.pwrite(fd.fd, b"".join(parts)[written:], offset + written)
        except OSError as error:
            self.unstage(number)
            raise or_no_space(error, self.path(number)) from error
        with self._lock:  # only now: a sync that comes before the bytes would take the number with it
            self._unsynced.add(number)
        return number, offset

    def unstage(self, number: int) -> None:
        """What was appended is in the catalog, or will never be."""
        with self._lock:
            self.staged[number] -= 1
            if not self.staged[number]:
                del self.staged[number]

    # --- a volume for one large object --------------------------------------------------------------------------------

    def begin(self, number: int) -> int:
        """A descriptor to write a volume of its own to: `touched` when it is written, then `finish` or `abandon` it."""
        path = self._incoming_path(number)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise or_no_space(error, path) from error
        return fd

    def finish(self, number: int) -> None:
        """Move a volume that the catalog now knows to its place."""
        with contextlib.suppress(FileNotFoundError):  # what it held was deleted and folded away meanwhile
            os.rename(self._incoming_path(number), self.path(number))
        self.touched([number])

    def abandon(self, number: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._incoming_path(number))
        self._let_go(number)

    def incoming(self) -> list[int]:
        """Volumes that were begun and neither finished nor abandoned: what a kill left."""
        return _volume_numbers(self._incoming)

    # --- reading, syncing, removing -----------------------------------------------------------------------------------

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Exactly those bytes. A volume that is not there raises FileNotFoundError; one that is too short is damage."""
        reader = self._readers.get(number) or self._open_reader(number)
        data = os.pread(reader.fd, length, offset)
        while len(data) < length:
            more = os.pread(reader.fd, length - len(data), offset + len(data))
            if not more:
                raise ObjectDamaged(f"{self.path(number)} ends before {offset + length}")
            data += more
        return data

    def will_need(self, number: int, offset: int, length: int) -> None:
        """Those bytes are asked for soon."""
        reader = self._readers.get(number) or self._open_reader(number)
        os.posix_fadvise(reader.fd, offset, length, os.POSIX_FADV_WILLNEED)

    def touched(self, numbers: Iterable[int]) -> None:
        """These were written to, by this process or by one that died: `sync` has to see to them."""
        with self._lock:
            self._unsynced.update(numbers)
            self._directory_unsynced = True

    def sync(self) -> None:
        """Everything appended and finished so far survives power loss when this returns."""
        with self._sync_lock:  # a second caller must not return before the first one's fdatasync is through
            with self._lock:
                numbers, self._unsynced = self._unsynced, set()
                directory, self._directory_unsynced = self._directory_unsynced, False
            try:
                for number in list(numbers):
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile: nothing left to sync
                        reader = self._readers.get(number) or self._open_reader(number)  # held: see Descriptor
                        os.fdatasync(reader.fd)
                    numbers.discard(number)
                if directory:
                    sync_directory(self._incoming)
                    sync_directory(self._directory)
            except OSError:
                with self._lock:
                    self._unsynced |= numbers
                    self._directory_unsynced |= directory
                raise

    def remove(self, number: int) -> None:
        """Nothing in it is alive, on disk either."""
        # In this order: a `finish` on its way moves it from the first place to the second.
        for path in (self._incoming_path(number), self.path(number)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._let_go(number)

    def _let_go(self, number: int) -> None:
        """Behind the removal, so that nobody who found it a moment ago keeps it open, and its space taken."""
        with self._lock:
            self._readers.pop(number, None)
            self._unsynced.discard(number)

    def numbers(self) -> list[int]:
        """Every volume file that is there."""
        return _volume_numbers(self._directory)

    def size(self, number: int) -> int:
        return os.stat(self.path(number)).st_size

    def close(self) -> None:
        with self._lock:
            self._readers.clear()
            self._active, self._active_fd = -1, Descriptor(-1)

    def path(self, number: int) -> Path:
        return self._directory / f"{number:08x}.vol"

    def _incoming_path(self, number: int) -> Path:
        return self._incoming / f"{number:08x}.vol"

    def _open_reader(self, number: int) -> Descriptor:
        with self._lock:
            self._readers[number] = reader = Descriptor(self._open(number))
            if len(self._readers) > _MAX_OPEN:
                self._readers.popitem(last=False)
        return reader

    def _open(self, number: int) -> int:
        # Linked and not yet `finish`ed, a volume is still under `incoming`; and may be moved between two tries.
        for path in (self.path(number), self._incoming_path(number)):
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        return os.open(self.path(number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _volume_numbers(directory: Path) -> list[int]:
    return sorted(int(match[1], 16) for name in os.listdir(directory) if (match := _NAME.fullmatch(name)))
