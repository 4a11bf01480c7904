"""The worker: opens the store and serves the mount. The engine has its own thread; trio runs all that is beside it.

Sealing and folding work in short turns and in other threads, so that the engine's thread, which needs the
interpreter for every request, never waits long for it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from kcachefs.core import FsOptions
from kcachefs.core.administration import Administration
from kcachefs.core.policies import make_filesystem
from kcachefs.daemon import control, memory, privileges, registry
from kcachefs.daemon.registry import MountConfig
from kcachefs.daemon.supervisor import READY, REFUSED, UNMOUNTED, Refusal
from kcachefs.engines import make_engine
from kcachefs.errors import KcachefsError, NoSpace
from kcachefs.store import Options, Store
from kcachefs.store.objects import DEFAULT_VOLUME_SIZE

log = logging.getLogger(__name__)

SEAL_TURN = 0.05
SEAL_PAUSE = 0.05
BUSY_REQUESTS = 20
"""Requests in one pause that mean someone is at work."""
QUIET_PAUSE = 5.0
FLUSH_PAUSE = 2.0
EVICT_PAUSE = 0.25
REAP_PAUSE = 30.0
COLLECT_PAUSE = 10.0
TRIM_PAUSE = 1.0


class Worker:
    """A store, its filesystem and the engine that serves it."""

    def __init__(self, config: MountConfig, device: int, *, resend: bool) -> None:
        self.store = Store(config.store, Options(volume_size=volume_size(config)))
        self.fs = make_filesystem(
            self.store,
            FsOptions(limits=config.limits, sharing=config.sharing, uid=os.getuid(), gid=os.getgid(), resumed=resend),
        )
        self.administration = Administration(self.fs)
        self._socket = registry.socket_path(config.mountpoint)
        self.engine = make_engine(config.engine, self.fs, device, resend=resend)

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until the mount is gone or a signal says to finish."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_signals, nursery.cancel_scope)
            nursery.start_soon(self._seal)
            nursery.start_soon(self._collect)
            nursery.start_soon(self._every, QUIET_PAUSE, "sealing", self.fs.files.seal_quiet)
            nursery.start_soon(self._every, FLUSH_PAUSE, "writing down uses", self.fs.entries.flush)
            nursery.start_soon(self._every, EVICT_PAUSE, "eviction", self.fs.evictor.turn)
            nursery.start_soon(self._every, REAP_PAUSE, "reaping", self.fs.evictor.reap)
            nursery.start_soon(self._every, TRIM_PAUSE, "letting go of memory", self._trim)
            await nursery.start(control.serve, self._socket, self.administration)
            ready()
            await self.engine.run()
            nursery.cancel_scope.cancel()

    def close(self) -> None:
        """Put everything on disk."""
        log.info("served %s", self.engine.statistics())
        with contextlib.suppress(NoSpace):  # what cannot be folded now stays in the journal
            self.fs.settle()
        self.store.close()

    async def _watch_signals(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                log.info("asked to finish")
                scope.cancel()

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
            while self.fs.files.seal_next():
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


def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=MountConfig)
    device, ready_fd, resend = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1"
    sys.argv[0] = "kcachefs"  # who has the store open, as another opener is told
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal's signals are for the supervisor, which unmounts
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(
        level=logging.DEBUG if config.debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    sys.setswitchinterval(0.0005)
    raise_descriptor_limit()
    privileges.drop()
    with open(ready_fd, "wb") as pipe:
        try:
            worker = Worker(config, device, resend=resend)
        except (KcachefsError, OSError) as error:
            pipe.write(Refusal.of(error).to_line())
            sys.exit(REFUSED)
        gc.freeze()
        gc.disable()  # a collection in the middle of a request would be felt; `_collect` does it in a pause

        def ready() -> None:
            pipe.write(READY)
            pipe.close()

        trio.run(worker.run, ready)
    worker.close()
    # The engine's thread may still be in the kernel when a signal ended us; nothing is left for it to do.
    logging.shutdown()
    os._exit(UNMOUNTED)


if __name__ == "__main__":
    main()
