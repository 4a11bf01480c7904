"""Who writes to a folder: each process holds a file locked, and its temporary files carry the name of that file."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import threading
import weakref
from collections.abc import Iterator

from kcachefs import filelock

_READ = os.O_RDONLY | os.O_CLOEXEC
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Writers:
    """The writers of one folder: this process, which signs up before its first write, and the others."""

    def __init__(self, folder: str, entries: str) -> None:
        self._folder = folder
        self._entries = entries
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._name = ""
        self._leave: weakref.finalize[[str, int], Writers] | None = None

    def temporary(self, path: str) -> str:
        """A new temporary name beside `path` that shows which process it belongs to."""
        name = self._name or self._sign_up()
        return f"{os.path.dirname(path)}/.{name}-{next(self._numbers)}"

    def sweep(self, everywhere: bool) -> None:
        """Remove the temporary files of dead writers.

        With `everywhere`, also files whose writer nobody knows any more. That looks through all folders of entries,
        which is otherwise needed only after a crash.
        """
        # Locked until their temporary files are gone: a process that has just made one of these writers' files waits,
        # finds it gone, and takes another name.
        dead = {file.name: held for file in listed(self._folder) if (held := _locked(file.path)) is not None}
        if dead or everywhere:
            found = list(self._temporaries())
            # Listed after the files were found, because a writer signs up before it writes.
            living = {file.name for file in listed(self._folder)} - dead.keys()
            for file in found:
                name = _writer_of(file)
                if name in dead or (everywhere and name not in living):
                    with contextlib.suppress(OSError):
                        os.unlink(file.path)
        for name, held in dead.items():
            with contextlib.suppress(OSError):
                os.unlink(self._folder + name)
            os.close(held)

    def close(self) -> None:
        """Sign off."""
        if self._leave is not None:
            self._leave()
        self._name = ""

    def after_fork(self) -> None:
        """In a forked child: the parent's writer is the parent's."""
        self._lock = threading.RLock()
        if self._leave is not None:
            kept = self._leave.detach()
            if kept is not None:
                os.close(kept[2][1])
        self._leave = None
        self._name = ""

    def _temporaries(self) -> Iterator[os.DirEntry[str]]:
        for version in listed(self._entries):
            for folder in listed(version.path):
                yield from (file for file in listed(folder.path) if file.name.startswith("."))

    def _sign_up(self) -> str:
        with self._lock:
            while not self._name:
                os.makedirs(self._folder, exist_ok=True)
                name = f"{os.getpid()}-{os.urandom(6).hex()}"
                file = os.open(self._folder + name, _CREATE, 0o666)
                is_there = True
                with contextlib.suppress(OSError):  # without locks, nobody is ever found dead
                    is_there = filelock.lock(file, self._folder + name, fcntl.LOCK_EX)
                if not is_there:  # a sweep removed it before it was locked
                    os.close(file)
                elif self._take(name):
                    self._leave = weakref.finalize(self, _sign_off, self._folder + name, file)
                else:
                    _sign_off(self._folder + name, file)
            return self._name

    def _take(self, name: str) -> bool:
        """Take a name, unless a signal handler came in between and signed up."""
        self._name = self._name or name  # nothing is called between looking and taking
        return self._name == name


def remove_if_free(path: str) -> None:
    """Remove a file that nobody has locked.

    Only the holder of its lock removes such a file, so while we hold it the name stands for this very file.
    """
    held = _locked(path)
    if held is not None:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(held)


def listed(folder: str) -> Iterator[os.DirEntry[str]]:
    """What is in a folder; nothing where there is none."""
    try:
        with os.scandir(folder) as found:
            yield from found
    except (FileNotFoundError, NotADirectoryError):
        return


def _locked(path: str) -> int | None:
    """The descriptor of a file, locked by us; None where somebody else has locked it."""
    try:
        return filelock.open_locked(path, _READ, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None


def _writer_of(file: os.DirEntry[str]) -> str:
    return file.name[1:].rpartition("-")[0]


def _sign_off(path: str, file: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
    os.close(file)
