"""Volumes: the files that hold objects. Small objects share the active volume; a large object has one of its own.

Small objects share a file because a file for each would cost a block and an inode, and because LMDB would give a value
larger than half a page whole pages of its own. `python -m benchmarks.store` measures the space that each way takes.

A volume is only ever appended to. Deleting an object makes its bytes dead; a volume with nothing alive is unlinked, and
compaction copies the live objects of a mostly dead one. Any thread may append (under one lock) and read (under none).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from kcachefs.bounded import BoundedDict
from kcachefs.errors import ObjectDamaged, or_no_space
from kcachefs.store.descriptor import Descriptor, share_of_descriptors, sync_directory

_MAX_OPEN = 256
_LARGE = 1 << 20
"""Reads of more bytes than this are first checked against the file's size."""
_PARTS_MAX = 1024
"""Linux takes no more parts in one write (IOV_MAX)."""
_NAME = re.compile(r"([0-9a-f]{8})\.vol")


class Volumes:
    """The files themselves: append, read, sync, remove. The catalog knows what lies where."""

    def __init__(self, directory: Path, incoming: Path) -> None:
        self._directory = directory
        self._incoming = incoming
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self.readers: BoundedDict[int, Descriptor] = BoundedDict(share_of_descriptors(_MAX_OPEN))
        """Descriptors of volumes that are open for reading."""
        self._active = -1
        self._active_fd = Descriptor(-1)
        self._active_size = 0
        self._unsynced: set[int] = set()
        self._directory_unsynced = False
        self.staged: Counter[int] = Counter()
        """How many objects were appended to each volume and are not in the catalog yet. They keep the volume alive."""

    # --- the active volume --------------------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Number of the active volume, or -1."""
        return self._active

    @property
    def active_size(self) -> int:
        return self._active_size

    def open_active(self, number: int, size: int) -> int | None:
        """A descriptor to `switch` to, with the file cut to the `size` that the catalog knows.

        If the file is shorter, because a power cut took its end, this changes nothing and returns None: bytes that the
        catalog expects there must be found missing, not be overwritten.
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
        """Make `append` write to volume `number`. Call under the catalog's lock, along with the record that says so."""
        with self._lock:
            self._active, self._active_fd, self._active_size = number, Descriptor(fd), size
            self._directory_unsynced = True

    def append(self, parts: Sequence[bytes]) -> tuple[int, int]:
        """Write an object's parts at the end of the active volume; returns the volume and the offset.

        The place is reserved under the lock and written outside it, so that appenders do not wait for the disk in turn.
        A failed write gives its place back or, if a later write already follows it, leaves a gap: dead space like any
        other.
        """
        length = sum(map(len, parts))
        with self._lock:
            number, fd, offset = self._active, self._active_fd, self._active_size
            self._active_size = offset + length
            self.staged[number] += 1
        try:
            written = os.pwritev(fd.fd, parts if len(parts) <= _PARTS_MAX else [b"".join(parts)], offset)
            while written < length:  # a nearly full disk takes a part; the next write fails
                written += os.pwrite(fd.fd, b"".join(parts)[written:], offset + written)
        except OSError as error:
            with self._lock:
                if self._active == number and self._active_size == offset + length:
                    self._active_size = offset
                    with contextlib.suppress(OSError):  # a full disk needs the room that the failed write took
                        os.ftruncate(fd.fd, offset)
            self.unstage(number)
            raise or_no_space(error, self.path(number)) from error
        with self._lock:  # only now: a sync before the write would have dropped the number without syncing the bytes
            self._unsynced.add(number)
        return number, offset

    def stage(self, number: int) -> None:
        """Keep a volume alive until `unstage`, while objects in it wait for their place in the catalog."""
        with self._lock:
            self.staged[number] += 1

    def unstage(self, number: int) -> None:
        """An object that was appended is in the catalog now, or never will be."""
        with self._lock:
            self.staged[number] -= 1
            if not self.staged[number]:
                del self.staged[number]

    # --- a volume that is written once --------------------------------------------------------------------------------

    def begin(self, number: int) -> int:
        """A descriptor to write a new volume to. `mark_unsynced` comes next, then `finish` or `abandon`."""
        path = self._incoming_path(number)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise or_no_space(error, path) from error
        return fd

    def finish(self, number: int) -> None:
        """Move a volume to its place, now that the catalog has a record of it."""
        with contextlib.suppress(FileNotFoundError):  # its object was deleted, and a fold removed the volume
            os.rename(self._incoming_path(number), self.path(number))
        self.mark_unsynced([number])

    def abandon(self, number: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._incoming_path(number))
        self._forget(number)

    def incoming(self) -> list[int]:
        """Volumes that were begun and neither finished nor abandoned, as a kill leaves them."""
        return _volume_numbers(self._incoming)

    # --- reading, syncing, removing -----------------------------------------------------------------------------------

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Exactly these bytes.

        Raises FileNotFoundError if there is no volume, ObjectDamaged if it is too short or the disk cannot read it.
        """
        reader = self.readers.get(number) or self._open_reader(number)
        if length > _LARGE and offset + length > os.fstat(reader.fd).st_size:  # else pread allocates it all first
            raise ObjectDamaged(f"{self.path(number)} ends before {offset + length}")
        try:
            data = os.pread(reader.fd, length, offset)
            while len(data) < length:
                more = os.pread(reader.fd, length - len(data), offset + len(data))
                if not more:
                    raise ObjectDamaged(f"{self.path(number)} ends before {offset + length}")
                data += more
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise ObjectDamaged(f"{self.path(number)} cannot be read at {offset}: {error.strerror}") from error
        return data

    def will_need(self, number: int, offset: int, length: int) -> None:
        """Tell the kernel that these bytes will be read soon."""
        reader = self.readers.get(number) or self._open_reader(number)
        os.posix_fadvise(reader.fd, offset, length, os.POSIX_FADV_WILLNEED)

    def mark_unsynced(self, numbers: Iterable[int]) -> None:
        """This process, or one that died, wrote to these volumes: the next `sync` includes them."""
        with self._lock:
            self._unsynced.update(numbers)
            self._directory_unsynced = True

    def sync(self) -> None:
        """When this returns, everything appended and finished so far survives a power cut."""
        with self._sync_lock:  # a second caller must not return before the first one's fdatasync has
            with self._lock:
                numbers, self._unsynced = self._unsynced, set()
                directory, self._directory_unsynced = self._directory_unsynced, False
            try:
                for number in list(numbers):
                    with contextlib.suppress(FileNotFoundError):  # the volume was removed: nothing left to sync
                        reader = self.readers.get(number) or self._open_reader(number)  # the reference keeps it open
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
        """Delete a volume with nothing alive in it, neither by the records in memory nor by those on disk."""
        # In this order, because a concurrent `finish` moves the file from the first place to the second.
        for path in (self._incoming_path(number), self.path(number)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._forget(number)

    def _forget(self, number: int) -> None:
        """Close a removed volume: a descriptor opened just before would keep its blocks allocated."""
        with self._lock:
            self.readers.pop(number, None)
            self._unsynced.discard(number)

    def numbers(self) -> list[int]:
        """The numbers of all volume files."""
        return _volume_numbers(self._directory)

    def size(self, number: int) -> int:
        return os.stat(self.path(number)).st_size

    def close(self, *, inherited: bool = False) -> None:
        """Drop every descriptor. Pass `inherited` in a forked child."""
        if inherited:  # the thread that held the lock may not exist here
            self._lock = threading.Lock()
        with self._lock:
            self.readers.clear()
            self._active, self._active_fd = -1, Descriptor(-1)

    def path(self, number: int) -> Path:
        return self._directory / f"{number:08x}.vol"

    def _incoming_path(self, number: int) -> Path:
        return self._incoming / f"{number:08x}.vol"

    def _open_reader(self, number: int) -> Descriptor:
        with self._lock:
            self.readers[number] = reader = Descriptor(self._open(number))
        return reader

    def _open(self, number: int) -> int:
        # Between `link` and `finish` a volume is still in `incoming`, and may move between the first two attempts.
        for path in (self.path(number), self._incoming_path(number)):
            with contextlib.suppress(FileNotFoundError):
                return _open_file(path)
        return _open_file(self.path(number))


def _open_file(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if stat.S_ISDIR(os.fstat(fd).st_mode):  # as good as missing: nothing can be read from it
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "Is a directory", str(path))
    return fd


def _volume_numbers(directory: Path) -> list[int]:
    try:
        with os.scandir(directory) as found:
            names = [one.name for one in found if not one.is_dir(follow_symlinks=False)]
    except FileNotFoundError:  # a repair looks before it recreates the folder
        return []
    return sorted(int(match[1], 16) for name in names if (match := _NAME.fullmatch(name)))
