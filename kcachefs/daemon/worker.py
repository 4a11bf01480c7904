"""The worker: opens the store and serves the mount. The engine has a thread of its own, and so has every chore.

It is started before it is needed and waits to be told to begin (`worker_protocol.py`).

Sealing and folding run in other threads and in short turns, because the engine's thread needs the interpreter for
every request and must never wait long for it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from kcachefs import __version__
from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.metrics import About
from kcachefs.core.sealing import REST_SECONDS
from kcachefs.daemon import logs, memory, serving
from kcachefs.daemon.chores import Chores, growth_of
from kcachefs.daemon.commands import Commands
from kcachefs.daemon.control import ControlSocket
from kcachefs.daemon.idle_work import IdleWork
from kcachefs.daemon.live_settings import as_changed
from kcachefs.daemon.preparation import prepare, raise_descriptor_limit, raise_priority, volume_size
from kcachefs.daemon.registry import MountConfig
from kcachefs.daemon.worker_protocol import (
    BEGIN,
    FIRST_HEARTBEAT_SECONDS,
    GONE,
    HEARTBEAT,
    HEARTBEAT_SECONDS,
    READY,
    REFUSED,
    REPLACED,
    UNMOUNTED,
    WARM,
    Beginning,
    Refusal,
)
from kcachefs.engines import prepare_engine
from kcachefs.errors import KcachefsError, NoSpace, StoreGone, or_gone
from kcachefs.store import Options, Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kcachefs.fleet.client import FleetClient
    from kcachefs.fleet.offers import Offers

log = logging.getLogger("kcachefs.daemon.worker")  # as a program this module is __main__

SEAL_TURN = 0.05
SEAL_PAUSE = 0.05
IDLE_PAUSE = REST_SECONDS / 4
BUSY_REQUESTS = 20
"""More requests than this in one pause mean that somebody is working."""
QUIET_PAUSE = 5.0
FLUSH_PAUSE = 2.0
EVICT_PAUSE = 0.25
REAP_PAUSE = 30.0
ORPHANS_PAUSE = 5.0
COLLECT_PAUSE = 10.0
TRIM_PAUSE = 1.0
OFFER_PAUSE = 2.0
OFFER_SECONDS = 8.0
"""How long an unmount waits for newly compiled entries to be published."""
ENGINE_ENDED = 0
"""Sent to the main thread, which otherwise receives the numbers of signals."""


class Worker:
    """A store, its filesystem and the engine that serves it."""

    def __init__(
        self,
        config: MountConfig,
        device: int,
        request_buffer: int,
        relay: socket.socket,
        agents: socket.socket,
        control_socket: Path | None,
        began: Beginning,
    ) -> None:
        opening = Options(volume_size=volume_size(config), mounted=began.started, resumed=began.resumed)
        self.store = Store(config.store, opening)
        self._kernel, make_engine = prepare_engine(
            config.engine, device, request_buffer, relay, resumed=began.resumed, resend=config.resend
        )
        self._fleet: FleetClient | None = None
        if config.fleet is not None:
            from kcachefs.fleet.client import FleetClient

            self._fleet = FleetClient(agents, self._kernel.request_count)
        self.fs = Filesystem(
            self.store,
            FsOptions(
                limits=config.limits,
                sharing=config.sharing,
                uid=os.getuid(),
                gid=os.getgid(),
                metrics_gid=config.metrics_gid,
                resumed=began.resumed,
            ),
            self._kernel,
            _about(config, began),
            self._fleet,
        )
        self.commands = Commands(self.fs, config)
        self._socket, self._resumed = control_socket, began.resumed
        self._control = ControlSocket(self.commands)
        self._hang_seconds = config.hang_seconds
        self._heap = memory.Heap()
        self._wakeups, self._wakeup = socket.socketpair()
        """They end the main thread's wait. Both stay open: the engine may end when nobody waits for it any more."""
        self._wakeup.setblocking(False)
        self._failure: BaseException | None = None
        """Why the engine ended, if not because the mount is gone."""
        self._requests_since_seal = growth_of(self._kernel.request_count)
        self._requests_since_collect = growth_of(self._kernel.request_count)
        self._offers: Offers | None = None
        if config.fleet is not None and self._fleet is not None and config.fleet.publishes:
            from kcachefs.fleet.offers import Offers
            from kcachefs.fleet.options import FOLDER

            self._offers = Offers(self.fs, self._fleet, config.fleet, Path(config.store) / FOLDER)
        self.fs.runs.start()
        self.fs.read_ahead.start()
        if began.resumed:
            self.fs.history.note_takeover(f"restart {began.restarts}")
        self.engine = make_engine(self.fs)
        self._idle_work = IdleWork(self.fs, self._kernel.request_count)

    def run(self, supervisor: socket.socket) -> None:
        """Serve until the mount is gone or a signal asks to finish."""
        chores = Chores()
        self._make_socket()
        with self._signals():
            self._start(chores)
            supervisor.sendall(b"%s %s\n" % (READY, __version__.encode()))
            self._idle_work.start()
            if self._fleet is not None:
                self._fleet.start(self.fs)
            threading.Thread(target=self._serve, name="kcachefs-engine", daemon=True).start()
            self._wait(supervisor)
            self.engine.stop()
            chores.stop()
            self._control.close()
        if self._failure is not None:
            raise self._failure

    def _make_socket(self) -> None:
        """Make the control socket. A worker that takes over goes on without it: the supervisor may send one later."""
        try:
            if self._socket is not None:
                self._control.listen(serving.bind(self._socket))
        except OSError as error:
            if not self._resumed:
                raise
            log.warning("serving without a control socket: %s: %s", self._socket, error.strerror)

    def _start(self, chores: Chores) -> None:
        chores.repeat(0, "sealing", self._seal)
        chores.every(COLLECT_PAUSE, "collecting garbage", self._collect)
        chores.every(QUIET_PAUSE, "sealing what is quiet", self.fs.sealer.seal_quiet)
        chores.every(FLUSH_PAUSE, "recording uses", self.fs.write_down)
        chores.every(EVICT_PAUSE, "eviction", self.fs.evictor.turn)
        chores.every(REAP_PAUSE, "reaping", self.fs.reaper.reap)
        chores.every(ORPHANS_PAUSE, "releasing unlinked files", self.fs.clear_orphans)
        chores.every(TRIM_PAUSE, "trimming memory", self._trim)
        if self._offers is not None:
            chores.every(OFFER_PAUSE, "publishing", self._offers.turn)

    def state(self) -> dict[str, Any]:
        """What the worker is doing, for the log. Takes no lock."""
        nodes = self.fs.nodes
        return {
            "requests": self._kernel.requests(),
            "files": self.fs.sealer.statistics(),
            "inodes": {"known_to_the_kernel": len(nodes.lookups), "open": len(nodes.handles)},
            "unlinked_and_in_use": len(nodes.orphans),
            "out_of_room": not self.fs.room.has_room.is_set(),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "resident_bytes": memory.resident_bytes(),
        }

    def close(self) -> None:
        """Write everything to disk."""
        log.info("served %s", self._kernel.requests())
        self._idle_work.stop()
        with contextlib.suppress(NoSpace):  # changes that cannot be folded now stay in the journal
            self.fs.settle()
        if self._offers is not None:
            self._offers.finish(OFFER_SECONDS)
        if self._fleet is not None:
            self._fleet.close()
        self.store.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Have `_wakeups` receive the number of every signal that Python handles."""
        before = {number: signal.signal(number, _ignore) for number in (signal.SIGTERM, signal.SIGUSR2)}
        signal.set_wakeup_fd(self._wakeup.fileno())
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _serve(self) -> None:
        try:
            self.engine.serve()
        except BaseException as error:
            self._failure = error
        finally:
            self._wakeup.send(bytes([ENGINE_ENDED]))

    def _wait(self, supervisor: socket.socket) -> None:
        """Send heartbeats until the engine has ended or a signal asks to finish.

        A heartbeat is sent every second, unless the engine is still at the same request as at the last look.
        """
        request: object = None
        seconds = min(FIRST_HEARTBEAT_SECONDS, self._hang_seconds / 4)
        poll = select.poll()
        poll.register(self._wakeups, select.POLLIN)
        poll.register(supervisor, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(seconds * 1000)}
            if supervisor.fileno() in ready and not self._take_socket(supervisor):
                poll.unregister(supervisor)
            if not ready:
                seconds = min(HEARTBEAT_SECONDS, self._hang_seconds / 4)
                last, request = request, self.engine.request_at_hand()
                if request is None or request is not last:
                    with contextlib.suppress(OSError):  # a worker goes on without a supervisor
                        supervisor.sendall(HEARTBEAT)
            if self._wakeups.fileno() not in ready:
                continue
            number = self._wakeups.recv(1)[0]
            if number == signal.SIGUSR2:
                self._hand_over()
            if number == signal.SIGTERM:
                log.info("told to finish")
            if number in (signal.SIGTERM, ENGINE_ENDED):
                return

    def _take_socket(self, supervisor: socket.socket) -> bool:
        """Take the control socket that the supervisor sends in place of a lost one; False if the supervisor is gone."""
        try:
            message, descriptors, _, _ = socket.recv_fds(supervisor, 256, 1)
            for descriptor in descriptors:
                self._control.listen(socket.socket(fileno=descriptor))
        except OSError as error:
            log.error("the control socket could not be taken over: %s", error)
            return False
        return bool(message)

    def _hand_over(self) -> None:
        """Exit at once, as if killed: what was acknowledged is safe, and the kernel resends the rest."""
        log.info("handing over to the next worker; served %s", self._kernel.requests())
        with contextlib.suppress(Exception):
            self.fs.write_down()
            self.fs.history.note_event("reloaded")
        logging.shutdown()
        os._exit(REPLACED)

    def _seal(self) -> float:
        """Seal while no requests come, or when too much is waiting: requests need the interpreter more.

        Returns when to look again, in seconds.
        """
        came = self._requests_since_seal()
        if not self.fs.sealer.waiting():
            return IDLE_PAUSE  # anything written until then has to rest for longer anyway
        more = False
        if came <= BUSY_REQUESTS or self.fs.sealer.is_pressing() or self.fs.room.holds_much_unsealed():
            more = self._seal_turn()
        return SEAL_PAUSE / 10 if more else SEAL_PAUSE

    def _seal_turn(self) -> bool:
        until = time.monotonic() + SEAL_TURN
        # On a full disk the evictor does the sealing, a little at a time: sealing needs room before it frees any.
        while not self.fs.sealer.is_pausing and self.fs.room.check() and self.fs.sealer.seal_next():
            if time.monotonic() > until:
                return True
        return False

    def _trim(self) -> None:
        memory.trim(self.store.path.resolve() / "catalog" / "data.mdb")
        self._heap.trim()

    def _collect(self) -> None:
        """Collect cyclic garbage while nobody is working, and under load only the youngest generation."""
        gc.collect(2 if self._requests_since_collect() <= BUSY_REQUESTS else 0)


def _ignore(number: int, frame: object) -> None:
    """For signals whose numbers `Worker._wakeups` receives."""


def wait_to_begin(supervisor: socket.socket) -> Beginning:
    """Report that we are warm and wait until we are told to begin. Exits if the supervisor does."""
    line = b""
    with contextlib.suppress(OSError):
        supervisor.sendall(WARM + b"\n")
        line = supervisor.recv(256)
    if not line.startswith(BEGIN):
        sys.exit(UNMOUNTED)
    return Beginning.from_line(line)


def refuse(supervisor: socket.socket, error: KcachefsError | OSError) -> NoReturn:
    """Tell the supervisor why we cannot serve, and exit."""
    with contextlib.suppress(OSError):
        supervisor.sendall(Refusal.from_error(error).to_line())
    sys.exit(GONE if isinstance(error, StoreGone) else REFUSED)


def _about(config: MountConfig, began: Beginning) -> About:
    return About(
        version=__version__,
        engine=config.engine,
        policy=config.sharing.policy,
        started=began.started,
        restarts=began.restarts,
        reloads=began.reloads,
    )


def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=MountConfig)
    inherited = (int(number) for number in sys.argv[2:8])
    device, request_buffer, supervisor_socket, relay_socket, log_socket, agents_socket = inherited
    sys.argv[0] = "kcachefs"  # the store names its holder by this when someone else tries to open it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor, which unmounts
    memory.bound_heap()
    raise_priority()
    failure: KcachefsError | OSError | None = None
    try:
        prepared = prepare(config, float(sys.argv[8]) if sys.argv[8:] else None)
    except (KcachefsError, OSError) as error:
        failure = error
    log_files = socket.socket(fileno=log_socket)
    worker: Worker | None = None

    def state() -> dict[str, Any]:
        return worker.state() if worker is not None else {}

    logs.start(config.log, "worker", config.log_format, level=config.log_level, files=log_files, state=state)
    sys.setswitchinterval(0.0001)
    raise_descriptor_limit()
    with socket.socket(fileno=supervisor_socket) as supervisor:
        if failure is not None:
            refuse(supervisor, failure)  # before the worker that serves now is told to hand over
        began = wait_to_begin(supervisor)
        try:
            if not began.resumed:  # once per mount
                for gap in prepared.gaps:
                    log.warning("%s", gap)
            config = as_changed(config, resumed=began.resumed)
            logs.set_level(config.log_level)
            relay = socket.socket(fileno=relay_socket)
            agents = socket.socket(fileno=agents_socket)
            worker = Worker(config, device, request_buffer, relay, agents, prepared.control_socket, began)
        except (KcachefsError, OSError) as error:
            refuse(supervisor, error)
        gc.freeze()
        gc.disable()  # a collection in the middle of a request would slow it down; `_collect` waits for a pause
        # While it serves, SIGTERM means finish; it must not kill a worker that is writing everything to disk already.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        worker.run(supervisor)
    try:
        worker.close()
    except FileNotFoundError as error:
        gone = or_gone(error, worker.store.path)
        if gone is error:
            raise
        log.error("the last changes could not be written: %s", gone)  # and no other worker could do better
        logging.shutdown()
        os._exit(GONE)
    # After a signal the engine's thread may still wait in the kernel; nothing is left for it to do.
    logging.shutdown()
    os._exit(UNMOUNTED)


if __name__ == "__main__":
    main()
