"""The supervisor's record of its mount, in the list of mounts: locked as long as the supervisor lives.

The lock tells everybody who shares the runtime directory, in whatever namespace, whether the mount is supervised; the
kernel drops the lock when the process ends. Each version of the record is a new file that is locked before it gets the
record's name, so the record is never unlocked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import logging
import os
import socket
import time
from pathlib import Path

import msgspec

from kcachefs import filelock, pid_namespace
from kcachefs.daemon import registry, serving
from kcachefs.daemon.registry import MountConfig, MountState
from kcachefs.errors import KcachefsError, describe

log = logging.getLogger(__name__)

YOUNG_SECONDS = 3600.0
"""How old the files of a mount get before they are touched: programs that clean /tmp delete files after some days."""


class OwnRecord:
    """The record that `kcachefs status` and every other command rely on."""

    def __init__(self, config: MountConfig) -> None:
        self.state = MountState(
            mountpoint=config.mountpoint,
            store=config.store,
            engine=config.engine,
            supervisor_pid=os.getpid(),
            worker_pid=0,
            restarts=0,
            started=time.time(),
            log=config.log,
            policy=config.sharing.policy,
            locked=True,
            namespace=pid_namespace.current(),
            temporary=config.temporary,
            supervisor_ticks=serving.identify(os.getpid()).started,
        )
        self._file = -1
        self._path: Path | None = None
        self._is_late = False
        """Whether the file is out of date."""
        self._socket: tuple[int, ...] | None = None
        """Identifies the control socket of the serving worker; None if it is not known."""
        self._told_no_socket = False

    def write(self) -> str:
        """Write the record. If that fails, returns why, and what to do about it; `renew` then tries again."""
        try:
            path = registry.state_path(self.state.mountpoint, create=True)
            if not self._is_taken(path):
                try:
                    self._write(path)
                except OSError as error:
                    error.filename = error.filename or str(path)
                    if error.errno not in _FULL or not self._overwrite(path):
                        raise
        except (KcachefsError, OSError) as error:
            if not self._is_late:
                log.error("the state that `kcachefs status` shows could not be written: %s", describe(error))
            self._is_late = True
            return _with_advice(error)
        self._is_late = False
        return ""

    def write_worker(self, pid: int, version: str) -> str:
        """Record the worker that serves from now on."""
        self.state.worker_pid, self.state.version = pid, version
        self.state.worker_ticks = serving.identify(pid).started
        self._socket = None
        return self.write()

    def renew(self) -> None:
        """Write the record again if it is out of date, or gone because the runtime directory was cleared or moved."""
        with contextlib.suppress(KcachefsError):  # the next heartbeat may find the directory usable
            path = registry.state_path(self.state.mountpoint)
            if self._is_late or not self._is_ours(path):
                self.write()
            self._keep_young(path)

    def _keep_young(self, path: Path) -> None:
        """Touch old files: in /tmp, where the runtime directory may be, they get deleted, even locks that are held."""
        with contextlib.suppress(OSError):
            if not 0 <= time.time() - path.stat().st_mtime < YOUNG_SECONDS:
                for one in path.parent.glob(f"{glob.escape(path.stem)}.*"):
                    with contextlib.suppress(OSError):  # the file is gone already
                        os.utime(one, follow_symlinks=False)

    def make_way(self) -> None:
        """Remove the control socket of the last worker: a confined worker can make a socket, but not remove one."""
        try:
            path = registry.state_path(self.state.mountpoint)
            if not self._is_taken(path):
                path.with_suffix(".sock").unlink(missing_ok=True)
        except (KcachefsError, OSError) as error:
            log.error("the control socket of the last worker cannot be removed: %s", describe(error))

    def lost_socket(self) -> bool:
        """Whether the control socket is missing or not ours, and not that of a later mount either."""
        try:
            record = registry.state_path(self.state.mountpoint)
            return not self._is_taken(record) and not self._is_our_socket(record.with_suffix(".sock"))
        except (KcachefsError, OSError):
            return False  # the next heartbeat may find the directory usable

    def make_socket(self) -> socket.socket | None:
        """A new control socket for the worker to listen on, in place of the lost one; None if it cannot be made now.

        The worker cannot make it: it is confined to the directory that was there when it started.
        """
        try:
            path = registry.socket_path(self.state.mountpoint)
            path.unlink(missing_ok=True)
            made = serving.bind(path)
            self._socket = _identify(path)
        except (KcachefsError, OSError) as error:
            if not self._told_no_socket:
                log.error("the control socket is missing and cannot be made again: %s", describe(error))
            self._told_no_socket = True
            return None
        log.warning("the control socket was missing and has been made again")
        self._told_no_socket = False
        return made

    def is_replaced(self) -> bool:
        """Whether a later mount at the same place has its record there."""
        try:
            return self._is_taken(registry.state_path(self.state.mountpoint))
        except (KcachefsError, OSError):
            return False

    def end(self) -> None:
        """The mount is gone. If it failed, `kcachefs umount` reads why, and removes the record."""
        if self.state.failure:
            self.write()
        elif self._path is None:
            self.make_way()
        elif self._is_ours(self._path):
            registry.remove_files(self._path)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, path: Path) -> None:
        new = path.with_suffix(".new")
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
        file = filelock.open_locked(new, flags, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            os.truncate(file, 0)
            encoded = msgspec.json.encode(self.state)
            if os.write(file, encoded) < len(encoded):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(new))
            os.replace(new, path)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink()
            os.close(file)
            raise
        if self._path not in (None, path) and self._is_ours(self._path):
            registry.remove_files(self._path)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._path = file, path

    def _overwrite(self, path: Path) -> bool:
        """Write the record in place, if there is no room for another file; returns False if it does not fit.

        It is written in one call, and padded rather than truncated, so that nobody reads half a record.
        """
        if not self._is_ours(path):
            return False
        found = os.fstat(self._file)
        encoded = msgspec.json.encode(self.state).ljust(found.st_size)
        if len(encoded) > found.st_blocks * 512:
            return False
        return os.pwrite(self._file, encoded, 0) == len(encoded)

    def _is_taken(self, path: Path) -> bool:
        """Whether a later mount at the same place has its record there: ours was hidden, but still has users."""
        return self._file >= 0 and not self._is_ours(path) and registry.is_held(self.state.mountpoint)

    def _is_our_socket(self, path: Path) -> bool:
        try:
            found = _identify(path)
        except FileNotFoundError:
            return False
        if found == self._socket:
            return True
        listener = serving.listener_at(path)  # asked once, because each question costs the worker a thread
        if listener == self.state.worker_pid:
            self._socket = found
        return listener in (self.state.worker_pid, 0)

    def _is_ours(self, path: Path | None) -> bool:
        """Whether this is the record that we wrote last."""
        try:
            return path is not None and self._file >= 0 and os.path.samestat(os.fstat(self._file), os.stat(path))
        except OSError:
            return False


_FULL = (errno.ENOSPC, errno.EDQUOT)


def _with_advice(error: Exception) -> str:
    advice = "make room there, or set" if isinstance(error, OSError) and error.errno in _FULL else "set"
    return describe(error) if isinstance(error, KcachefsError) else f"{describe(error)}; {advice} KCACHEFS_RUNTIME_DIR"


def _identify(path: Path) -> tuple[int, ...]:
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_ctime_ns
