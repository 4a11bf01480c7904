"""The list of mounts: one small JSON file per mount in the runtime directory, which its supervisor writes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kcachefs import config, filelock
from kcachefs.core.limits import Limits
from kcachefs.core.sharing import Sharing
from kcachefs.daemon import serving
from kcachefs.daemon.serving import Identity
from kcachefs.engines import mounting
from kcachefs.errors import MountDenied, MountError, UsageError
from kcachefs.fleet.options import FleetOptions


class MountConfig(msgspec.Struct, kw_only=True, frozen=True):
    """Everything that a supervisor and its worker need to know."""

    mountpoint: str
    store: str
    engine: str = "direct"
    limits: Limits = Limits()
    sharing: Sharing = Sharing()
    allow_other: bool = True
    log: str = ""
    log_format: str = "text"
    log_level: str = "info"
    hang_seconds: float = 30.0
    """How long a worker may go without a heartbeat before it is replaced."""
    resend: bool = True
    """Whether to ask the kernel to send unanswered requests again after a failover."""
    metrics_gid: int | None = None
    """The group whose members may read the metrics of the whole mount."""
    metrics_listen: str = ""
    """Where the supervisor serves those metrics over HTTP, as ADDRESS:PORT; empty: nowhere."""
    fleet: FleetOptions | None = None
    bytecode: str = "auto"
    """Whether commands keep Python's bytecode in the mount: auto, on or off."""
    temporary: bool = False
    """Whether the mount ends with the last session that uses it: see `kcachefs.session`."""
    origins: dict[str, str] = {}
    """Where the value of each option comes from, as `kcachefs config` shows it."""


class MountState(msgspec.Struct, kw_only=True):
    """The state of a mount, as `status` shows it."""

    mountpoint: str
    store: str
    engine: str
    supervisor_pid: int
    worker_pid: int
    restarts: int
    started: float
    log: str
    policy: str = "shared"
    last_exit: str = ""
    """Why the worker was last replaced."""
    reloads: int = 0
    """How often the worker was replaced on request; not counted among the restarts."""
    reloads_failed: int = 0
    """How often a reload failed because the newly installed code could not start."""
    reload_refusal: str = ""
    """Why the last reload that failed did so."""
    version: str = ""
    """The version of the code that the worker runs."""
    metrics: str = ""
    """The address at which metrics are served over HTTP; empty: nowhere."""
    locked: bool = False
    """Whether the supervisor keeps the record locked as long as it lives. Older versions did not."""
    namespace: int = 0
    """The PID namespace in which the process numbers are valid; 0 if it is not known."""
    supervisor_ticks: int = 0
    """When the supervisor started, in clock ticks since the machine did; 0 if it is not known."""
    worker_ticks: int = 0
    """The same for the worker."""
    failure: str = ""
    """Why the mount ended before everything was written; empty while it is served."""
    temporary: bool = False
    """Whether the mount ends with the last session that uses it."""

    @property
    def uptime_s(self) -> float:
        return max(0.0, time.time() - self.started)

    @property
    def alive(self) -> bool:
        """Whether the mount is served: a worker goes on even if its supervisor is killed."""
        return self.supervised or self._worker_lives()

    @property
    def supervised(self) -> bool:
        """Whether a worker that dies will be replaced."""
        return is_held(self.mountpoint) if self.locked else serving.looks_like_ours(self.supervisor_pid)

    def processes(self) -> tuple[int, int]:
        """The numbers that supervisor and worker have here; 0 for one that has ended, or has no number here."""
        supervisor = Identity(self.supervisor_pid, self.supervisor_ticks)
        worker = Identity(self.worker_pid, self.worker_ticks)
        serves = worker.pid if serving.is_still(worker, self.namespace) else self._listener() or 0
        if serving.is_still(supervisor, self.namespace):
            return supervisor.pid, serves
        parent = serving.parent_of(serves) if serves else 0
        is_supervisor = self.supervised if self.locked else parent == self.supervisor_pid
        return parent if is_supervisor else 0, serves

    def _worker_lives(self) -> bool:
        if serving.is_still(Identity(self.worker_pid, self.worker_ticks), self.namespace):
            return True
        return self._listener() is not None or (not self.locked and serving.looks_like_ours(self.worker_pid))

    def _listener(self) -> int | None:
        return serving.listener_at(socket_path(self.mountpoint))


def directory(*, create: bool = True) -> Path:
    """The runtime directory, accessible to its owner only; readers need not `create` it."""
    path = config.runtime_directory()
    if path.parent == _ANYBODYS:
        path = _unsquatted(path, create=create)
    if create:
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise MountDenied(f"{path}: cannot be used: {error.strerror}; set KCACHEFS_RUNTIME_DIR") from None
    # In a world-writable folder such as /tmp, somebody else may have created it first.
    if (create or os.path.lexists(path)) and not _is_mine_alone(path):
        raise MountDenied(f"{path}: is not a directory that is yours alone; remove it, or set KCACHEFS_RUNTIME_DIR")
    return path


