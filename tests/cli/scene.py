"""The place where a test of the commands runs: its own folders for mounts, stores, logs and the list of mounts.

At the end everything that is mounted there is unmounted, and every process that serves it is killed; they are found by
the mount table and by the environment they run in.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kcachefs
from kcachefs.engines.mounting import mounts
from kcachefs.store import Options, Store
from tests import command_server
from tests.engines.mounting import temporary_folder
from tests.waiting import PATIENCE

PACKAGE = Path(kcachefs.__file__).parent
KCACHEFS = (sys.executable, "-m", "kcachefs")
HELPER = (sys.executable, "-m", "kcachefs.cli.mount_helper")


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    def refused_with(self, code: int, *words: str) -> None:
        """Check that it ended with that code and one line that contains every word."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.count("\n") == 1, self
        assert self.err.endswith("\n"), self
        for word in words:
            assert word in self.err, self


class Scene:
    """A folder and the environment that keeps everything inside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runtime = folder / "runtime"
        self.mountpoint = folder / "mount"
        self.store = folder / "store"
        self.environment = {
            **os.environ,
            "KCACHEFS_RUNTIME_DIR": str(self.runtime),
            "KCACHEFS_LOG_DIR": str(folder / "log"),
            "KCACHEFS_STORE": str(self.store),
            "KCACHEFS_SYSTEM_CONFIG": str(folder / "etc" / "config.toml"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": f"{PACKAGE.parent}:{os.environ.get('PYTHONPATH', '')}",
        }
        self.environment.pop("NOTIFY_SOCKET", None)

    def in_every_python(self, code: str) -> None:
        """Have every Python that a command starts from here on run this code first."""
        (self.folder / "sitecustomize.py").write_text(code)
        self.environment["PYTHONPATH"] = f"{self.folder}:{self.environment['PYTHONPATH']}"

    # --- commands -----------------------------------------------------------------------------------------------------

    def run(self, *arguments: str | bytes | Path, command: tuple[str, ...] = KCACHEFS, **options: Any) -> Outcome:
        """Run a command to its end; with nothing special about it, without starting Python for it."""
        options.setdefault("cwd", self.folder)
        if command == KCACHEFS and options.keys() == {"cwd"}:
            ended = command_server.run(*arguments, env=self.environment, cwd=options["cwd"])
            return Outcome(ended.returncode, ended.stdout, ended.stderr)
        options.setdefault("env", self.environment)
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            stdin=subprocess.DEVNULL,
            **options,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def must(self, *arguments: str | bytes | Path, **options: Any) -> str:
        """Run a command that must succeed and print nothing to standard error."""
        outcome = self.run(*arguments, **options)
        assert (outcome.code, outcome.err) == (0, ""), outcome
        return outcome.out

    def mount(self, *options: str | Path) -> Path:
        """Mount at the usual place and return a folder in it to write to."""
        self.must("mount", self.mountpoint, *options)
        return self.mountpoint / "triton"

    def umount(self, *options: str | Path) -> None:
        self.must("umount", self.mountpoint, *options)

    def settle(self) -> None:
        """Return once everything written so far is sealed, and so is an entry."""
        self.must("stats", "--json")

    def bind(self, name: str) -> Path:
        """Bind the mount to another place, where it stays after an unmount."""
        place = self.folder / name
        place.mkdir()
        subprocess.run(["mount", "--bind", "--make-private", self.mountpoint, place], check=True)
        return place

    def status(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.must("status", "--json"))["mounts"]
        return found

    # --- what there is ------------------------------------------------------------------------------------------------

    def mounted(self) -> list[str]:
        """The mountpoints in the scene."""
        return [mount.mountpoint for mount in mounts() if mount.mountpoint.startswith(f"{self.folder}/")]

    def daemons(self) -> list[int]:
        """The processes that serve a mount of the scene."""
        mark = f"\0KCACHEFS_RUNTIME_DIR={self.runtime}\0".encode()
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if b"kcachefs" in told(pid, "cmdline") and mark in b"\0%b\0" % told(pid, "environ"):
                    found.append(int(pid))
        return found

    def is_over(self) -> bool:
        return not self.mounted() and not self.daemons()

    def files(self) -> dict[str, bytes]:
        """The contents of everything but logs and the list of mounts, by path; directories end in a slash."""
        found = {}
        for path in self.folder.rglob("*"):
            if path.parts[len(self.folder.parts)] not in ("log", "runtime"):
                found[f"{path}/" if path.is_dir() else str(path)] = path.read_bytes() if path.is_file() else b""
        return found

    def open_store(self) -> Store:
        """Open the store; fails at once if somebody still has it open."""
        return Store(self.store, Options(create=False, background=False))

    # --- the end ------------------------------------------------------------------------------------------------------

    def take_away(self) -> None:
        for mountpoint in reversed(self.mounted()):
            subprocess.run(["umount", "-l", mountpoint], check=False, timeout=PATIENCE)
        for pid in self.daemons():
            kill_and_wait(pid)


@contextmanager
def scene() -> Iterator[Scene]:
    with temporary_folder() as folder:
        place = Scene(folder)
        try:
            yield place
        finally:
            place.take_away()


def told(pid: str, name: str) -> bytes:
    """A file about a process. There are hundreds to look through at the end of each test: no object is made for one."""
    descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    try:
        found = b""
        while more := os.read(descriptor, 1 << 17):
            found += more
        return found
    finally:
        os.close(descriptor)


def runs(pid: int) -> bool:
    """Whether a process still runs. A zombie, which its parent has yet to wait for, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"
    except (FileNotFoundError, ProcessLookupError):  # the latter when it goes between opening and reading
        return False


def kill_and_wait(pid: int) -> None:
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            assert select.select([handle], [], [], PATIENCE)[0], f"process {pid} outlives SIGKILL"
        finally:
            os.close(handle)


@contextmanager
def holding(*command: str, user: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that prints "holding" once it holds something, and holds it until the scope ends."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=user, group=user) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"holding\n"
            yield process
        finally:
            process.kill()
