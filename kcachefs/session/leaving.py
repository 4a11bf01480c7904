"""Ends a temporary mount after its last session: at once, or by a process that waits until nothing uses it any more.

A program that has loaded a library from the mount keeps the mount busy until it exits, and a program with threads may
still write: into the bare directory, if the mount went first. So the session of such a program leaves another process
behind. That process takes the session's place until the program has exited, and then tries to unmount until that
succeeds or another session has begun.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from kcachefs import config, filelock, own_python, session
from kcachefs.daemon import registry, serving
from kcachefs.engines import mounting
from kcachefs.errors import MountBusy, MountError
from kcachefs.mounts.ending import unmount

_MODULE = "kcachefs.session.leaving"
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two attempts to unmount a busy mount, at first and at most."""


def is_temporary(mountpoint: Path) -> bool:
    """Whether the mount there was made for a session, as its supervisor recorded before the mount answered."""
    state = registry.read(str(mountpoint))
    return state is not None and state.temporary


def open_lock(mountpoint: Path, suffix: str) -> int:
    registry.directory()
    return os.open(lock_path(mountpoint, suffix), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)


def lock_path(mountpoint: Path, suffix: str) -> Path:
    return registry.state_path(str(mountpoint)).with_suffix(suffix)


class SessionLock:
    """A lock file that a session has open while the program runs. The last session removes it.

    A program that becomes a daemon closes every descriptor that it did not open, and its own files then reuse the
    numbers. So we use a descriptor number only if it still leads to the lock file.
    """

    def __init__(self, mountpoint: Path, suffix: str) -> None:
        self._mountpoint, self._suffix = mountpoint, suffix
        self._open()

    def _open(self) -> None:
        self._number = open_lock(self._mountpoint, self._suffix)
        self._file = os.fstat(self._number)

    def descriptor(self) -> int:
        """The lock file, opened again if the program has closed it, which dropped any lock that the session held."""
        if not self._is_open():
            self._open()
        return self._number

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock exclusively, on the file that everybody else finds at its path."""
        while not filelock.lock(self.descriptor(), lock_path(self._mountpoint, self._suffix), fcntl.LOCK_EX):
            self.let_go()
            self.close()
        try:
            yield
        finally:
            self.let_go()

    def share(self) -> None:
        """Share the lock with other sessions. The caller has the turn, without which nobody removes a lock file."""
        if not filelock.lock(self.descriptor(), lock_path(self._mountpoint, self._suffix), fcntl.LOCK_SH):
            self.let_go()
            self.close()
            fcntl.flock(self.descriptor(), fcntl.LOCK_SH)

    def let_go(self) -> None:
        """Unlock the file. Closing it would not unlock it: a fork may have it open too."""
        fcntl.flock(self.descriptor(), fcntl.LOCK_UN)

    def close(self) -> None:
        if self._is_open():
            os.close(self._number)

    def _is_open(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._number), self._file)
        except OSError:
            return False


def leave(users: SessionLock, mountpoint: Path) -> None:
    """End the session that has the shared lock `users`. Its caller has the turn."""
    may_use_it = threading.active_count() > 1 or mounting.used_by("self", mountpoint) is not None
    stays = may_use_it and is_temporary(mountpoint) and _leave_another_behind(mountpoint)
    users.let_go()
    if stays or _is_done(mountpoint, patient=True):
        return
    # A process that outlives its session still uses the mount, which would stay for good if nothing waited for it.
    if not _leave_another_behind(mountpoint):
        _is_done(mountpoint, lazy=True)


def _is_done(mountpoint: Path, *, patient: bool = False, lazy: bool = False) -> bool:
    """Unmount, unless other sessions use the mount; False if anything else uses it. The caller has the turn."""
    users = open_lock(mountpoint, ".users")
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_temporary(mountpoint):
            unmount(mountpoint, patient=patient, lazy=lazy)
        for suffix in (".waiting", ".users", ".turn"):
            lock_path(mountpoint, suffix).unlink(missing_ok=True)
    except BlockingIOError:
        return True  # the last of the other sessions unmounts
    except MountBusy:
        return False
    finally:
        fcntl.flock(users, fcntl.LOCK_UN)  # closing our descriptor would not unlock: a fork may have it too
        os.close(users)
    return True


def _leave_another_behind(mountpoint: Path) -> bool:
    """Start the process that takes the session's place; False if none can be started, or kcachefs was removed."""
    if PathFinder.find_spec(_MODULE, session.__path__) is None:
        return False
    state = registry.read(str(mountpoint))
    environment = {**config.for_daemon(), "KCACHEFS_RUNTIME_DIR": str(registry.directory().absolute())}
    environment.pop("PYTHONPYCACHEPREFIX", None)  # it may lead into the mount
    with contextlib.ExitStack() as opened:
        try:
            this = os.pidfd_open(os.getpid())
            opened.callback(os.close, this)
            share = open_lock(mountpoint, ".users")  # not the session's own lock, which its forks share
            opened.callback(os.close, share)
            fcntl.flock(share, fcntl.LOCK_SH)
            errors = opened.enter_context(open((state and state.log) or os.devnull, "ab"))
            process = subprocess.Popen(
                own_python.command(_MODULE, str(mountpoint), str(this), str(share)),
                pass_fds=[this, share],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=own_python.DIRECTORY,
                env=own_python.environment(environment),
            )
        except (OSError, RuntimeError):  # RuntimeError: Python is shutting down and starts no more processes
            return False
    process.returncode = 0  # keeps Popen from warning about a child that is meant to outlive us
    return True


def _stay(mountpoint: Path, program: int, share: int) -> None:
    serving.ended(program)
    turn, waiting = SessionLock(mountpoint, ".turn"), open_lock(mountpoint, ".waiting")
    pause = FIRST_PAUSE
    while True:
        with turn.held():
            fcntl.flock(share, fcntl.LOCK_UN)
            if _is_done(mountpoint, patient=False):
                fcntl.flock(waiting, fcntl.LOCK_UN)
                return
            try:
                fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another process already waits for the same mount
        time.sleep(pause)
        pause = min(LONGEST_PAUSE, 1.5 * pause)


def main() -> None:
    own_python.notice_children()  # we need the exit status of fusermount3, which says whether the mount is busy
    with contextlib.suppress(MountError):  # somebody else has unmounted it
        _stay(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))


if __name__ == "__main__":
    main()
