"""The supervisor: holds the mount and its /dev/fuse descriptor, and keeps a worker serving it.

It does next to nothing, so that nothing in it can fail: it mounts, starts the worker as a fresh process with the
descriptor inherited, and waits. A worker that dies, or gives no sign of life, is replaced by one that stands by; that
one then finishes what the dead one had taken. It ends when the worker says that the mount is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from kcachefs import config as settings
from kcachefs.daemon import logs, registry
from kcachefs.daemon.conversation import READY, REFUSED, REPLACED, UNMOUNTED, Refusal, Sign, WorkerProcess
from kcachefs.daemon.notify import notify
from kcachefs.daemon.registry import MountConfig, MountState
from kcachefs.engines import mounting
from kcachefs.engines.intake import make_memory
from kcachefs.errors import DaemonError, MountBusy, MountError

log = logging.getLogger("kcachefs.daemon.supervisor")  # it runs as __main__

CRASHES_MAX = 5
"""So many workers in a row that died before their first sign of life are a loop: then each next one comes later."""
STANDBY_SECONDS = 2.0
"""When the first standby is started: until then the mount may be busy with what it was made for."""
GIVE_UP_SECONDS = 60.0
"""How long it tries to replace a worker before it gives the mount up."""
ABORT_SECONDS = 1.0
"""How long a worker that hangs may take to say where."""
READAHEAD_KILOBYTES = 4096
"""Two requests: so a sequential reader has one decoded while another is on its way."""
LEAVE_SECONDS = 10.0
"""How long a worker that was asked to leave is waited for."""


class Supervisor:
    """One mount and its worker."""

    def __init__(self, config: MountConfig) -> None:
        self._config = config
        self._mountpoint = Path(config.mountpoint)
        self._device = self._intake = -1
        self._worker: WorkerProcess | None = None
        self._standby: WorkerProcess | None = None
        """The next worker, started ahead: what takes longest in replacing one is to start Python."""
        self._stopping = False
        self._told: WorkerProcess | None = None
        """The worker that was told to finish."""
        self._reloading = False
        self._called, self._call = os.pipe()
        os.set_blocking(self._call, False)
        self._crashes = 0
        self._state = MountState(
            mountpoint=config.mountpoint,
            store=config.store,
            engine=config.engine,
            supervisor_pid=os.getpid(),
            worker_pid=0,
            restarts=0,
            started=time.time(),
            log=config.log,
            policy=config.sharing.policy,
        )

    def run(self, ready: Callable[[Refusal | None], None], *, foreground: bool = False) -> int:
        """Mount, serve, and return the exit code. `ready` is called once: the mount answers, or why it does not."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._start_log(foreground)
        signal.signal(signal.SIGUSR2, self._ask_for_reload)
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
        self._intake = make_memory()
        try:
            return self._serve(ready)
        finally:
            self._leave()

    def _start_log(self, foreground: bool) -> None:
        # A terminal that hangs up ends what runs in its foreground; without one, SIGHUP is from who rotates logs.
        in_terminal = foreground and logs.has_terminal()
        if in_terminal:
            signal.signal(signal.SIGHUP, self._stop)
        own_log = logs.start(self._config.log, "supervisor", self._config.log_format, hangup=not in_terminal)
        own_log.state = lambda: {"state": msgspec.to_builtins(self._state)}
        own_log.passed_on = self._pass_on

    def _pass_on(self, number: int) -> None:
        """Of the thread that looks after the log."""
        for worker in (self._worker, self._standby if number == signal.SIGHUP else None):
            if worker is not None:
                worker.signal(number)

    def _serve(self, ready: Callable[[Refusal | None], None]) -> int:
        refusal = None if self._stopping else self._begin(self._start(), resumed=False)
        if self._stopping and refusal is None:
            refusal = Refusal(4, f"{self._config.mountpoint}: asked to stop before it was mounted")
        if refusal is not None:
            ready(refusal)
            return refusal.exit_code
        mounting.set_readahead(self._mountpoint, READAHEAD_KILOBYTES)
        log.info("mounted %s at %s, worker %d", self._config.store, self._config.mountpoint, self._state.worker_pid)
        ready(None)
        while True:
            code = self._watch()
            if code in (UNMOUNTED, REFUSED) or (self._stopping and code < 0):
                log.info("unmounted %s", self._config.mountpoint)
                return 0 if code != REFUSED else 3
            if not self._resumes:
                log.error("the pyfuse3 engine cannot take over from a dead worker: the mount ends with it")
                return 4
            refusal = self._replace()
            if refusal is not None:
                log.error("the worker cannot be replaced: %s", refusal.message)
                return refusal.exit_code

    @property
    def _resumes(self) -> bool:
        return self._config.engine == "direct"

    # --- while it serves ----------------------------------------------------------------------------------------------

    def _watch(self) -> int:
        """Wait for the worker's end and return its exit code."""
        assert self._worker is not None
        while True:
            sign = self._worker.watch(self._called, self._config.hang_seconds)
            if sign is Sign.ALIVE:
                self._crashes = 0
                self._stand_by(self._worker)
            elif sign is Sign.CALLED and self._reloading:
                self._reload()
            elif sign is Sign.SILENT:
                self._worker.signal(signal.SIGABRT)  # which writes down where it hangs
                self._note_death(
                    self._worker.end(ABORT_SECONDS), f"no sign of life for {self._config.hang_seconds:g} s"
                )
                return -signal.SIGKILL
            elif sign is Sign.ENDED:
                code = self._worker.wait()
                if code == REPLACED:
                    self._state.reloads += 1
                elif code not in (UNMOUNTED, REFUSED):
                    self._note_death(code)
                return code

    def _stand_by(self, worker: WorkerProcess) -> None:
        wanted = self._resumes and not self._stopping and self._standby is None
        if wanted and worker.seconds > STANDBY_SECONDS:
            self._standby = self._start()

    def _start(self) -> WorkerProcess | None:
        """A new one, if the system gives us one: that it does not is no reason to end the mount."""
        try:
            return WorkerProcess(self._config, self._device, self._intake)
        except OSError as error:
            log.error("a worker could not be started: %s", error)
            return None

    def _begin(self, worker: WorkerProcess | None, *, resumed: bool) -> Refusal | None:
        if worker is None:
            return Refusal(4, f"{self._config.mountpoint}: no process can be started for it")
        refusal = worker.begin(resumed=resumed)
        if refusal is None:
            self._worker = worker
            self._state.worker_pid = worker.pid
            self._state.version = worker.version
            self._publish()
            if self._stopping:
                self._finish()
        else:
            worker.end(LEAVE_SECONDS)
        return refusal

    def _publish(self) -> None:
        try:
            registry.write(self._state)
        except OSError as error:
            log.error("what `kcachefs status` shows could not be written: %s", error)

    def _replace(self) -> Refusal | None:
        """Put the next worker in the place of one that ended; returns why that cannot be done."""
        until, pause = time.monotonic() + GIVE_UP_SECONDS, 0.1
        while True:
            worker, self._standby = self._standby or self._start(), None
            refusal = self._begin(worker, resumed=True)
            if refusal is None and not self._stopping:
                self._standby = self._start()  # one death may not be the last
            if refusal is None or self._stopping or time.monotonic() > until:
                return refusal
            log.error("a worker could not take over, another is tried: %s", refusal.message)
            time.sleep(pause)
            pause = min(5.0, 2 * pause)

    def _note_death(self, code: int, reason: str = "") -> None:
        reason = reason or _reason(code)
        self._crashes += 1
        self._state.restarts += 1
        self._state.last_exit = reason
        log.error("the worker ended (%s) and is replaced", reason)
        if self._crashes >= CRASHES_MAX:
            pause = min(10.0, 0.1 * 2 ** (self._crashes - CRASHES_MAX))
            log.error("%d workers in a row died at once: waiting %.1f s", self._crashes, pause)
            time.sleep(pause)

    # --- when it is asked ---------------------------------------------------------------------------------------------

    def _ask_for_reload(self, number: int, frame: object) -> None:
        self._reloading = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._call, b".")

    def _reload(self) -> None:
        """Have the worker replaced by one from the code that is installed now; it stays if that cannot start."""
        assert self._worker is not None
        self._reloading = False
        if self._standby is not None:
            self._standby.dismiss()
            self._standby.end(LEAVE_SECONDS)
        self._standby = self._start()
        if self._standby is not None and self._standby.is_warm():
            log.info("the worker is asked to leave to another")
            self._worker.signal(signal.SIGUSR2)
            return
        if self._standby is not None:
            self._standby.end()
            self._standby = None
        self._state.reloads_failed += 1
        log.error("the new worker did not start; the old one goes on")
        self._publish()

    def _stop(self, number: int, frame: object) -> None:
        """SIGTERM: unmount. What is busy is hidden at once, and the worker told to finish, or the next one."""
        self._stopping = True
        with contextlib.suppress(MountError):
            try:
                mounting.unmount(self._mountpoint)
            except MountBusy:
                mounting.unmount(self._mountpoint, lazy=True)
        self._finish()

    def _finish(self) -> None:
        """Tell the worker to finish, once: told again while it puts everything on disk, it would end there.

        When the kernel has let go of the mount it knows already, and may be at it.
        """
        worker = self._worker
        if worker is None or worker is self._told:
            return
        kernel = select.poll()
        kernel.register(self._device, 0)
        if not kernel.poll(0):
            self._told = worker
            worker.signal(signal.SIGTERM)

    def _leave(self) -> None:
        notify("STOPPING=1")
        for worker in (self._standby, self._worker):
            if worker is not None:
                worker.dismiss()
        if self._standby is not None:
            self._standby.signal(signal.SIGTERM)
        self._finish()
        for worker in (self._standby, self._worker):
            if worker is not None:
                worker.wait()
        os.close(self._device)
        if mounting.mounted_at(self._mountpoint) is not None:
            with contextlib.suppress(MountError):
                mounting.unmount(self._mountpoint, lazy=True)
        registry.remove(self._config.mountpoint)


