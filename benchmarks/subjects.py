"""What is measured: a plain directory and our own mounts. benchmarks/peers.py has the other filesystems."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcachefs.daemon import control, registry

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Subject:
    """A filesystem: files are made in `folder`; `close` and `open` unmount and mount it."""

    name: str
    base: Path

    @property
    def root(self) -> Path:
        """The folder that holds the frameworks' folders; in a kcachefs mount they exist from the start."""
        return self.base / "plain"

    @property
    def folder(self) -> Path:
        """A framework's folder, for every subject alike, because each folder on a path costs time."""
        return self.root / "triton"

    def open(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)

    def close(self) -> None: ...

    def forget(self) -> None:
        """Remount, and make the kernel drop what it has cached."""
        self.close()
        drop_caches()
        self.open()

    def pids(self) -> list[int]:
        """The processes that serve it."""
        return []


@dataclass
class Kcachefs(Subject):
    """A kcachefs mount, named after its engine."""

    options: tuple[str, ...] = ("--max-size", "100GiB")

    @property
    def root(self) -> Path:
        return self.mountpoint

    @property
    def mountpoint(self) -> Path:
        return self.base / "mount"

    def open(self) -> None:
        self.base.mkdir(parents=True, exist_ok=True)
        kcachefs("mount", self.mountpoint, "--store", self.base / "store", "--engine", self.name, *self.options)

    def close(self) -> None:
        kcachefs("umount", self.mountpoint)

    def stats(self) -> dict[str, Any]:
        """Its statistics, from the control socket."""
        statistics: dict[str, Any] = json.loads(control.ask(registry.socket_path(str(self.mountpoint)), "stats", {}))
        return statistics

    def worker(self) -> int:
        return self.pids()[1]

    def pids(self) -> list[int]:
        mounts = json.loads(kcachefs("status", "--json"))["mounts"]
        mine = next(mount for mount in mounts if mount["mountpoint"] == str(self.mountpoint))
        return [int(mine["supervisor_pid"]), int(mine["worker_pid"])]


def kcachefs(*arguments: str | Path) -> str:
    """Run this checkout's command and return its output."""
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "kcachefs", *arguments]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ).stdout


@contextmanager
def workplace(directory: Path | None, prefix: str = "kcachefs-bench-") -> Iterator[Path]:
    """A temporary folder, which also holds the logs, and a list of mounts of our own."""
    base = Path(tempfile.mkdtemp(prefix=prefix, dir=directory)).resolve()
    # In the system's temporary directory, because a socket's path has room for about a hundred characters.
    runtime = tempfile.mkdtemp(prefix="kcachefs-bench-")
    os.environ["KCACHEFS_RUNTIME_DIR"] = runtime
    os.environ["KCACHEFS_LOG_DIR"] = str(base / "log")
    try:
        yield base
    finally:
        shutil.rmtree(base)
        shutil.rmtree(runtime)


def empty(root: Path) -> None:
    """Empty the frameworks' folders with `rm -r`."""
    folders = [folder for folder in root.iterdir() if not folder.name.startswith(".")]
    for attempt in range(5):
        found = [str(path) for folder in folders for path in folder.iterdir()]
        # rclone refuses to remove a folder while it is still writing its files back.
        if not found or subprocess.run(["rm", "-r", *found], check=attempt == 4, capture_output=True).returncode == 0:
            return


def drop_caches() -> bool:
    """Make the kernel drop its caches; False if we may not."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True
