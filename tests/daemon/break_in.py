"""What somebody would try who can run code in a worker: each attempt with its outcome. Uses nothing but the library."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

DONE = "done"
_LIBC = ctypes.CDLL(None, use_errno=True)
_PTRACE_SEIZE = 0x4206
_NEW_USER_NAMESPACE = 0x10000000


def attempts(outside: Path, sockets: Path) -> dict[str, str]:
    """Attempts that must fail. `outside` is what `make_bait` made; `sockets` is where the control socket is."""
    secret, parent = outside / "secret", os.getppid()
    tries: dict[str, Callable[[], object]] = {
        "read /etc/passwd": Path("/etc/passwd").read_bytes,
        "read /etc/passwd through /proc": Path("/proc/self/root/etc/passwd").read_bytes,
        "read /etc/passwd as the supervisor sees it": Path(f"/proc/{parent}/root/etc/passwd").read_bytes,
        "read somebody's file": secret.read_bytes,
        "list the root": lambda: os.listdir("/"),
        "list /home": lambda: os.listdir("/home"),
        "read the supervisor's environment": Path(f"/proc/{parent}/environ").read_bytes,
        "open the supervisor's memory": partial(_open_for_writing, f"/proc/{parent}/mem"),
        "open the supervisor's log": partial(_open_for_writing, f"/proc/{parent}/fd/2"),
        "trace the supervisor": lambda: _check(_LIBC.ptrace(_PTRACE_SEIZE, parent, None, None)),
        "signal the supervisor": lambda: os.kill(parent, 0),
        "write a new file": lambda: (outside / "new").write_bytes(b"x"),
        "write over a file": lambda: secret.write_bytes(b"x"),
        "append to a file": partial(_open_for_writing, secret),
        "truncate a file": lambda: os.truncate(secret, 0),
        "make a folder": (outside / "folder").mkdir,
        "make a link": lambda: os.symlink("/etc/passwd", outside / "link"),
        "close a file to others": lambda: os.chmod(secret, 0o600),
        "give a file away": lambda: os.chown(secret, 1, 1),
        "change the code": partial(_open_for_writing, ctypes.__file__),
        "open the library to others": lambda: _open_to_others(Path(os.__file__).parent),
        "write beside the control socket": lambda: (sockets / "state.json").write_bytes(b"x"),
        "remove what is beside the control socket": (sockets / "bait").unlink,
        "start a program": lambda: subprocess.run(["/bin/true"], check=True),
        "connect to a socket with a path": lambda: _connect(str(outside / "stream")),
        "connect to an abstract socket": lambda: _connect("\0" + str(outside)),
        "send a datagram": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", str(outside / "mail")),
        "reach the network": lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
        "move a file": lambda: os.rename(secret, outside / "moved"),
        "remove a file": (outside / "stream").unlink,
        "enter a namespace of its own": lambda: _check(_LIBC.unshare(_NEW_USER_NAMESPACE)),
    }
    return {name: _outcome(attempt) for name, attempt in tries.items()}


def needs(store: Path, sockets: Path) -> dict[str, str]:
    """What serving needs, and so must work."""

    def move() -> None:
        (store / "incoming" / "probe").write_bytes(b"x")
        os.rename(store / "incoming" / "probe", store / "quarantine" / "probe")
        os.truncate(store / "quarantine" / "probe", 0)
        (store / "quarantine" / "probe").unlink()

    def listen() -> None:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(sockets / f"{os.getpid()}.probe"))

    tries: dict[str, Callable[[], object]] = {
        "write, move, truncate and remove in the store": move,
        "listen": listen,
        "ask who a caller is": Path("/proc/1/status").read_text,
        "import late": lambda: __import__("mailbox"),
        "read its own source": Path(sys.modules["kcachefs"].__file__ or "").read_bytes,
    }
    return {name: _outcome(attempt) for name, attempt in tries.items()}


def make_bait(outside: Path, sockets: Path) -> list[socket.socket]:
    """A file to read, change and remove, and sockets to connect to, which the caller keeps open."""
    for folder in (outside, sockets):
        folder.mkdir(exist_ok=True)
    (outside / "secret").write_bytes(b"secret")
    (sockets / "bait").write_bytes(b"")
    listeners = []
    for address, kind in (("stream", socket.SOCK_STREAM), ("mail", socket.SOCK_DGRAM)):
        listeners.append(socket.socket(socket.AF_UNIX, kind))
        listeners[-1].bind(str(outside / address))
    listeners.append(socket.socket(socket.AF_UNIX))
    listeners[-1].bind("\0" + str(outside))
    for one in (listeners[0], listeners[-1]):
        one.listen()
    return listeners


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return error.strerror or str(error)
    return DONE


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _open_for_writing(path: str | Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))


def _connect(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(address)


def _open_to_others(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fchmod(opened, os.fstat(opened).st_mode & 0o7777)  # as it is, in case it succeeds
    finally:
        os.close(opened)
