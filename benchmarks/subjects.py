"""What is measured side by side: a plain directory, bindfs over one, and a mount with each engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOUR = "attr_timeout=3600,entry_timeout=3600"
"""bindfs remembers names and attributes as long as we do; all else is as it comes."""


@dataclass
class Subject:
    """One of them: `folder` is where files are made; `close` and `open` unmount and mount it again."""

    name: str
    base: Path

    @property
    def folder(self) -> Path:
        return self.base / "plain"

    def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def close(self) -> None: ...


class Bindfs(Subject):
    @property
    def folder(self) -> Path:
        return self.base / "mount"

    def open(self) -> None:
        for path in (self.base / "under", self.folder):
            path.mkdir(parents=True, exist_ok=True)
        subprocess.run(["bindfs", "-o", HOUR, self.base / "under", self.folder], check=True)

    def close(self) -> None:
        subprocess.run(["umount", self.folder], check=True)


class Kcachefs(Subject):
    @property
    def mountpoint(self) -> Path:
        return self.base / "mount"

    @property
    def folder(self) -> Path:
        return self.mountpoint / "triton"

    def open(self) -> None:
        self.base.mkdir(parents=True, exist_ok=True)
        kcachefs(
            "mount", self.mountpoint, "--store", self.base / "store", "--engine", self.name, "--max-size", "100GiB"
        )

    def close(self) -> None:
        kcachefs("umount", self.mountpoint)

    def worker(self) -> int:
        mounts = json.loads(kcachefs("status", "--json"))["mounts"]
        return next(int(mount["worker_pid"]) for mount in mounts if mount["mountpoint"] == str(self.mountpoint))


def kcachefs(*arguments: str | Path) -> str:
    """Run the command of this checkout."""
    path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "kcachefs", *arguments]
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ).stdout


@contextmanager
def opened(names: list[str], directory: Path | None) -> Iterator[dict[str, Subject]]:
    """The subjects that there are, mounted; gone with all they hold at the end."""
    with workplace(directory) as base, ExitStack() as stack:
        found: dict[str, Subject] = {}
        for name in names:
            kind = {"ext4": Subject, "bindfs": Bindfs}.get(name, Kcachefs)
            if kind is Bindfs and not has_bindfs():
                continue
            subject = found[name] = kind(name, base / name)
            subject.open()
            stack.callback(subject.close)
        yield found


@contextmanager
def workplace(directory: Path | None) -> Iterator[Path]:
    """A folder of our own, with the list of mounts and the logs in it too."""
    base = Path(tempfile.mkdtemp(prefix="kcachefs-bench-", dir=directory)).resolve()
    os.environ["KCACHEFS_RUNTIME_DIR"] = str(base / "runtime")
    os.environ["KCACHEFS_LOG_DIR"] = str(base / "log")
    try:
        yield base
    finally:
        shutil.rmtree(base)


def has_bindfs() -> bool:
    """Whether it is there; installed from the distribution if that is possible."""
    if shutil.which("bindfs") is None:
        subprocess.run(
            ["bash", "-c", f'. "{ROOT}/scripts/setup.sh"; need_packages bindfs'], check=False, capture_output=True
        )
    return shutil.which("bindfs") is not None


def drop_caches() -> bool:
    """Have the kernel forget what it knows of files. False where that is not ours to ask for."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True
