"""A worker as the supervisor sees it: a child process, its socket, and the heartbeats that come over it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from enum import Enum, auto

import msgspec

from kcachefs import own_python
from kcachefs.daemon import notification_relay
from kcachefs.daemon.registry import MountConfig
from kcachefs.daemon.worker_protocol import (
    CONTROL,
    GONE,
    LAST_CHANCE_SECONDS,
    READY,
    START_SECONDS,
    WARM,
    Beginning,
    Refusal,
)

_SECRETS = ("AWS_", "AZURE_", "GOOGLE_", "IDENTITY_", "MSI_", "SERVICE_ACCOUNT")
"""Prefixes of the environment variables in which a bucket's credentials are looked for."""


class WorkerEvent(Enum):
    """The event that ended the supervisor's wait for a worker."""

    HEARTBEAT = auto()
    EXITED = auto()
    SILENT = auto()
    """No heartbeat came in time."""
    WAKEUP = auto()
    """Nothing from the worker: a signal handler woke the supervisor."""
    NEWCOMER = auto()
    """The worker that is to replace it is warm, or will never be."""


class WorkerProcess:
    """A worker, from the outside."""

    def __init__(
        self, config: MountConfig, device: int, request_buffer: int, lifeline: int, mounted: float | None = None
    ) -> None:
        """`mounted`: when the mount began, for a worker that is to take over from another one."""
        self._mountpoint, self._store, self._log = config.mountpoint, config.store, config.log
        self._device = device
        self._socket, their_socket = socket.socketpair()
        # SEQPACKET keeps message boundaries: each message is one notification.
        self._notifications, their_notifications = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log_files, their_log_files = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log_files.setblocking(False)  # a worker that does not read must not block the supervisor
        self.agents, their_agents = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """Carries sockets that lead to the fleet's agent."""
        theirs = (their_socket, their_notifications, their_log_files, their_agents)
        inherited = [device, request_buffer, *(one.fileno() for one in theirs)]
        successor = [f"{mounted:.3f}"] if mounted is not None else []
        with contextlib.ExitStack() as closing:
            for one in theirs:
                closing.enter_context(one)
            self._process = subprocess.Popen(
                own_python.command(
                    "kcachefs.daemon.worker", msgspec.json.encode(config).decode(), *map(str, inherited), *successor
                ),
                pass_fds=[*inherited, lifeline],
                stdin=subprocess.DEVNULL,
                cwd=own_python.DIRECTORY,
                env=_without_secrets(),
            )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._received = b""
        self._first_line = b""
        self._warm = self._relay_started = False
        self._started = time.monotonic()
        self._began = 0.0
        self._last_heartbeat = time.monotonic()
        self.seconds_served = 0.0
        """How long it had served at its last heartbeat."""
        self.version = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def was_waited_for(self) -> bool:
        return self._pidfd < 0

    def wait_until_warm(self) -> bool:
        """Wait until it has imported everything; False if it died first, or cannot serve."""
        self._first_line = self._first_line or self._read_line()
        self._warm = self._first_line == WARM
        return self._warm

    @property
    def refusal(self) -> Refusal:
        """Why it did not become warm."""
        where = f"; see {self._log}" if self._log else ""
        silent = Refusal(4, f"{self._mountpoint}: the worker ended before it could serve{where}")
        return Refusal.from_line(self._first_line, default=silent)

    def begin(self, beginning: Beginning, heed: Callable[[socket.socket], None] | None = None) -> Refusal | None:
        """Tell it to serve and wait until it does; returns a refusal if it cannot. `heed` listens to its `agents`."""
        if not self.wait_until_warm():
            return self.refusal
        try:
            notification_relay.start(self._notifications, self._device)
            self._relay_started = True
            if heed is not None:
                heed(self.agents)
        except RuntimeError as error:  # there is no thread left now; a later worker may find one
            self.signal(signal.SIGKILL)
            return Refusal(4, f"{self._mountpoint}: {error}; raise the limit of processes")
        with contextlib.suppress(OSError):
            self._socket.sendall(beginning.to_line())
        line = self._read_line()
        self._began = self._last_heartbeat = time.monotonic()
        if line.startswith(READY):
            self.version = line.removeprefix(READY).decode().strip()
            return None
        return Refusal.from_line(line, default=self.refusal)

    def leave(self, refusal: Refusal, seconds: float) -> Refusal:
        """Wait for the exit of a worker that did not begin; returns its refusal, corrected by its exit code."""
        code = self.end(seconds)
        if code in (-signal.SIGBUS, -signal.SIGSEGV):  # LMDB reads through a map, and trusts what it reads
            return Refusal(3, f"{self._store}: its catalog is damaged; run: kcachefs fsck --repair")
        return refusal._replace(is_final=code == GONE)

    @property
    def is_warm(self) -> bool:
        """Whether it has imported everything, without waiting for it."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return self._warm or (bool(poll.poll(0)) and self.wait_until_warm())

    def watch(self, wakeup: int, patience: float, newcomer: WorkerProcess | None = None) -> WorkerEvent:
        """Wait for a heartbeat, the worker's exit, `patience` seconds of silence, or a byte on the pipe `wakeup`;
        while a `newcomer` starts, wait for it as well.
        """
        poll = select.poll()
        for descriptor in (self._pidfd, self._socket.fileno(), wakeup):
            poll.register(descriptor, select.POLLIN)
        silent = late = self._last_heartbeat + patience
        if newcomer is not None:
            poll.register(newcomer._socket.fileno(), select.POLLIN)
            late = newcomer._started + START_SECONDS
        remaining = min(silent, late) - time.monotonic()
        found = poll.poll(max(0.0, remaining) * 1000)
        if not found and silent <= late:
            # Whatever stopped us (SIGSTOP, a frozen container) may have stopped the worker, which only now goes on.
            found = poll.poll(LAST_CHANCE_SECONDS * 1000)
        ready = {descriptor for descriptor, _ in found}
        if self._pidfd in ready:
            return WorkerEvent.EXITED
        if wakeup in ready:
            os.read(wakeup, 64)
            return WorkerEvent.WAKEUP
        if self._socket.fileno() in ready and self._receive():
            self._last_heartbeat = time.monotonic()
            self.seconds_served = self._last_heartbeat - self._began
            return WorkerEvent.HEARTBEAT
        if newcomer is not None and (newcomer._socket.fileno() in ready or (not ready and late < silent)):
            return WorkerEvent.NEWCOMER
        # A worker's end of the socket closes a moment before the process is gone.
        return WorkerEvent.EXITED if ready else WorkerEvent.SILENT

    def signal(self, number: int) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def send_log(self, file: int) -> None:
        """Send it the log's new file. It looks for one when it gets SIGHUP; it cannot open files by itself."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._log_files, [b"log"], [file])

    def send_control_socket(self, bound: socket.socket) -> None:
        """Have the worker take commands at this socket."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._socket, [CONTROL + b"\n"], [bound.fileno()])

    def end(self, seconds: float = 0.0) -> int:
        """Give it `seconds` to exit by itself, then kill it; returns its exit code."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Wait for its exit, close everything that belonged to it, and return its exit code."""
        code = self._process.wait()
        self._socket.close()
        self._log_files.close()
        self.agents.close()
        if not self._relay_started:  # otherwise the relay owns the socket, and may still be waiting for the kernel
            self._notifications.close()
        if self._pidfd >= 0:
            pidfd, self._pidfd = self._pidfd, -1
            os.close(pidfd)
        return code

    def dismiss(self) -> None:
        """Close our end of the socket: a worker that stands by exits, one that serves goes on."""
        self._socket.close()

    def _receive(self) -> bytes:
        """The worker's next message; empty if it is gone, perhaps without having read ours (ECONNRESET), or hangs."""
        try:
            return self._socket.recv(4096)
        except OSError:
            return b""

    def _read_line(self) -> bytes:
        """The next line without its newline; empty if the worker is gone or hangs."""
        self._socket.settimeout(START_SECONDS)
        while b"\n" not in self._received:
            chunk = self._receive()
            if not chunk:
                return b""
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line


