"""The supervisor: holds the mount and its /dev/fuse descriptor, and keeps a worker serving it.

It does as little as possible, so that little in it can fail: it mounts, starts the worker as a fresh process that
inherits the descriptor, and waits. When a worker dies or stops sending heartbeats, a standby takes its place and
finishes the requests that the dead one had read. The supervisor ends when the worker reports that the mount is gone.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from kcachefs import own_python
from kcachefs.daemon import logs
from kcachefs.daemon.crash_loop import CrashLoop, StandbyPause
from kcachefs.daemon.fleet_process import FleetProcess
from kcachefs.daemon.header_guard import HeaderGuard
from kcachefs.daemon.own_mount import OwnMount
from kcachefs.daemon.own_record import OwnRecord
from kcachefs.daemon.registry import MountConfig
from kcachefs.daemon.service_manager import notify
from kcachefs.daemon.worker_process import StartedWorkers, WorkerEvent, WorkerProcess, exit_reason
from kcachefs.daemon.worker_protocol import GONE, READY, REFUSED, REPLACED, UNMOUNTED, Beginning, Refusal
from kcachefs.engines import mounting
from kcachefs.engines.request_buffer import make_memory
from kcachefs.errors import MountError, describe

log = logging.getLogger("kcachefs.daemon.supervisor")  # it runs as __main__

STANDBY_SECONDS = 5.0
"""How long the first worker serves before a standby is started: a new mount is often busy at once."""
GIVE_UP_SECONDS = 60.0
"""How long the supervisor tries to replace a worker before it gives up the mount."""
ABORT_SECONDS = 1.0
"""How long a hung worker gets to write its stacks to the log."""
READAHEAD_KILOBYTES = 4096
"""Room for two read requests, so that one is decoded while a sequential reader consumes the other."""
LEAVE_SECONDS = 10.0
"""How long a worker that was asked to exit may take."""


class Supervisor:
    """One mount and its worker."""

    def __init__(self, config: MountConfig) -> None:
        self._config = config
        self._mountpoint = Path(config.mountpoint)
        self._device = self._request_buffer = -1
        self._header_guard: HeaderGuard | None = None
        self._fleet = FleetProcess(config, config.fleet) if config.fleet is not None else None
        self._started_workers = StartedWorkers()
        self._worker: WorkerProcess | None = None
        self._standby: WorkerProcess | None = None
        """The next worker, started in advance: starting Python is the slowest part of replacing one."""
        self._newcomer: WorkerProcess | None = None
        """The worker of a reload, until it is warm. The standby stays until then: the worker may die meanwhile."""
        self._handing_over = False
        """Whether the next worker that begins completes a reload."""
        self._stopping = False
        self._told_to_finish: WorkerProcess | None = None
        self._reload_requested = False
        self._wakeup, self._wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup_writer, False)
        self._crash_loop = CrashLoop(config.store)
        self._standby_pause = StandbyPause()
        self._record = OwnRecord(config)
        self._state = self._record.state
        self._mount = OwnMount(self._mountpoint, self._record.is_replaced)

    def run(self, ready: Callable[[Refusal | None], None], *, foreground: bool = False) -> int:
        """Mount, serve, and return the exit code.

        `ready` is called once: with None when the mount answers, or with the reason why it cannot be made.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._start_log(foreground)
        signal.signal(signal.SIGUSR2, self._request_reload)
        start_metrics: Callable[[], None] | None = None
        try:
            if self._config.metrics_listen:
                from kcachefs.daemon.mount_metrics import MountMetrics  # it imports all of core

                start_metrics = MountMetrics(self._config, self._state).start
            self._request_buffer = make_memory()
            self._device = mounting.mount(
                self._mountpoint,
                Path(self._config.store),
                allow_other=self._config.allow_other,
            )
        except (MountError, OSError) as error:
            refusal = Refusal.from_error(error)
            ready(refusal)
            return refusal.exit_code
        try:
            return self._serve(ready, start_metrics)
        finally:
            self._leave()

    def _start_helpers(self, start_metrics: Callable[[], None] | None) -> Refusal | None:
        try:
            self._mount.note()
            self._header_guard = HeaderGuard(self._config.mountpoint)
            if start_metrics is not None:
                start_metrics()
        except (OSError, RuntimeError) as error:  # a RuntimeError says that there is no thread left
            is_limit = getattr(error, "errno", errno.EAGAIN) in (errno.EMFILE, errno.ENFILE, errno.EAGAIN)
            advice = "; raise that limit" if is_limit else ""
            return Refusal(4, f"{self._config.mountpoint}: could not be mounted: {describe(error)}{advice}")
        return None

    def _start_log(self, foreground: bool) -> None:
        # SIGHUP from a closing terminal means stop; without a terminal, it comes from the program that rotates logs.
        in_terminal = foreground and logs.has_terminal()
        if in_terminal:
            signal.signal(signal.SIGHUP, self._stop)
        config = self._config
        logs.start(
            config.log,
            "supervisor",
            config.log_format,
            level=config.log_level,
            hangup=not in_terminal,
            on_reopened=self._started_workers.send_log,
            on_signal=self._forward_signal,
            state=lambda: {"state": msgspec.to_builtins(self._state)},
        )

    def _forward_signal(self, number: int) -> None:
        """Pass a signal on to the workers and the agent. Runs in the log's own thread."""
        if number == signal.SIGHUP:
            self._started_workers.hang_up()
        elif self._worker is not None:
            self._worker.signal(number)
        if self._fleet is not None:
            self._fleet.signal(number)

    def _serve(self, ready: Callable[[Refusal | None], None], start_metrics: Callable[[], None] | None) -> int:
        refusal = self._start_helpers(start_metrics)
        if refusal is None and not self._stopping:
            refusal = self._begin(self._start(), resumed=False)
        if refusal is None and self._fleet is not None and self._worker is not None:
            refusal = self._fleet.start()
        if self._stopping and refusal is None:
            refusal = Refusal(4, f"{self._config.mountpoint}: stopped before it was mounted")
        if refusal is not None:
            ready(refusal)
            return refusal.exit_code
        mounting.set_readahead(self._mountpoint, READAHEAD_KILOBYTES)
        log.info("mounted %s at %s, worker %d", self._config.store, self._config.mountpoint, self._state.worker_pid)
        ready(None)
        while True:
            code = self._watch()
            if code in (GONE, REFUSED):  # REFUSED: a worker of an older version
                self._state.failure = f"{self._config.store}: was deleted, or moved away, while it was mounted"
                return 3
            if code == UNMOUNTED or (self._stopping and code < 0):
                log.info("unmounted %s", self._config.mountpoint)
                return 0
            if (self._stopping or self._is_dropped) and self._crash_loop.cannot_close:
                self._state.failure = (
                    f"{self._config.store}: several workers died while they closed it ({exit_reason(code)})"
                )
                return 3
            if not self._can_fail_over:
                log.error("the pyfuse3 engine cannot take over from a dead worker: the mount ends with it")
                self._state.failure = f"the worker ended ({exit_reason(code)})"
                return 4
            refusal = self._replace()
            if refusal is not None:
                log.error("the worker cannot be replaced: %s", refusal.message)
                self._state.failure = refusal.message
                return refusal.exit_code

    @property
    def _can_fail_over(self) -> bool:
        return self._config.engine == "direct"

    # --- while a worker serves ----------------------------------------------------------------------------------------

    def _watch(self) -> int:
        """Wait until the worker has ended and return its exit code."""
        assert self._worker is not None
        while True:
            event = self._worker.watch(self._wakeup, self._config.hang_seconds, self._newcomer)
            if event is WorkerEvent.HEARTBEAT:
                self._crash_loop.note_heartbeat()
                self._keep_standby(self._worker)
                self._keep_record(self._worker)
            elif event is WorkerEvent.WAKEUP and self._reload_requested:
                self._reload()
            elif event is WorkerEvent.NEWCOMER:
                self._hand_over(self._worker)
            elif event is WorkerEvent.SILENT:
                self._worker.signal(signal.SIGABRT)  # faulthandler writes its stacks to the log
                code = self._worker.end(ABORT_SECONDS)
                self._note_death(code, f"no heartbeat for {self._config.hang_seconds:g} s")
                return -signal.SIGKILL
            elif event is WorkerEvent.EXITED:
                code = self._worker.wait()
                if code == REPLACED:
                    self._handing_over = True
                elif code not in (UNMOUNTED, GONE, REFUSED):
                    self._note_death(code)
                return code

    def _keep_standby(self, worker: WorkerProcess) -> None:
        if self._standby is not None and self._standby.has_ended:
            self._standby_pause.note_end(exit_reason(self._standby.wait()))
            self._standby = None
        wanted = self._can_fail_over and not self._stopping and self._standby is None and self._newcomer is None
        if wanted and worker.seconds_served > STANDBY_SECONDS and self._standby_pause.is_over:
            self._standby = self._start()

    def _keep_record(self, worker: WorkerProcess) -> None:
        self._record.renew()
        if self._stopping or not self._record.lost_socket():
            return
        if self._mount.is_there:  # otherwise a later mount makes its own socket now
            bound = self._record.make_socket()
            if bound is not None:
                with bound:
                    worker.send_control_socket(bound)

    def _start(self) -> WorkerProcess | None:
        """A new worker, or None if the system cannot start one now: the mount goes on without a standby."""
        try:
            assert self._header_guard is not None
            mounted = self._state.started if self._worker is not None else None
            lifeline = self._header_guard.lifeline
            return self._started_workers.start(
                lambda: WorkerProcess(self._config, self._device, self._request_buffer, lifeline, mounted)
            )
        except OSError as error:
            log.error("a worker could not be started: %s", error)
            return None

    def _begin(self, worker: WorkerProcess | None, *, resumed: bool) -> Refusal | None:
        if worker is None:
            return Refusal(4, f"{self._config.mountpoint}: no worker process can be started")
        self._record.make_way()
        state = self._state
        heed = self._fleet.heed if self._fleet is not None else None
        refusal = worker.begin(Beginning(resumed, state.started, state.restarts, state.reloads), heed)
        if refusal is None:
            self._worker = worker
            if self._fleet is not None:
                self._fleet.connect(worker.agents)
            unwritten = self._record.write_worker(worker.pid, worker.version)
            if unwritten and not resumed:
                return Refusal(4, unwritten)
            if self._stopping:
                self._finish()
            return None
        return worker.leave(refusal, LEAVE_SECONDS)

    def _replace(self) -> Refusal | None:
        """Put the next worker in place of one that ended; returns a refusal if none can serve."""
        until, pause = time.monotonic() + GIVE_UP_SECONDS, 0.1
        while True:
            if self._standby is None and self._newcomer is not None:
                self._promote_newcomer()  # no other worker would be ready sooner
            if self._handing_over:
                self._handing_over = False
                self._state.reloads += 1
                if self._fleet is not None:
                    self._fleet.replace()
            worker, self._standby = self._standby or self._start(), None
            refusal = self._begin(worker, resumed=True)
            if refusal is None and not self._stopping:
                self._standby_pause = StandbyPause()
                self._standby = self._start()  # this death may not be the last
            if refusal is None or refusal.is_final or self._stopping or time.monotonic() > until:
                return refusal
            log.error("a worker could not take over, trying another: %s", refusal.message)
            time.sleep(pause)
            pause = min(5.0, 2 * pause)

    def _note_death(self, code: int, reason: str = "") -> None:
        reason = reason or exit_reason(code)
        self._state.restarts += 1
        self._state.last_exit = reason
        log.error("the worker ended (%s); replacing it", reason)
        self._crash_loop.note_death(code)

    # --- reloading and stopping ---------------------------------------------------------------------------------------

    def _request_reload(self, number: int, frame: object) -> None:
        self._reload_requested = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._wakeup_writer, b".")

    def _reload(self) -> None:
        """Start a worker that runs the code installed now. Until it is warm, everything goes on as before."""
        self._reload_requested = False
        self._drop_newcomer()
        self._newcomer = self._start()
        if self._newcomer is None:
            self._note_failed_reload("no process can be started")

    def _hand_over(self, worker: WorkerProcess) -> None:
        """Have the newcomer take the worker's place, now that it is warm; keep the worker if the newcomer failed."""
        assert self._newcomer is not None
        if not self._newcomer.is_warm:
            self._note_failed_reload(self._newcomer.refusal.message)
            self._drop_newcomer()
            return
        if self._standby is not None:
            self._standby.end()
        self._promote_newcomer()
        log.info("asking the worker to hand over to the new one")
        worker.signal(signal.SIGUSR2)

    def _promote_newcomer(self) -> None:
        self._standby, self._newcomer, self._handing_over = self._newcomer, None, True

    def _drop_newcomer(self) -> None:
        if self._newcomer is not None:
            self._newcomer.end()
            self._newcomer = None

    def _note_failed_reload(self, why: str) -> None:
        self._state.reloads_failed += 1
        self._state.reload_refusal = why
        log.error("the new worker did not start, the old one keeps serving: %s", why)
        self._record.write()

    def _stop(self, number: int, frame: object) -> None:
        """Unmount on a signal. A busy mount is detached at once, and the worker or its successor is told to finish."""
        self._stopping = True
        with contextlib.suppress(MountError):
            if self._device >= 0:  # otherwise any mount there is not ours
                self._mount.take_away()
        self._finish()

    def _finish(self) -> None:
        """Tell the worker to finish, once. If the kernel has dropped the mount, the worker knows already."""
        worker = self._worker
        if worker is None or worker is self._told_to_finish:
            return
        if not self._is_dropped:
            self._told_to_finish = worker
            worker.signal(signal.SIGTERM)

    @property
    def _is_dropped(self) -> bool:
        """Whether the kernel has dropped the mount: its last user is gone."""
        kernel = select.poll()
        kernel.register(self._device, 0)
        return bool(kernel.poll(0))

    def _leave(self) -> None:
        notify("STOPPING=1")
        self._drop_newcomer()
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
        with contextlib.suppress(MountError):
            self._mount.take_away(lazy=True)
        if self._fleet is not None:
            self._fleet.end()
        if self._header_guard is not None:
            self._header_guard.end()
        self._record.end()


def main() -> None:
    own_python.notice_children()
    config = msgspec.json.decode(sys.argv[1], type=MountConfig)
    ready_fd = int(sys.argv[2])

    def ready(refusal: Refusal | None) -> None:
        with contextlib.suppress(BrokenPipeError), open(ready_fd, "wb") as pipe:
            pipe.write(READY + b"\n" if refusal is None else refusal.to_line())

    sys.exit(Supervisor(config).run(ready))


if __name__ == "__main__":
    main()
