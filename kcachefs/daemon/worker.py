"""The worker: opens the store and serves the mount. The engine has a thread of its own; trio runs everything else.

It is started before it is needed and waits to be told to begin (`worker_protocol.py`).

Sealing and folding run in other threads and in short turns, because the engine's thread needs the interpreter for
every request and must never wait long for it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import trio

from kcachefs import __version__
from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.sealing import REST_SECONDS
from kcachefs.daemon import control, logs, memory, privileges, registry
from kcachefs.daemon.commands import Commands
from kcachefs.daemon.confinement import confine
from kcachefs.daemon.idle_work import IdleWork
from kcachefs.daemon.interpreter import refuse_free_threading
from kcachefs.daemon.live_settings import as_changed
from kcachefs.daemon.registry import MountConfig
from kcachefs.daemon.worker_protocol import (
    BEGIN,
    FIRST_HEARTBEAT_SECONDS,
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
from kcachefs.errors import KcachefsError, NoSpace
from kcachefs.store import Options, Store
from kcachefs.store.header import make_directory
from kcachefs.store.objects import DEFAULT_VOLUME_SIZE

if TYPE_CHECKING:
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
"""How long an unmount waits until what was compiled is published."""
NICENESS = -5
"""What the scheduler is told, if we may. The lowest is -20, and programs have 0."""


class Worker:
    """A store, its filesystem and the engine that serves it."""

    def __init__(
        self,
        config: MountConfig,
        device: int,
        request_buffer: int,
        relay: socket.socket,
        agents: socket.socket,
        control_socket: Path,
        began: Beginning,
    ) -> None:
        self.store = Store(config.store, Options(volume_size=volume_size(config)))
        self._kernel, make_engine = prepare_engine(
            config.engine, device, request_buffer, relay, resumed=began.resumed, resend=config.resend
        )
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
        )
        self.commands = Commands(self.fs, config, began)
        self._socket = control_socket
        self._hang_seconds = config.hang_seconds
        self._heap = memory.Heap()
        self._fleet: FleetClient | None = None
        self._offers: Offers | None = None
        if config.fleet is not None:
            from kcachefs.fleet.client import FleetClient
            from kcachefs.fleet.offers import Offers
            from kcachefs.fleet.options import FOLDER

            self._fleet = FleetClient(self.fs, agents, self._kernel.request_count)
            self.fs.ask(self._fleet)
            if config.fleet.publishes:
                self._offers = Offers(self.fs, self._fleet, config.fleet, Path(config.store) / FOLDER)
        self.fs.runs.start()
        self.fs.profiles.start()
        if began.resumed:
            self.fs.history.note_takeover(f"restart {began.restarts}")
        self.engine = make_engine(self.fs)
        self._idle_work = IdleWork(self.fs, self._kernel.request_count)

    async def run(self, supervisor: socket.socket) -> None:
        """Serve until the mount is gone or a signal asks to finish."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_signals, nursery.cancel_scope)
            nursery.start_soon(self._seal)
            nursery.start_soon(self._collect)
            nursery.start_soon(self._every, QUIET_PAUSE, "sealing", self.fs.sealer.seal_quiet)
            nursery.start_soon(self._every, FLUSH_PAUSE, "recording uses", self.fs.write_down)
            nursery.start_soon(self._every, EVICT_PAUSE, "eviction", self.fs.evictor.turn)
            nursery.start_soon(self._every, REAP_PAUSE, "reaping", self.fs.reaper.reap)
            nursery.start_soon(self._every, ORPHANS_PAUSE, "releasing unlinked files", self.fs.let_go_of_orphans)
            nursery.start_soon(self._every, TRIM_PAUSE, "trimming memory", self._trim)
            await nursery.start(control.serve, self._socket, self.commands)
            supervisor.sendall(b"%s %s\n" % (READY, __version__.encode()))
            nursery.start_soon(self._send_heartbeats, supervisor)
            self._idle_work.start()
            if self._fleet is not None:
                self._fleet.start()
            if self._offers is not None:
                nursery.start_soon(self._every, OFFER_PAUSE, "publishing", self._offers.turn)
            await self.engine.run()
            nursery.cancel_scope.cancel()

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
        with contextlib.suppress(NoSpace):  # whatever cannot be folded now stays in the journal
            self.fs.settle()
        if self._offers is not None:
            self._offers.finish(OFFER_SECONDS)
        if self._fleet is not None:
            self._fleet.close()
        self.store.close()

    async def _watch_signals(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGUSR2) as signals:
            async for number in signals:
                if number == signal.SIGUSR2:
                    self._hand_over()
                log.info("told to finish")
                scope.cancel()

    def _hand_over(self) -> None:
        """Exit at once, as if killed: what was acknowledged is safe, and the kernel resends the rest."""
        log.info("handing over to the next worker; served %s", self._kernel.requests())
        with contextlib.suppress(Exception):
            self.fs.write_down()
            self.fs.history.note_event("reloaded")
        logging.shutdown()
        os._exit(REPLACED)

    async def _send_heartbeats(self, supervisor: socket.socket) -> None:
        """Send a heartbeat every second, unless the engine's thread is stuck in one request."""
        request, since = None, time.monotonic()
        await trio.sleep(min(FIRST_HEARTBEAT_SECONDS, self._hang_seconds / 4))
        with contextlib.suppress(OSError):  # a worker goes on without a supervisor
            while True:
                current, now = self.engine.request_at_hand(), time.monotonic()
                if current is None or current is not request:
                    request, since = current, now
                if now - since < self._hang_seconds:
                    supervisor.sendall(HEARTBEAT)
                await trio.sleep(min(HEARTBEAT_SECONDS, self._hang_seconds / 4))

    async def _seal(self) -> None:
        """Seal while no requests come, or when too much is waiting: requests need the interpreter more."""
        before = 0
        while True:
            before, answered = self._kernel.request_count(), self._kernel.request_count() - before
            if not self.fs.sealer.waiting():
                await trio.sleep(IDLE_PAUSE)  # what is written meanwhile has to rest for longer
                continue
            more = False
            if answered <= BUSY_REQUESTS or self.fs.sealer.is_pressing() or self.fs.room.holds_much_unsealed():
                more = await trio.to_thread.run_sync(self._seal_turn)
            await trio.sleep(SEAL_PAUSE / 10 if more else SEAL_PAUSE)

    def _seal_turn(self) -> bool:
        until = time.monotonic() + SEAL_TURN
        try:
            # On a full disk the evictor does the sealing, a little at a time: sealing needs room before it frees any.
            while self.fs.room.check() and self.fs.sealer.seal_next():
                if time.monotonic() > until:
                    return True
        except Exception as error:  # one bad file must not end this worker and then each of its successors
            log.error("sealing failed: %s", error, exc_info=not isinstance(error, KcachefsError | OSError))
        return False

    def _trim(self) -> None:
        memory.trim(self.store.path.resolve() / "catalog" / "data.mdb")
        self._heap.trim()

    async def _collect(self) -> None:
        """Collect cyclic garbage while nobody is working, and under load only the youngest generation."""
        before = 0
        while True:
            await trio.sleep(COLLECT_PAUSE)
            before, answered = self._kernel.request_count(), self._kernel.request_count() - before
            gc.collect(2 if answered <= BUSY_REQUESTS else 0)

    async def _every(self, pause: float, what: str, work: Callable[[], object]) -> None:
        while True:
            await trio.sleep(pause)
            try:
                await trio.to_thread.run_sync(work)
            except Exception as error:
                known = isinstance(error, KcachefsError | OSError)
                log.error("%s failed and will be tried again: %s", what, error, exc_info=not known)