class StartedWorkers:
    """All workers that were started and have not ended, even those that are about to serve or to leave: each has to
    follow the log to its new file. The log's own thread tells them, while the main thread starts and ends them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: list[WorkerProcess] = []
        self._told: list[WorkerProcess] | None = None

    def start(self, make: Callable[[], WorkerProcess]) -> WorkerProcess:
        with self._lock:  # a worker either starts with the new log file, or is in the list and is sent the new one
            worker = make()
            self._workers = [*(one for one in self._workers if not one.was_waited_for), worker]
            return worker

    def send_log(self, file: int) -> None:
        with self._lock:
            told = self._told = self._workers
        for worker in told:
            worker.send_log(file)

    def hang_up(self) -> None:
        """Send SIGHUP to the workers that were sent a new log file.

        If none was sent, send it to all: each logs that its log stays as it is.
        """
        with self._lock:
            told, self._told = self._workers if self._told is None else self._told, None
        for worker in told:
            worker.signal(signal.SIGHUP)


def _without_secrets() -> dict[str, str]:
    """Our environment without variables that only the fleet's agent needs. A proxy's address may hold a password."""
    return {
        name: value
        for name, value in own_python.environment().items()
        if not name.startswith(_SECRETS) and not name.upper().endswith("_PROXY")
    }


def exit_reason(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # most realtime signals have no name
        return f"signal {-code}"
