"""The fleet agent as the supervisor sees it: a child process that is started again when it dies.

The mount never waits for it. Whenever the worker or the agent is new, each of them gets one end of a new socket pair.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import threading
import time

import msgspec

from kcachefs import own_python
from kcachefs.daemon.registry import MountConfig
from kcachefs.daemon.worker_protocol import REPLACED, Refusal
from kcachefs.fleet.agent_protocol import HUNG
from kcachefs.fleet.options import FleetOptions

log = logging.getLogger(__name__)

FINISH = b"finish"
FINISH_SECONDS = 2.0
"""How long an agent may take to end when the mount is gone; the worker has already waited for the uploads."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 60.0
LASTING_SECONDS = 60.0
"""An agent that lived this long is started again after the shortest pause."""
_TOLD = -1000
"""Stands for an exit code if we ended the agent ourselves. No process can exit with it."""


class FleetProcess:
    """Keeps one agent running."""

    def __init__(self, config: MountConfig, fleet: FleetOptions) -> None:
        told = {
            "fleet": fleet,
            "mountpoint": config.mountpoint,
            "store": config.store,
            "log": config.log,
            "log_format": config.log_format,
            "log_level": config.log_level,
        }
        self._mountpoint = config.mountpoint
        self._config = msgspec.json.encode(told).decode()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._told_to_end: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._worker: socket.socket | None = None
        """The socket that leads to the worker that serves now."""
        self._ending = threading.Event()

    def start(self) -> Refusal | None:
        try:
            threading.Thread(target=self._keep, name="kcachefs-agent", daemon=True).start()
        except RuntimeError as error:
            return Refusal(4, f"{self._mountpoint}: {error}; raise the limit of processes")
        return None

    def heed(self, worker: socket.socket) -> None:
        """Listen to a worker that is about to serve. Raises RuntimeError if no thread can be started."""
        threading.Thread(target=self._heed, args=(worker,), name="kcachefs-hung", daemon=True).start()

    def connect(self, worker: socket.socket) -> None:
        """Connect the agent to the worker that serves from now on."""
        with self._lock:
            self._worker = worker
            self._introduce()

    def _heed(self, worker: socket.socket) -> None:
        """Replace the agent whenever this worker says that it hangs; return when the worker is gone."""
        with contextlib.suppress(OSError):
            while message := worker.recv(16):
                if message == HUNG and worker is self._worker:
                    log.error("the fleet's agent hangs; it is replaced")
                    self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def replace(self) -> None:
        """Replace the agent by one that runs the code installed now."""
        self._told_to_end = self._process
        self.signal(signal.SIGTERM)

    def end(self) -> None:
        """The mount is gone: let the agent finish its uploads, for a while."""
        self._ending.set()
        with self._lock:
            process, control = self._process, self._control
            if control is not None:
                with contextlib.suppress(OSError):
                    control.send(FINISH)
        if process is not None:
            try:
                process.wait(FINISH_SECONDS)
            except subprocess.TimeoutExpired:
                log.warning("the fleet's agent did not finish in time; the rest will be published next time")
                process.send_signal(signal.SIGKILL)
                process.wait()

    def _keep(self) -> None:
        pause = FIRST_PAUSE
        while not self._ending.is_set():
            began = time.monotonic()
            code = self._run()
            if self._ending.is_set():
                return
            if code == _TOLD or time.monotonic() - began > LASTING_SECONDS:
                pause = FIRST_PAUSE
            if code == _TOLD:
                log.info("starting the fleet's agent again")
                continue
            if code == REPLACED:
                # Not at once: on some filesystems the bucket's folder looks like another one each time we look.
                log.info("starting the fleet's agent again in %.1f s", pause)
            else:
                log.error("the fleet's agent ended (%s); starting another in %.1f s", code, pause)
            self._ending.wait(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def _run(self) -> int | None:
        """Start an agent and wait until it ends; returns its exit code, None if it could not be started.

        The exit code of an agent that was told to end is given as `_TOLD`.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                try:
                    process = subprocess.Popen(
                        own_python.command("kcachefs.daemon.fleet_agent", self._config, str(theirs.fileno())),
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        cwd=own_python.DIRECTORY,
                        env=own_python.environment(),
                    )
                except OSError as error:
                    log.error("the fleet's agent could not be started: %s", error)
                    return None
            with self._lock:
                self._process, self._control = process, ours
                self._introduce()
            code = process.wait()
            with self._lock:
                self._process = self._control = None
        return _TOLD if process is self._told_to_end else code

    def _introduce(self) -> None:
        """Give agent and worker a socket to each other. The lock is held."""
        if self._control is None or self._worker is None:
            return
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with one, other, contextlib.suppress(OSError):  # a side that is gone is replaced, and then this runs again
            for end in (one, other):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            socket.send_fds(self._control, [b"worker"], [one.fileno()])
            socket.send_fds(self._worker, [b"agent"], [other.fileno()])