def volume_size(config: MountConfig) -> int:
    """How large a volume may be: small enough that compacting one hardly matters to the quota and the disk."""
    existing = next(path for path in (Path(config.store), *Path(config.store).parents) if path.exists())
    disk = os.statvfs(existing)
    room = min(config.limits.max_size, disk.f_blocks * disk.f_frsize)
    return max(256 << 10, min(DEFAULT_VOLUME_SIZE, room // 64))


def raise_priority() -> None:
    """Get processor time before programs do, where we may: everybody on the mount waits while one keeps them busy."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)


def raise_descriptor_limit() -> None:
    """Raise the usual soft limit of 1,024: thousands of spool files and volumes may be open at once."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))


class Preparation(NamedTuple):
    """What a worker did before it gave up the right to."""

    control_socket: Path
    gaps: list[str]
    """What it could not give up."""


def prepare(config: MountConfig) -> Preparation:
    """Do what needs the rights of our user, and give them up. Before the first thread."""
    with contextlib.suppress(ImportError):  # reported when the engine is made
        importlib.import_module(f"kcachefs.engines.{config.engine}")
    if config.fleet is not None:
        importlib.import_module("kcachefs.fleet.offers")  # mounts without a fleet do without its code
    store, control_socket = Path(config.store), registry.socket_path(config.mountpoint)
    privileges.drop()
    make_directory(store)
    return Preparation(control_socket, confine(store, control_socket.parent))


def wait_to_begin(supervisor: socket.socket) -> Beginning:
    """Report that we are warm and wait until we are told to begin. Exits if the supervisor does."""
    line = b""
    with contextlib.suppress(OSError):
        supervisor.sendall(WARM + b"\n")
        line = supervisor.recv(256)
    if not line.startswith(BEGIN):
        sys.exit(UNMOUNTED)
    return Beginning.from_line(line)


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
        prepared = prepare(config)
    except (KcachefsError, OSError) as error:  # reported when somebody asks us to begin
        failure = error
    log_files = socket.socket(fileno=log_socket)
    own_log = logs.start(config.log, "worker", config.log_format, level=config.log_level, files=log_files)
    sys.setswitchinterval(0.0001)
    raise_descriptor_limit()
    with socket.socket(fileno=supervisor_socket) as supervisor:
        began = wait_to_begin(supervisor)
        try:
            refuse_free_threading()
            if failure is not None:
                raise failure
            if not began.resumed:  # once per mount
                for gap in prepared.gaps:
                    log.warning("%s", gap)
            config = as_changed(config, resumed=began.resumed)
            logs.set_level(config.log_level)
            relay = socket.socket(fileno=relay_socket)
            agents = socket.socket(fileno=agents_socket)
            worker = Worker(config, device, request_buffer, relay, agents, prepared.control_socket, began)
        except (KcachefsError, OSError) as error:
            supervisor.sendall(Refusal.from_error(error).to_line())
            sys.exit(REFUSED)
        own_log.state = worker.state
        gc.freeze()
        gc.disable()  # a collection in the middle of a request would slow it down; `_collect` waits for a pause

        async def run() -> None:
            own_log.root_task = trio.lowlevel.current_root_task()
            await worker.run(supervisor)

        # While it serves, SIGTERM means finish; it must not kill a worker that is writing everything to disk already.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        trio.run(run)
    worker.close()
    # After a signal the engine's thread may still wait in the kernel; nothing is left for it to do.
    logging.shutdown()
    os._exit(UNMOUNTED)


if __name__ == "__main__":
    main()
