"""A mount, programs that run with their caches in it, and what it was asked to do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kcachefs.frameworks import environment, headers, make_folders
from kcachefs.session import account
from tests.engines.mounting import Mount, temporary_folder
from tests.frameworks.commands import kcachefs
from tests.frameworks.programs import run_program

CHANGES = ("write", "create", "mknod", "mkdir", "rename", "rename2", "unlink", "rmdir", "setattr", "link", "symlink")


class World:
    """One mount and the programs that use it."""

    def __init__(self, mount: Mount, programs: Path) -> None:
        self.mount = mount
        self.environment = {
            **environment(mount.mountpoint),
            "KCACHEFS_PROGRAMS": str(programs),
            # Without this Inductor compiles programs to learn what the processor can do, and starts Python to load
            # them. `kcachefs warm` does so once in test_inductor.py.
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }

    def run(self, program: str, *arguments: str, afresh: bool = False) -> dict[str, Any]:
        return run_program(program, self.environment, *arguments, afresh=afresh)

    def folder(self, namespace: str) -> Path:
        return self.mount.mountpoint / namespace

    def evict(self, *patterns: str) -> None:
        account.read(self.mount.mountpoint)  # waits until what was just written is sealed, which makes it an entry
        kcachefs("evict", "--mount", self.mount.mountpoint, *patterns)

    def changes(self) -> dict[str, int]:
        """How often the engine was asked for each kind of change."""
        told = json.loads((self.mount.mountpoint / ".kcachefs" / "stats.json").read_bytes())["requests"]
        return {name: told.get(name, 0) for name in CHANGES}


@contextmanager
def world(engine: str) -> Iterator[World]:
    with temporary_folder() as base, Mount(base / "mount", base / "store", engine) as mount:
        make_folders(mount.mountpoint)
        headers.link(mount.mountpoint)
        (base / "programs").mkdir()
        yield World(mount, base / "programs")


def files_below(folder: Path) -> set[str]:
    return {
        os.path.relpath(os.path.join(parent, name), folder) for parent, _, names in os.walk(folder) for name in names
    }
