"""The list of mounts: one small JSON file per mount in the runtime directory, written by its supervisor."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

import msgspec

from kcachefs import config
from kcachefs.core.eviction import Limits


class MountConfig(msgspec.Struct, kw_only=True, frozen=True):
    """Everything that a supervisor and its worker need to know."""

    mountpoint: str
    store: str
    engine: str = "direct"
    limits: Limits = Limits()
    read_only: bool = False
    allow_other: bool = True
    log: str = ""
    debug: bool = False


class MountState(msgspec.Struct, kw_only=True):
    """What `status` shows of a mount."""

    mountpoint: str
    store: str
    engine: str
    supervisor_pid: int
    worker_pid: int
    restarts: int
    started: float
    log: str
    last_exit: str = ""
    """Why the worker was last replaced."""

    @property
    def uptime_s(self) -> float:
        return max(0.0, time.time() - self.started)

    @property
    def alive(self) -> bool:
        return is_alive(self.supervisor_pid)


def directory() -> Path:
    """The runtime directory, made if absent, for its owner alone."""
    path = config.runtime_directory()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def name_of(mountpoint: str) -> str:
    """What a mount's files are called: readable, and different for different paths."""
    digest = hashlib.blake2b(os.fsencode(mountpoint), digest_size=4).hexdigest()
    return f"{Path(mountpoint).name[:40] or 'root'}-{digest}"


def state_path(mountpoint: str) -> Path:
    return directory() / f"{name_of(mountpoint)}.json"


def socket_path(mountpoint: str) -> Path:
    return directory() / f"{name_of(mountpoint)}.sock"


def log_path(mountpoint: str) -> Path:
    folder = config.log_directory()
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    return folder / f"{name_of(mountpoint)}.log"


def write(state: MountState) -> None:
    path = state_path(state.mountpoint)
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(state))
    os.replace(new, path)


def remove(mountpoint: str) -> None:
    for path in (state_path(mountpoint), socket_path(mountpoint)):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def read(mountpoint: str) -> MountState | None:
    """The state of the mount there, if a supervisor has it."""
    try:
        return msgspec.json.decode(state_path(mountpoint).read_bytes(), type=MountState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def all_mounts() -> list[MountState]:
    """Every mount whose supervisor lives; what the dead left is tidied away."""
    found = []
    for path in sorted(directory().glob("*.json")):
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            state = msgspec.json.decode(path.read_bytes(), type=MountState)
            if state.alive:
                found.append(state)
            else:
                remove(state.mountpoint)
    return found


def is_alive(pid: int) -> bool:
    """Whether that process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")