_ANYBODYS = Path("/tmp")
_NOWHERE = Path("/proc/kcachefs")
"""A path that cannot exist, for readers that have no runtime directory."""


def _unsquatted(path: Path, *, create: bool) -> Path:
    """`path`, or if somebody else took that name, a directory beside it whose name nobody could guess.

    Every command of the user finds the same directory: one that is the user's already comes first.
    """

    def mine() -> list[Path]:
        return [one for one in (path, *sorted(path.parent.glob(f"{path.name}-*"))) if _is_mine_alone(one)]

    if _is_mine_alone(path):
        return path  # listing all of /tmp takes long if it is full
    if found := mine():
        return found[0]
    if not os.path.lexists(path):
        return path
    if not create:
        return _NOWHERE
    made = Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=path.parent))
    if (first := mine()[0]) != made:  # another command of the user made one at the same time
        made.rmdir()
    return first


def _is_mine_alone(path: Path) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def name_of(mountpoint: str) -> str:
    """The name of a mount's files: readable, short enough for a socket address, and unique for each path."""
    try:
        raw = os.fsencode(mountpoint)
    except UnicodeEncodeError:  # it comes from a record, where names are UTF-8; our locale cannot express it
        raw = mountpoint.encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(raw, digest_size=8).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', Path(mountpoint).name)[:32] or 'root'}-{digest}"


@contextlib.contextmanager
def claimed(mountpoint: str) -> Iterator[None]:
    """Keep this user's other processes from mounting there while the context lasts."""
    path = directory() / f"{name_of(mountpoint)}.lock"
    try:
        claim = filelock.open_locked(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise MountError(f"{mountpoint}: another process is mounting there; see: kcachefs status") from None
    try:
        yield
    finally:
        path.unlink()
        os.close(claim)


def state_path(mountpoint: str, *, create: bool = False) -> Path:
    return directory(create=create) / f"{name_of(mountpoint)}.json"


def socket_path(mountpoint: str, *, create: bool = False) -> Path:
    return directory(create=create) / f"{name_of(mountpoint)}.sock"


def log_path(mountpoint: str) -> Path:
    try:
        folder = config.log_directory()
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError
    except (OSError, UsageError):  # a user without a home
        folder = directory()
    return folder / f"{name_of(mountpoint)}.log"


def remove(mountpoint: str) -> None:
    remove_files(state_path(mountpoint))


def remove_files(record: Path) -> None:
    """Remove a record, and the control socket beside it."""
    for path in (record, record.with_suffix(".sock")):
        path.unlink(missing_ok=True)


def read(mountpoint: str) -> MountState | None:
    """The state of the mount there, or None if this user has no mount there."""
    try:
        return msgspec.json.decode(state_path(mountpoint).read_bytes(), type=MountState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


@contextlib.contextmanager
def daemon_of(mountpoint: str) -> Iterator[list[int]]:
    """Descriptors of the supervisor and the worker of a mount of this user, where they are alive and visible here."""

    def numbers() -> tuple[int, ...]:
        state = read(mountpoint)
        return state.processes() if state is not None else ()

    with serving.opened(numbers) as processes:
        yield processes


def all_mounts() -> list[MountState]:
    """Every mount of this user that is served."""
    return [state for state in _recorded() if state.alive]


def dead_mounts() -> list[MountState]:
    """Every mount of this user that is still in the mount table although its daemon is gone."""
    return [state for state in _recorded() if not state.alive]


def repair(dead: MountState) -> str:
    """The command that mounts a dead mount again."""
    return f"kcachefs mount {shlex.quote(dead.mountpoint)} --store {shlex.quote(dead.store)}"


def _recorded() -> list[MountState]:
    """Every mount on record; drops the records of those that are neither served nor mounted."""
    mounted = {mount.mountpoint for mount in mounting.mounts() if mount.fstype == mounting.FSTYPE}
    found = []
    for path in sorted(directory(create=False).glob("*.json")):
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            state = msgspec.json.decode(path.read_bytes(), type=MountState)
            if state.alive or state.mountpoint in mounted:
                found.append(state)
            else:
                remove_files(path)
    return found


def is_held(mountpoint: str) -> bool:
    """Whether the supervisor that wrote the record lives; see own_record.py."""
    try:
        os.close(filelock.open_locked(state_path(mountpoint), os.O_RDONLY | os.O_CLOEXEC, _PROBE))
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


_PROBE = fcntl.LOCK_SH | fcntl.LOCK_NB
"""Shared, so that commands which ask at the same time do not take each other for the supervisor."""
