"""Which processes serve a mount, by their numbers in our PID namespace.

A number in a record proves nothing: another process may have it by now, and in another PID namespace, such as a
container's, it means another process from the start. So a record also says when its processes started, and in which
namespace their numbers are valid. The control socket settles what the record leaves open: the kernel knows which
process listens there.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kcachefs import pid_namespace

PEER = struct.Struct("iII")
"""What SO_PEERCRED returns: process, user and group."""


class Identity(NamedTuple):
    """A process, so that it cannot be mistaken for a later one of the same number."""

    pid: int
    started: int
    """In clock ticks since the machine started; 0 if it is not known."""


def identify(pid: int) -> Identity:
    """The process that has this number now."""
    fields = _stat(pid)
    return Identity(pid, int(fields[19]) if fields else 0)


def is_still(process: Identity, counted_in: int) -> bool:
    """Whether this process still runs. Its number is valid in the namespace `counted_in`."""
    return bool(process.started) and counted_in == pid_namespace.current() and identify(process.pid) == process


def parent_of(pid: int) -> int:
    """The parent of a process; 0 if the process has ended, or has no parent that we can see."""
    fields = _stat(pid) if pid_namespace.current() else []
    return int(fields[1]) if fields else 0


def looks_like_ours(pid: int) -> bool:
    """Whether a process of that number runs and may be a kcachefs: no proof, but all that an older record offers."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"kcachefs" in command and bool(_stat(pid))


def listener_at(path: Path) -> int | None:
    """The process that listens on this socket, 0 if it has no number here; None if none listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            with short_address(path) as address:
                connection.connect(address)
        except BlockingIOError:
            return 0  # somebody listens, but takes no connections: there are too many already
        except OSError:
            return None
        pid: int = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[0]
        return pid


def bind(path: Path) -> socket.socket:
    """A socket for its owner only, by the umask: a confined worker cannot change modes. The path must be free."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with short_address(path) as address:
            bound.bind(address)
    except BaseException:
        bound.close()
        raise
    finally:
        os.umask(before)
    return bound


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """The same file under a name that fits into a socket address, which holds at most 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


@contextlib.contextmanager
def opened(numbers: Callable[[], tuple[int, ...]]) -> Iterator[list[int]]:
    """Descriptors of the processes with these numbers; `numbers` omits ended processes, or returns 0 for them."""
    with contextlib.ExitStack() as closing:
        processes = {}
        for pid in filter(None, numbers()):
            with contextlib.suppress(ProcessLookupError):
                processes[pid] = os.pidfd_open(pid)
                closing.callback(os.close, processes[pid])
        # Asked again: a process could end, and its number go to another, before we opened it.
        still = numbers() if processes else ()
        yield [process for pid, process in processes.items() if pid in still]


def ended(process: int, seconds: float | None = None) -> bool:
    """Wait for at most `seconds` until the process of a descriptor has ended; returns whether it has.

    This uses poll: select fails with descriptors from 1024 on, and we may be in a program that has many files open.
    """
    poll = select.poll()
    poll.register(process, select.POLLIN)  # a pidfd becomes readable when its process has ended
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def send(process: int, number: signal.Signals) -> None:
    """Signal the process of a descriptor, if it has not ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, number)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, from the state on; empty if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
    return fields if fields[0] not in ("Z", "X") else []
