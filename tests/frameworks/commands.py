"""Runs the command as people do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import command_server

PATIENCE = 120.0
KCACHEFS = [sys.executable, "-m", "kcachefs"]


def kcachefs(
    *arguments: str | Path, check: bool = True, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it to its end; an unexpected exit code fails with its output."""
    done = command_server.run(*arguments, env={**os.environ, **(env or {})})
    if check and done.returncode != 0:
        raise AssertionError(f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done


def mounted_under(folder: Path) -> list[str]:
    """The kernel's list of what is mounted below a folder."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        return [line for line in table if str(folder) in line]
