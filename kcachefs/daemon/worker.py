"""The worker: opens the store and serves the mount. The engine has its own thread; trio runs all that is beside it.

It is started ahead of its time and waits to be told to begin (`conversation.py`).

Sealing and folding work in short turns and in other threads, so that the engine's thread, which needs the
interpreter for every request, never waits long for it.
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
from typing import Any

import msgspec
import trio

from kcachefs import __version__
from kcachefs.core import FsOptions
from kcachefs.core.administration import Administration
from kcachefs.core.policies import make_filesystem
from kcachefs.daemon import control, logs, memory, privileges, registry
from kcachefs.daemon.conversation import (
    ALIVE,
    BEAT_SECONDS,
    BEGIN,
    FIRST_BEAT_SECONDS,
    READY,
    REFUSED,
    REPLACED,
    UNMOUNTED,
    WARM,
    Refusal,
)
from kcachefs.daemon.registry import MountConfig
from kcachefs.engines import make_engine
from kcachefs.errors import KcachefsError, NoSpace
from kcachefs.store import Options, Store
from kcachefs.store.objects import DEFAULT_VOLUME_SIZE

log = logging.getLogger("kcachefs.daemon.worker")  # it runs as __main__

SEAL_TURN = 0.05
SEAL_PAUSE = 0.05
BUSY_REQUESTS = 20
"""Requests in one pause that mean someone is at work."""
QUIET_PAUSE = 5.0
FLUSH_PAUSE = 2.0
EVICT_PAUSE = 0.25
REAP_PAUSE = 30.0
ORPHANS_PAUSE = 5.0
COLLECT_PAUSE = 10.0
TRIM_PAUSE = 1.0


class Worker:
    """A store, its filesystem and the engine that serves it."""

    def __init__(self, config: MountConfig, device: int, intake: int, herald: socket.socket, *, resumed: bool) -> None:
        self.store = Store(config.store, Options(volume_size=volume_size(config)))
        self.fs = make_filesystem(
            self.store,
            FsOptions(limits=config.limits, sharing=config.sharing, uid=os.getuid(), gid=os.getgid(), resumed=resumed),
        )
        self.administration = Administration(self.fs)
        self._socket = registry.socket_path(config.mountpoint)
        self._hang_seconds = config.hang_seconds
        self.engine = make_engine(config.engine, self.fs, device, intake, herald, resumed=resumed, resend=config.resend)
        self.fs.evictor.requests = lambda: self.engine.requests

    async def run(self, supervisor: socket.socket) -> None:
        """Serve until the mount is gone or a signal says to finish."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_signals, nursery.cancel_scope)
            nursery.start_soon(self._seal)
            nursery.start_soon(self._collect)
            nursery.start_soon(self._every, QUIET_PAUSE, "sealing", self.fs.files.seal_quiet)
            nursery.start_soon(self._every, FLUSH_PAUSE, "writing down uses", self.fs.entries.flush)
            nursery.start_soon(self._every, EVICT_PAUSE, "eviction", self.fs.evictor.turn)
            nursery.start_soon(self._every, REAP_PAUSE, "reaping", self.fs.evictor.reap)
            nursery.start_soon(self._every, ORPHANS_PAUSE, "letting go of files", self.fs.nodes.let_go_of_orphans)
            nursery.start_soon(self._every, TRIM_PAUSE, "letting go of memory", self._trim)
            await nursery.start(control.serve, self._socket, self.administration)
            supervisor.sendall(b"%s %s\n" % (READY, __version__.encode()))
            nursery.start_soon(self._live, supervisor)
            await self.engine.run()
            nursery.cancel_scope.cancel()

    def state(self) -> dict[str, Any]:
        """What goes on, for the log. Takes no lock."""
        nodes = self.fs.nodes
        return {
            "requests": self.engine.statistics(),
            "files": self.fs.files.statistics(),
            "inodes": {"known_to_the_kernel": len(nodes.lookups), "open": len(nodes.handles)},
            "unlinked_and_in_use": len(nodes.orphans),
            "out_of_room": not self.fs.evictor.room.is_set(),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "resident_bytes": memory.resident_bytes(),
        }

    def close(self) -> None:
        """Put everything on disk."""
        log.info("served %s", self.engine.statistics())
        with contextlib.suppress(NoSpace):  # what cannot be folded now stays in the journal
            self.fs.settle()
        self.store.close()

    async def _watch_signals(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGUSR2) as signals:
            async for number in signals:
                if number == signal.SIGUSR2:
                    self._make_way()
                log.info("asked to finish")
                scope.cancel()

    def _make_way(self) -> None:
        """Leave at once, as if killed: the next worker finds everything acknowledged, and what is not comes again."""
        log.info("making way for the next worker; served %s", self.engine.statistics())
        with contextlib.suppress(Exception):
            self.fs.entries.flush()
        logging.shutdown()
        os._exit(REPLACED)

    async def _live(self, supervisor: socket.socket) -> None:
        """Give a sign of life every second, as long as the engine's thread is not lost in one request."""
        before, since = None, time.monotonic()
        await trio.sleep(min(FIRST_BEAT_SECONDS, self._hang_seconds / 4))
        with contextlib.suppress(OSError):  # without a supervisor, go on
            while True:
                at, now = self.engine.attention(), time.monotonic()
                if at is None or at is not before:
                    before, since = at, now
                if now - since < self._hang_seconds:
                    supervisor.sendall(ALIVE)
                await trio.sleep(min(BEAT_SECONDS, self._hang_seconds / 4))

    async def _seal(self) -> None:
        """Seal while requests pause, or when too much waits: both want the interpreter, and requests go first."""
        before = 0
        while True:
            before, came = self.engine.requests, self.engine.requests - before
            more = False
            if came <= BUSY_REQUESTS or self.fs.files.is_pressing():
                more = await trio.to_thread.run_sync(self._seal_turn)
            await trio.sleep(SEAL_PAUSE / 10 if more else SEAL_PAUSE)

    def _seal_turn(self) -> bool:
        until = time.monotonic() + SEAL_TURN
        try:
            # Without room the evictor seals, a little at a time: it takes room before it gives any.
            while self.fs.evictor.note_pressure() and self.fs.files.seal_next():
                if time.monotonic() > until:
                    return True
        except Exception as error:  # one bad file must not end the worker, and with its successor every one after it
            log.error("sealing failed: %s", error, exc_info=not isinstance(error, KcachefsError | OSError))
        return False

    def _trim(self) -> None:
        memory.trim(self.store.path.resolve() / "catalog" / "data.mdb")

    async def _collect(self) -> None:
        """Find cyclic garbage when nobody is at work; if that is never, at least the young of it."""
        before = 0
        while True:
            await trio.sleep(COLLECT_PAUSE)
            before, came = self.engine.requests, self.engine.requests - before
            gc.collect(2 if came <= BUSY_REQUESTS else 0)

    async def _every(self, pause: float, what: str, work: Callable[[], object]) -> None:
        while True:
            await trio.sleep(pause)
            try:
                await trio.to_thread.run_sync(work)
            except Exception as error:
                known = isinstance(error, KcachefsError | OSError)
                log.error("%s failed, and is tried again: %s", what, error, exc_info=not known)