def _reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # most realtime signals have no name
        return f"signal {-code}"


def launch(config: MountConfig) -> None:
    """Start a supervisor in the background and return when its mount answers."""
    read_end, write_end = os.pipe()
    with open(config.log, "ab") as file:
        command = [sys.executable, "-m", "kcachefs.daemon.supervisor"]
        process = subprocess.Popen(
            [*command, msgspec.json.encode(config).decode(), str(write_end)],
            pass_fds=[write_end],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd="/",
            env=settings.for_daemon(),
        )
    os.close(write_end)
    try:
        with open(read_end, "rb") as said:
            line = said.readline()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if line.rstrip() != READY:
        silent = Refusal(4, f"{config.mountpoint}: the daemon did not start; see {config.log}")
        refusal = Refusal.read(line, silent)
        process.wait()
        raise DaemonError(refusal.message, refusal.exit_code)
    os.statvfs(config.mountpoint)
    process.returncode = 0  # it is meant to outlive us


def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=MountConfig)
    ready_fd = int(sys.argv[2])

    def ready(refusal: Refusal | None) -> None:
        with contextlib.suppress(BrokenPipeError), open(ready_fd, "wb") as pipe:
            pipe.write(READY + b"\n" if refusal is None else refusal.to_line())

    sys.exit(Supervisor(config).run(ready))


if __name__ == "__main__":
    main()
