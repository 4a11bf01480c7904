"""Waiting for the filesystem's clock, which may stand still for a few milliseconds."""

from __future__ import annotations

import os
from pathlib import Path


def wait_for_a_tick(root: Path) -> None:
    """Return when a change made now gets a later time than any made before; leaves no trace in `root`."""
    probe = root.parent / f"probe-of-{os.geteuid()}"
    probe.touch()
    begun = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns <= begun:
        probe.chmod(0o600)
