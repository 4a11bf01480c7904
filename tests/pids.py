"""A limit of processes for a single process and its threads, as a container's: a cgroup of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import until

_ROOT = Path("/sys/fs/cgroup")


class Limit:
    """How many threads a process may have, and those that it starts from now on together with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def count(self) -> int:
        return int((self._folder / "pids.current").read_text())

    def set(self, count: int) -> None:
        (self._folder / "pids.max").write_text(str(count))

    def lift(self) -> None:
        (self._folder / "pids.max").write_text("max")


@contextmanager
def limited(pid: int) -> Iterator[Limit]:
    """No limit yet. Whatever it holds at the end goes back to where the process was."""
    parent = _ROOT / "pids" if (_ROOT / "pids").is_dir() else _ROOT
    folder = parent / f"kcachefs-test-{os.getpid()}-{pid}"
    try:
        if parent == _ROOT:
            (_ROOT / "cgroup.subtree_control").write_text("+pids")
        folder.mkdir()
        (folder / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        pytest.skip(f"there are no cgroups to limit processes with here: {error}")
    try:
        yield Limit(folder)
    finally:
        (folder / "pids.max").write_text("max")

        def is_removed() -> bool:
            for left in (folder / "cgroup.procs").read_text().split():
                try:
                    (parent / "cgroup.procs").write_text(left)
                except ProcessLookupError:
                    continue
            try:
                folder.rmdir()
            except OSError:  # a process is ending
                return False
            return True

        until(is_removed)
