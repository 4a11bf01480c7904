"""Mounts for the tests: made with the kcachefs command, killed as a crash would, and always removed again."""

from __future__ import annotations

import itertools
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from kcachefs.daemon import registry
from kcachefs.mounts.ending import unmount
from tests import command_server
from tests.waiting import PATIENCE

KINDS = [
    pytest.param(kind, marks=() if kind == "plain" else pytest.mark.mount)
    for kind in os.environ.get("KCACHEFS_TEST_ROOTS", "plain,direct,pyfuse3").split(",")
]

of_a_mount_only = pytest.mark.parametrize(
    "place", [kind for kind in KINDS if kind.values != ("plain",)], indirect=True, scope="session"
)
"""For tests of what plain directories do not have."""


class Mount:
    """A store that one engine serves at a directory, for as long as the scope lasts."""

    def __init__(self, mountpoint: Path, store: Path, engine: str, *options: str, lifeline: int = -1) -> None:
        self.mountpoint = mountpoint
        self.store = store
        self.engine = engine
        self.options = options
        self._lifeline = lifeline

    def start(self) -> None:
        where = ("mount", str(self.mountpoint), "--store", str(self.store))
        # The command holds the lifeline too, so that a mount in the making is removed when the tests are killed.
        done = command_server.run(*where, "--engine", self.engine, *self.options, hold=self._lifeline)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(done.args)} ended with {done.returncode}: {done.stdout}{done.stderr}")

    def umount(self) -> None:
        """What `kcachefs umount` does, without a process: tests/cli has tests of the command."""
        with chdir("/"):
            unmount(self.mountpoint)

    def remount(self) -> None:
        self.umount()
        self.start()

    def sigkill(self) -> None:
        """Kill the daemon as the kernel's OOM killer would, and return once it is gone."""
        daemon = self.daemon()
        assert daemon, f"{self.mountpoint} is not among the mounts that `kcachefs status` knows"
        kill(*daemon)

    def kill(self) -> None:
        """Kill the daemon, then mount again over what it left behind."""
        self.sigkill()
        self.start()

    def revive(self) -> None:
        """Mount again if a test left the mount dead, so that the next test does not fail for it."""
        if not self.answers():
            self._detach()
            self.start()

    def __enter__(self) -> Self:
        self.mountpoint.mkdir(parents=True, exist_ok=True)
        try:
            self.start()
        except BaseException:
            self._detach()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if _is_mounted(self.mountpoint):
                self.umount()
        finally:
            self._detach()

    def _detach(self) -> None:
        """The last resort: detach the mount and kill the daemon."""
        if _is_mounted(self.mountpoint):
            daemon: list[int] = []
            with suppress(RuntimeError, ValueError):
                daemon = self.daemon()
            subprocess.run(["umount", "-l", str(self.mountpoint)], check=False, timeout=PATIENCE)
            kill(*daemon)

    def answers(self) -> bool:
        try:
            return _is_mounted(self.mountpoint) and os.statvfs(self.mountpoint).f_namemax > 0
        except OSError:
            return False

    def daemon(self) -> list[int]:
        """The supervisor, then the worker: killed in the other order, the supervisor would replace the worker first."""
        state = registry.read(str(self.mountpoint))  # what `kcachefs status` reads, without its start
        return [state.supervisor_pid, state.worker_pid] if state is not None else []


@dataclass
class Place:
    """Where tests work: a plain directory, or a mount. Only a mount can be remounted and killed."""

    folder: Path
    mount: Mount | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self) -> Path:
        """An empty folder that every user may write to."""
        if self.mount is not None:
            self.mount.revive()
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
        """Kill the daemon and mount again; `then` runs in between, while the mount is dead."""
        if self.mount is not None:
            self.mount.sigkill()
        then()
        if self.mount is not None:
            self.mount.start()


# Standard input only ever ends. A daemon has the folder among its arguments, leaves once its mount is gone, and must
# have left before the folder is removed, or it would make parts of it again. (pgrep reads four times as many files.)
CLEAN_UP = """
read -r _
umount -l "$1/mount" 2>/dev/null
waited=0
while [ $waited -lt 300 ] && grep -qsF -- "$1/" /proc/[0-9]*/cmdline; do sleep 0.1; waited=$((waited + 1)); done
rm -rf --one-file-system "$1"
"""


@contextmanager
def opened(kind: str) -> Iterator[Place]:
    """A place of this kind: "plain", or the name of an engine."""
    with _guarded_folder() as (folder, lifeline):
        if kind == "plain":
            yield Place(folder)
        else:
            with Mount(folder / "mount", folder / "store", kind, lifeline=lifeline) as mount:
                yield Place(mount.mountpoint, mount)


def delete_in_use(store: Path) -> None:
    """Delete a store under its mount, which may be making a file there at that moment."""
    while store.exists():
        shutil.rmtree(store, ignore_errors=True)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that every user can reach, removed at the end."""
    with _guarded_folder() as (folder, _):
        yield folder


@contextmanager
def _guarded_folder() -> Iterator[tuple[Path, int]]:
    """The folder and a descriptor: once no process holds the descriptor, however it ended, the folder is removed."""
    folder = Path(tempfile.mkdtemp(prefix="kcachefs-test-")).resolve()
    folder.chmod(0o755)
    watched, lifeline = os.pipe()
    guardian = subprocess.Popen(["sh", "-c", CLEAN_UP, "guardian", folder], stdin=watched, start_new_session=True)
    os.close(watched)
    try:
        yield folder, lifeline
    finally:
        os.close(lifeline)
        guardian.wait(PATIENCE)


def kill(*pids: int) -> None:
    """Send SIGKILL to each, in this order, and wait until all are gone."""
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
    """Ask the mount table, which answers even for a dead mount."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        return any(_unescape(line.split(" ")[4]) == str(directory) for line in table)


def _unescape(text: str) -> str:
    """The table writes spaces, line breaks and backslashes as three octal digits."""
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), text)