def volume_size(config: MountConfig) -> int:
    """Volumes small enough that compacting one does not matter beside the quota, or the disk."""
    there = next(path for path in (Path(config.store), *Path(config.store).parents) if path.exists())
    disk = os.statvfs(there)
    room = min(config.limits.max_size, disk.f_blocks * disk.f_frsize)
    return max(256 << 10, min(DEFAULT_VOLUME_SIZE, room // 64))


def raise_descriptor_limit() -> None:
    """Spool files and volumes are held open by the thousand; the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))


def wait_to_begin(config: MountConfig, supervisor: socket.socket) -> bool:
    """Be warm until it is our turn; returns whether we take over from another. Leaves when the supervisor does."""
    with contextlib.suppress(ImportError):  # said when it is made
        importlib.import_module(f"kcachefs.engines.{config.engine}")
    said = b""
    with contextlib.suppress(OSError):
        supervisor.sendall(WARM + b"\n")
        said = supervisor.recv(64)
    if not said.startswith(BEGIN):
        sys.exit(UNMOUNTED)
    return said.endswith(b"1\n")


def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=MountConfig)
    device, intake, talk, herald = (int(number) for number in sys.argv[2:6])
    sys.argv[0] = "kcachefs"  # who has the store open, as another opener is told
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for the supervisor, which unmounts
    privileges.drop()
    own_log = logs.start(config.log, "worker", config.log_format, debug=config.debug)
    sys.setswitchinterval(0.0001)
    raise_descriptor_limit()
    with socket.socket(fileno=talk) as supervisor:
        resumed = wait_to_begin(config, supervisor)
        try:
            notifications = socket.socket(fileno=herald)
            worker = Worker(config, device, intake, notifications, resumed=resumed)
        except (KcachefsError, OSError) as error:
            supervisor.sendall(Refusal.of(error).to_line())
            sys.exit(REFUSED)
        own_log.state = worker.state
        gc.freeze()
        gc.disable()  # a collection in the middle of a request would be felt; `_collect` does it in a pause

        async def run() -> None:
            own_log.root_task = trio.lowlevel.current_root_task()
            await worker.run(supervisor)

        trio.run(run)
    worker.close()
    # The engine's thread may still be in the kernel when a signal ended us; nothing is left for it to do.
    logging.shutdown()
    os._exit(UNMOUNTED)


if __name__ == "__main__":
    main()
