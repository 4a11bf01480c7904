"""`kcachefs reload`: replaces a mount's worker with one that runs newly installed code."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kcachefs.cli import target
from kcachefs.cli.printing import print_json
from kcachefs.errors import DaemonError, MountError
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.daemon.registry import MountState

PATIENCE_SECONDS = 120.0
UNWRITTEN_SECONDS = 2.0
"""How long we wait for the mount's state to name the new worker: a full runtime directory prevents that."""


def reload(
    directory: target.Directory = None,
    as_json: target.Json = False,
) -> None:
    """Replace the worker behind DIR with one that runs the code installed now, while DIR stays in use."""
    from kcachefs.mounts.finding import find

    mountpoint = os.path.realpath(directory or find(None))
    before, now = hand_over(mountpoint)
    if as_json:
        pids = {"worker_pid": now.worker_pid, "former_worker_pid": before.worker_pid}
        print_json({"mountpoint": mountpoint, **pids, "version": now.version})
    else:
        version = f" (kcachefs {now.version})" if now.version else ""
        print(f"{printable(mountpoint)}: process {now.worker_pid}{version} took over from {before.worker_pid}")


def hand_over(mountpoint: str) -> tuple[MountState, MountState]:
    """Have another worker take over; returns the mount's state before and after."""
    from kcachefs.daemon import registry, serving
    from kcachefs.mounts.finding import mount_at

    before = registry.read(mountpoint)
    if before is None or not before.alive:
        mount_at(Path(mountpoint))  # raises if the mount does not answer
        raise MountError(f"{mountpoint}: is not one of your kcachefs mounts; see: kcachefs status")
    if before.engine != "direct":
        raise MountError(f"{mountpoint}: the {before.engine} engine cannot hand over; unmount and mount again")
    if not before.supervised:
        raise MountError(f"{mountpoint}: its supervisor is dead; unmount and mount again")
    former = before.processes()[1]
    with serving.opened(lambda: before.processes()[:1]) as supervisor:
        if not supervisor:
            raise MountError(f"{mountpoint}: is served in another PID namespace; reload it there")
        serving.send(supervisor[0], signal.SIGUSR2)
        return before, _when_handed_over(before, former, supervisor[0])


def _when_handed_over(before: MountState, former: int, supervisor: int) -> MountState:
    """The mount's state once another worker serves; raises DaemonError if none takes over."""
    from kcachefs.daemon import registry, serving

    mountpoint, restarts = before.mountpoint, before.restarts
    until = unwritten_until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        is_over = serving.ended(supervisor, 0.02)  # asked first, so that the supervisor's last state counts
        now = registry.read(mountpoint)
        if now is None:
            raise DaemonError(f"{mountpoint}: was unmounted in the meantime; see {before.log}")
        if now.reloads > before.reloads:
            return now
        worker = now.processes()[1]
        if now.restarts > restarts:  # the old worker died: its replacement is not the new one
            former, restarts = worker, now.restarts
        if worker in (0, former):
            unwritten_until = time.monotonic() + UNWRITTEN_SECONDS
        elif time.monotonic() > unwritten_until:
            return msgspec.structs.replace(now, worker_pid=worker, version="")
        if now.reloads_failed > before.reloads_failed:
            why = f": {now.reload_refusal}" if now.reload_refusal else f"; see {now.log}"
            raise DaemonError(f"{mountpoint}: the new worker did not start, the old one keeps serving{why}")
        if is_over:
            why = now.failure or "its supervisor died before another worker took over; unmount and mount again"
            raise DaemonError(f"{mountpoint}: {why}")
    raise DaemonError(f"{mountpoint}: no new worker took over within {PATIENCE_SECONDS:.0f} s; see {before.log}")
