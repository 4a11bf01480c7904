"""The supervisor: holds the mount and its /dev/fuse descriptor, and keeps a worker serving it.

It does next to nothing, so that nothing in it can fail: it mounts, starts the worker as a fresh process with the
descriptor inherited, and waits. A worker that dies is replaced; the kernel then resends what the dead one had taken. It
ends when the worker says that the mount is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from kcachefs import config as settings
from kcachefs.daemon import registry
from kcachefs.daemon.notify import notify
from kcachefs.daemon.registry import MountConfig, MountState
from kcachefs.engines import mounting
from kcachefs.errors import DaemonError, MountBusy, MountError, describe, exit_code_of

UNMOUNTED = 0
"""The worker's exit code when the mount is gone and all is on disk."""
REFUSED = 78
"""Its exit code when it could not begin: the store cannot be opened. Trying again would not help."""

CRASHES_MAX = 10
CRASHES_SECONDS = 10.0
"""So many deaths in so short a time are a loop: then the supervisor waits longer before each next worker."""


class Refusal(NamedTuple):
    """Why a mount did not come about, and the exit code that says so."""

    exit_code: int
    message: str

    def to_line(self) -> bytes:
        return f"{self.exit_code} {self.message}\n".encode()

    @classmethod
    def of(cls, error: BaseException) -> Refusal:
        return cls(exit_code_of(error), describe(error))


READY = b"ready\n"
"""What is said over a pipe instead of a refusal's line: by the worker to the supervisor, by it to who started it."""


def read_answer(pipe: int, otherwise: Refusal) -> Refusal | None:
    """Wait for one of the two. `otherwise` is what it means when the other side ends without a word."""
    with open(pipe, "rb") as stream:
        said = stream.readline()
    if said == READY:
        return None
    code, _, message = said.decode().rstrip("\n").partition(" ")
    return Refusal(int(code), message) if message else otherwise


class Supervisor:
    """One mount and its worker."""

    def __init__(self, config: MountConfig) -> None:
        self._config = config
        self._mountpoint = Path(config.mountpoint)
        self._device = -1
        self._worker: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._deaths: list[float] = []
        self._state = MountState(
            mountpoint=config.mountpoint,
            store=config.store,
            engine=config.engine,
            supervisor_pid=os.getpid(),
            worker_pid=0,
            restarts=0,
            started=time.time(),
            log=config.log,
        )

    def run(self, ready: Callable[[Refusal | None], None], *, foreground: bool = False) -> int:
        """Mount, serve, and return the exit code. `ready` is called once: the mount answers, or why it does not."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        # In the foreground it ends with its terminal; in the background it has none to lose.
        signal.signal(signal.SIGHUP, self._stop if foreground else signal.SIG_IGN)
        try:
            self._device = mounting.mount(
                self._mountpoint,
                Path(self._config.store),
                allow_other=self._config.allow_other,
            )
        except (MountError, OSError) as error:
            refusal = Refusal.of(error)
            ready(refusal)
            return refusal.exit_code
        try:
            return self._serve(ready)
        finally:
            self._leave()

    def _serve(self, ready: Callable[[Refusal | None], None]) -> int:
        refusal = None if self._stopping else self._start_worker(resend=False)
        if self._stopping and refusal is None:
            refusal = Refusal(4, f"{self._config.mountpoint}: asked to stop before it was mounted")
        if refusal is not None:
            ready(refusal)
            return refusal.exit_code
        mounting.set_readahead(self._mountpoint, 1024)
        ready(None)
        while True:
            assert self._worker is not None
            code = self._worker.wait()
            if code in (UNMOUNTED, REFUSED) or (self._stopping and code < 0):
                return 0 if code != REFUSED else 3
            self._note_death(code)
            refusal = self._start_worker(resend=True)
            if refusal is not None:
                self._say(f"the worker cannot be replaced: {refusal.message}")
                return refusal.exit_code

    def _start_worker(self, *, resend: bool) -> Refusal | None:
        """Start one and wait until it serves; returns why it could not."""
        read_end, write_end = os.pipe()
        command = [sys.executable, "-m", "kcachefs.daemon.worker"]
        command += [msgspec.json.encode(self._config).decode(), str(self._device), str(write_end), str(int(resend))]
        self._worker = subprocess.Popen(command, pass_fds=[self._device, write_end], stdin=subprocess.DEVNULL)
        os.close(write_end)
        where = f"; see {self._config.log}" if self._config.log else ""
        silent = Refusal(4, f"{self._config.mountpoint}: the worker ended before it could serve{where}")
        refusal = read_answer(read_end, silent)
        if refusal is None:
            self._state.worker_pid = self._worker.pid
            registry.write(self._state)
        else:
            self._worker.wait()
        return refusal

    def _note_death(self, code: int) -> None:
        reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        now = time.monotonic()
        self._deaths = [moment for moment in self._deaths if now - moment < CRASHES_SECONDS] + [now]
        self._state.restarts += 1
        self._state.last_exit = reason
        self._say(f"the worker ended ({reason}) and is replaced")
        if len(self._deaths) >= CRASHES_MAX:
            pause = min(10.0, 0.1 * 2 ** (len(self._deaths) - CRASHES_MAX))
            self._say(f"{len(self._deaths)} deaths in {CRASHES_SECONDS:.0f} s: waiting {pause:.1f} s")
            time.sleep(pause)

    def _say(self, message: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that was closed
            print(message, file=sys.stderr, flush=True)

    def _stop(self, number: int, frame: object) -> None:
        """SIGTERM: unmount. What is busy is hidden at once, and the worker told to finish."""
        self._stopping = True
        with contextlib.suppress(MountError):
            try:
                mounting.unmount(self._mountpoint)
            except MountBusy:
                mounting.unmount(self._mountpoint, lazy=True)
                if self._worker is not None:
                    self._worker.terminate()

    def _leave(self) -> None:
        notify("STOPPING=1")
        if self._worker is not None and self._worker.poll() is None:
            self._worker.terminate()
            self._worker.wait()
        os.close(self._device)
        if mounting.mounted_at(self._mountpoint) is not None:
            with contextlib.suppress(MountError):
                mounting.unmount(self._mountpoint, lazy=True)
        registry.remove(self._config.mountpoint)


def launch(config: MountConfig) -> None:
    """Start a supervisor in the background and return when its mount answers."""
    read_end, write_end = os.pipe()
    with open(config.log, "ab") as log:
        command = [sys.executable, "-m", "kcachefs.daemon.supervisor"]
        process = subprocess.Popen(
            [*command, msgspec.json.encode(config).decode(), str(write_end)],
            pass_fds=[write_end],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=settings.for_daemon(),
        )
    os.close(write_end)
    try:
        refusal = read_answer(read_end, Refusal(4, f"{config.mountpoint}: the daemon did not start; see {config.log}"))
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if refusal is not None:
        process.wait()
        raise DaemonError(refusal.message, refusal.exit_code)
    os.statvfs(config.mountpoint)
    process.returncode = 0  # it is meant to outlive us


def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=MountConfig)
    ready_fd = int(sys.argv[2])

    def ready(refusal: Refusal | None) -> None:
        with contextlib.suppress(BrokenPipeError), open(ready_fd, "wb") as pipe:
            pipe.write(READY if refusal is None else refusal.to_line())

    sys.exit(Supervisor(config).run(ready))


if __name__ == "__main__":
    main()
