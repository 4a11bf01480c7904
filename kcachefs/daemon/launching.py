"""Starts a supervisor in the background."""

from __future__ import annotations

import os
import subprocess

import msgspec

from kcachefs import config as settings
from kcachefs import own_python
from kcachefs.daemon.registry import MountConfig
from kcachefs.daemon.worker_protocol import READY, Refusal
from kcachefs.errors import DaemonError


def launch(config: MountConfig) -> None:
    """Start a supervisor in the background and return once its mount answers."""
    read_end, write_end = os.pipe()
    with open(config.log, "ab") as file:
        process = subprocess.Popen(
            own_python.command("kcachefs.daemon.supervisor", msgspec.json.encode(config).decode(), str(write_end)),
            pass_fds=[write_end],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd=own_python.DIRECTORY,
            env=own_python.environment(settings.for_daemon()),
        )
    os.close(write_end)
    try:
        with open(read_end, "rb") as pipe:
            line = pipe.readline()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if line.rstrip() != READY:
        silent = Refusal(4, f"{config.mountpoint}: the daemon did not start; see {config.log}")
        refusal = Refusal.from_line(line, default=silent)
        process.wait()
        raise DaemonError(refusal.message, refusal.exit_code)
    os.statvfs(config.mountpoint)
    process.returncode = 0  # keeps Popen from warning about a child that is meant to outlive us
