"""What supervisor and worker say to each other, and the supervisor's end of it.

A worker is started ahead of its time: it imports everything, says that it is warm, and waits. Told to begin, it opens
the store, serves, says that it is ready, or why it cannot, and from then on gives a sign of life every second. When the
supervisor's end closes while it waits, it leaves.

    supervisor                 worker
                 ◀── warm
    begin 1 ──▶                             1: it takes over from one that died
                 ◀── ready VERSION          or: EXIT-CODE why not
                 ◀── .                      every second
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from kcachefs.daemon import herald
from kcachefs.daemon.registry import MountConfig
from kcachefs.errors import describe, exit_code_of

UNMOUNTED = 0
"""The worker's exit code when the mount is gone and all is on disk."""
REPLACED = 75
"""Its exit code when it leaves so that another may go on."""
REFUSED = 78
"""Its exit code when it could not begin: the store cannot be opened."""

WARM = b"warm"
READY = b"ready"
BEGIN = b"begin"
ALIVE = b".\n"
START_SECONDS = 120.0
"""How long a worker may take to start, or to open its store, before it counts as hung."""
BEAT_SECONDS = 1.0
FIRST_BEAT_SECONDS = 0.25
"""When it gives the first: who dies before that was no good from the beginning."""


class Refusal(NamedTuple):
    """Why a mount did not come about, and the exit code that says so."""

    exit_code: int
    message: str

    def to_line(self) -> bytes:
        return f"{self.exit_code} {self.message}\n".encode()

    @classmethod
    def of(cls, error: BaseException) -> Refusal:
        return cls(exit_code_of(error), describe(error))

    @classmethod
    def read(cls, line: bytes, otherwise: Refusal) -> Refusal:
        """What a line says; `otherwise` is what it means when the other side ended without a word."""
        code, _, message = line.decode(errors="replace").rstrip("\n").partition(" ")
        return cls(int(code), message) if message and code.isdigit() else otherwise


class Sign(Enum):
    """What the supervisor sees of a worker that serves."""

    ALIVE = auto()
    ENDED = auto()
    SILENT = auto()
    CALLED = auto()
    """Nothing: somebody called the supervisor meanwhile."""


class WorkerProcess:
    """A worker, from the outside."""

    def __init__(self, config: MountConfig, device: int, intake: int) -> None:
        self._mountpoint, self._log = config.mountpoint, config.log
        self._device = device
        self._socket, theirs = socket.socketpair()
        # Messages, not a stream: each is one notification.
        self._notifications, their_herald = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "kcachefs.daemon.worker", msgspec.json.encode(config).decode()]
        inherited = [device, intake, theirs.fileno(), their_herald.fileno()]
        with theirs, their_herald:
            self._process = subprocess.Popen(
                [*command, *map(str, inherited)], pass_fds=inherited, stdin=subprocess.DEVNULL
            )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._heard = b""
        self._last_sign = time.monotonic()
        self._warm = self._heralded = False
        self.seconds = 0.0
        """How long it had served when it gave its last sign of life."""
        self._began = 0.0
        self.version = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_warm(self) -> bool:
        """Wait until it has imported everything. False when it died over it."""
        self._warm = self._warm or self._line() == WARM
        return self._warm

    def begin(self, *, resumed: bool) -> Refusal | None:
        """Let it serve, and wait until it does; returns why it cannot."""
        line = b""
        if self.is_warm():
            herald.start(self._notifications, self._device)
            self._heralded = True
            with contextlib.suppress(OSError):
                self._socket.sendall(b"%s %d\n" % (BEGIN, resumed))
            line = self._line()
        self._began = self._last_sign = time.monotonic()
        if line.startswith(READY):
            self.version = line.removeprefix(READY).decode().strip()
            return None
        where = f"; see {self._log}" if self._log else ""
        silent = Refusal(4, f"{self._mountpoint}: the worker ended before it could serve{where}")
        return Refusal.read(line, silent)

    def watch(self, call: int, patience: float) -> Sign:
        """Wait for the next sign, or for its absence of `patience` seconds, or for something on the pipe `call`."""
        poll = select.poll()
        for descriptor in (self._pidfd, self._socket.fileno(), call):
            poll.register(descriptor, select.POLLIN)
        rest = self._last_sign + patience - time.monotonic()
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, rest) * 1000)}
        if self._pidfd in ready:
            return Sign.ENDED
        if call in ready:
            os.read(call, 64)
            return Sign.CALLED
        if self._socket.fileno() in ready and self._socket.recv(4096):
            self._last_sign = time.monotonic()
            self.seconds = self._last_sign - self._began
            return Sign.ALIVE
        # Its end of the socket closes a moment before it ends.
        return Sign.ENDED if ready else Sign.SILENT

    def signal(self, number: int) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def end(self, seconds: float = 0.0) -> int:
        """Wait for it to leave of itself, then make it; returns its exit code."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended; then nothing is kept of it."""
        code = self._process.wait()
        self._socket.close()
        if not self._heralded:  # otherwise it is the herald's, who may still be waiting for the kernel
            self._notifications.close()
        if self._pidfd >= 0:
            pidfd, self._pidfd = self._pidfd, -1
            os.close(pidfd)
        return code

    def dismiss(self) -> None:
        """It is not needed after all; one that serves goes on."""
        self._socket.close()

    def _line(self) -> bytes:
        self._socket.settimeout(START_SECONDS)
        while b"\n" not in self._heard:
            try:
                chunk = self._socket.recv(4096)
            except OSError:  # it is gone, or hangs
                chunk = b""
            if not chunk:
                return b""
            self._heard += chunk
        line, _, self._heard = self._heard.partition(b"\n")
        return line
