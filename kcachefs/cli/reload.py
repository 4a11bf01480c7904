"""`kcachefs reload`: replaces a mount's worker by newly installed code."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from kcachefs.errors import DaemonError, MountError

PATIENCE_SECONDS = 120.0


def reload(directory: Annotated[Path, typer.Argument(metavar="DIR", help="A kcachefs mount.")]) -> None:
    """Replace the worker behind DIR by one that runs the code installed now, while DIR stays in use."""
    from kcachefs.daemon import registry

    mountpoint = os.path.realpath(directory)
    before = registry.read(mountpoint)
    if before is None or not before.alive:
        raise MountError(f"{mountpoint}: is not one of your kcachefs mounts; see: kcachefs status")
    if before.engine != "direct":
        raise MountError(f"{mountpoint}: the {before.engine} engine cannot hand over; unmount and mount again")
    if not registry.is_alive(before.supervisor_pid):
        raise MountError(f"{mountpoint}: its supervisor is dead; unmount and mount again")
    os.kill(before.supervisor_pid, signal.SIGUSR2)
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        now = registry.read(mountpoint)
        if now is None:
            raise DaemonError(f"{mountpoint}: was unmounted in the meantime; see {before.log}")
        if now.reloads > before.reloads:
            print(f"{mountpoint}: process {now.worker_pid} (kcachefs {now.version}) took over from {before.worker_pid}")
            return
        if now.reloads_failed > before.reloads_failed:
            raise DaemonError(f"{mountpoint}: the new worker did not start, the old one keeps serving; see {now.log}")
        time.sleep(0.02)
    raise DaemonError(f"{mountpoint}: no new worker took over within {PATIENCE_SECONDS:.0f} s; see {before.log}")
