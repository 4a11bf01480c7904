"""Mounts for the tests: made by the command that people use, killed as a crash would, and always taken away again."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

PATIENCE = 60.0

KINDS = [
    pytest.param(kind, marks=() if kind == "plain" else pytest.mark.mount)
    for kind in os.environ.get("KCACHEFS_TEST_ROOTS", "plain,direct,pyfuse3").split(",")
]

of_a_mount_only = pytest.mark.parametrize(
    "place", [kind for kind in KINDS if kind.values != ("plain",)], indirect=True, scope="session"
)
"""For tests of what a plain directory does not have."""


class Mount:
    """One store mounted at one directory with one engine, for as long as the scope lasts."""

    def __init__(self, mountpoint: Path, store: Path, engine: str, *options: str) -> None:
        self.mountpoint = mountpoint
        self.store = store
        self.engine = engine
        self.options = options
        self._daemon: list[int] = []
        self._guardian: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        where = ("mount", str(self.mountpoint), "--store", str(self.store))
        _kcachefs(*where, "--engine", self.engine, *self.options)
        self._daemon = [self._status()[name] for name in ("supervisor_pid", "worker_pid")]

    def umount(self) -> None:
        _kcachefs("umount", str(self.mountpoint))
        self._daemon = []

    def remount(self) -> None:
        self.umount()
        self.start()

    def sigkill(self) -> None:
        """End the daemon as the kernel's memory killer would, and return when it is gone."""
        status = self._status()
        # The supervisor first: it would put a new worker in the place of a dead one.
        _kill(status["supervisor_pid"], status["worker_pid"])
        self._daemon = []

    def kill(self) -> None:
        """SIGKILL, then mount again over what the crash left."""
        self.sigkill()
        self.start()

    def answers(self) -> bool:
        try:
            return os.path.ismount(self.mountpoint) and bool(os.listdir(self.mountpoint))
        except OSError:
            return False

    def __enter__(self) -> Self:
        self.mountpoint.mkdir(parents=True, exist_ok=True)
        # A test run that is itself killed cannot unmount: this reads until its writing end is gone, and then does.
        self._guardian = subprocess.Popen(
            ["sh", "-c", 'read -r _; umount -l "$1" 2>/dev/null', "guardian", str(self.mountpoint)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self.start()
        except BaseException:
            self._take_away()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if _is_mounted(self.mountpoint):
                self.umount()
        finally:
            self._take_away()

    def _take_away(self) -> None:
        if _is_mounted(self.mountpoint):
            subprocess.run(["umount", "-l", str(self.mountpoint)], check=False, timeout=PATIENCE)
            _kill(*self._daemon)
        if self._guardian is not None:
            assert self._guardian.stdin is not None
            self._guardian.stdin.close()
            self._guardian.wait(PATIENCE)

    def _status(self) -> dict[str, int]:
        mounts = json.loads(_kcachefs("status", "--json"))["mounts"]
        [mine] = [mount for mount in mounts if mount["mountpoint"] == str(self.mountpoint)]
        return {name: mine[name] for name in ("supervisor_pid", "worker_pid")}


@dataclass
class Place:
    """Where tests work: a plain directory, or a mount, which alone can be remounted and killed."""

    folder: Path
    mount: Mount | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self) -> Path:
        """An empty folder that every user may write to."""
        if self.mount is not None and not self.mount.answers():
            self.mount.start()
        work = self.folder / "work"
        if not work.exists():
            work.mkdir()
            work.chmod(0o777)
        fresh = work / f"{next(self._numbers)}"
        fresh.mkdir()
        fresh.chmod(0o777)
        return fresh

    def remount(self) -> None:
        if self.mount is not None:
            self.mount.remount()

    def kill(self, then: Callable[[], None] = lambda: None) -> None:
        """SIGKILL and mount again; `then` is what is done to a dead mount before it comes back."""
        if self.mount is not None:
            self.mount.sigkill()
        then()
        if self.mount is not None:
            self.mount.start()


@contextmanager
def opened(kind: str) -> Iterator[Place]:
    """A place of this kind: "plain", or the name of an engine."""
    with temporary_folder() as base:
        if kind == "plain":
            yield Place(base)
        else:
            with Mount(base / "mount", base / "store", kind) as mount:
                yield Place(mount.mountpoint, mount)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that every user can reach, gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="kcachefs-test-")).resolve()
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        # A mount that would not go must not have its files deleted through it.
        if not any(_is_mounted(child) for child in folder.iterdir()):
            shutil.rmtree(folder)


def _kcachefs(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "kcachefs", *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"kcachefs {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def _kill(*pids: int) -> None:
    """SIGKILL each, in this order, and wait until all are gone."""
    descriptors = []
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                descriptors.append(os.pidfd_open(pid))
        for descriptor in descriptors:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for descriptor in descriptors:
            if not select.select([descriptor], [], [], PATIENCE)[0]:
                raise TimeoutError(f"one of the processes {pids} outlives SIGKILL")
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _is_mounted(directory: Path) -> bool:
    """Asks the mount table, which answers even where a dead mount does not."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        return any(line.split(" ")[4].replace("\\040", " ") == str(directory) for line in table)
