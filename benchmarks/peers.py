"""The filesystems that people could use instead, with their default settings, each over a directory of its own.

Daemons run in the foreground as our children, so that their processes are known and end with us.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from benchmarks.subjects import ROOT, Kcachefs, Subject, drop_caches

HOUR = "3600"
"""How long each may cache names and attributes: as long as kcachefs does."""
PATIENCE = 30.0


class Absent(Exception):
    """Why a peer cannot take part."""


class Tmpfs(Subject):
    """Files in memory, which no disk can beat."""

    def open(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        _call("mount", "-t", "tmpfs", "-o", "size=4g", "none", str(self.root))

    def close(self) -> None:
        _unmount(self.root)

    def forget(self) -> None:
        drop_caches()  # unmounting would lose the files


class Peer(Subject):
    """A FUSE filesystem with a program of its own."""

    package: ClassVar[str] = ""
    _process: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        return self.base / "mount"

    @property
    def under(self) -> Path:
        return self.base / "under"

    def command(self) -> list[str]:
        raise NotImplementedError

    def prepare(self) -> None: ...

    def open(self) -> None:
        if self.package and not installed(self.package):
            raise Absent(f"{self.package} is not installed and could not be")
        if not self.under.exists():
            self.under.mkdir(parents=True)
            self.prepare()
        self.root.mkdir(exist_ok=True)
        with open(self.base / "log", "ab") as log:
            self._process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT)
        deadline = time.monotonic() + PATIENCE
        while not os.path.ismount(self.root):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                self._process.wait()
                with suppress(OSError):  # it may have mounted, and died then
                    _unmount(self.root)
                lines = (self.base / "log").read_text(errors="replace").strip().splitlines()
                raise Absent(f"{self.package} did not mount: {lines[-1] if lines else 'no output'}")
            time.sleep(0.01)

    def close(self) -> None:
        _unmount(self.root)
        if self._process is not None:
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def pids(self) -> list[int]:
        return [self._process.pid] if self._process is not None else []


class Bindfs(Peer):
    package = "bindfs"

    def command(self) -> list[str]:
        return ["bindfs", "-f", "-o", f"attr_timeout={HOUR},entry_timeout={HOUR}", str(self.under), str(self.root)]


class Mergerfs(Peer):
    package = "mergerfs"

    def command(self) -> list[str]:
        options = f"cache.attr={HOUR},cache.entry={HOUR},cache.files=auto-full"
        return ["mergerfs", "-f", "-o", options, str(self.under), str(self.root)]


class Rclone(Peer):
    package = "rclone"

    def command(self) -> list[str]:
        cache = ["--vfs-cache-mode", "full", "--cache-dir", str(self.base / "cache")]
        hour = ["--attr-timeout", f"{HOUR}s", "--dir-cache-time", f"{HOUR}s"]
        return ["rclone", "mount", "--config", "", *cache, *hour, str(self.under), str(self.root)]


class Gocryptfs(Peer):
    package = "gocryptfs"

    def prepare(self) -> None:
        (self.base / "key").write_text("a password for a benchmark\n")
        _call("gocryptfs", "-q", "-init", "-scryptn", "10", "-passfile", str(self.base / "key"), str(self.under))

    def command(self) -> list[str]:
        return ["gocryptfs", "-q", "-fg", "-passfile", str(self.base / "key"), str(self.under), str(self.root)]


class MemoryFs(Peer):
    """The least that one thread of Python takes. It loses its files when it is unmounted."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.memory_fs", str(self.root)]

    def forget(self) -> None:
        drop_caches()


KINDS: dict[str, type[Subject]] = {
    "ext4": Subject,
    "tmpfs": Tmpfs,
    "bindfs": Bindfs,
    "mergerfs": Mergerfs,
    "rclone": Rclone,
    "gocryptfs": Gocryptfs,
    "memory": MemoryFs,
    "direct": Kcachefs,
    "pyfuse3": Kcachefs,
}


@contextmanager
def opened(names: list[str], base: Path, absent: dict[str, str] | None = None) -> Iterator[dict[str, Subject]]:
    """The available filesystems, mounted below `base`; `absent` gets the reason for each of the others."""
    with ExitStack() as stack:
        found: dict[str, Subject] = {}
        for name in names:
            subject = KINDS[name](name, base / name)
            try:
                subject.open()
            except Absent as error:
                print(f"{name} takes no part: {error}", file=sys.stderr)
                if absent is not None:
                    absent[name] = str(error)
                continue
            stack.callback(subject.close)
            subject.folder.mkdir(exist_ok=True)
            found[name] = subject
        yield found


def installed(package: str, program: str | None = None) -> bool:
    """Whether the program is there, after installing the distribution's package if necessary and possible."""
    program = program or package
    if shutil.which(program) is None:
        script = f'. "{ROOT}/scripts/setup.sh"; need_packages {package}'
        subprocess.run(["bash", "-c", script], check=False, capture_output=True)
    return shutil.which(program) is not None


def _call(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Absent(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise Absent(f"{command[0]}: {(done.stderr or done.stdout).strip()}")


def _unmount(folder: Path) -> None:
    """Unmount, lazily if something is still open there."""
    programs = [["umount"], ["umount", "-l"]] if os.geteuid() == 0 else [["fusermount3", "-u"], ["fusermount3", "-uz"]]
    for program in programs:
        if subprocess.run([*program, str(folder)], check=False, capture_output=True).returncode == 0:
            return
    raise OSError(f"{folder} could not be unmounted")
