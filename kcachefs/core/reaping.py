"""Reaping: removes what dead writers left under temporary names. Run by the daemon in a thread, now and then."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from kcachefs.core.files import Files
from kcachefs.core.nodes import Nodes
from kcachefs.core.probing import Probed, Prober
from kcachefs.core.removal import Remover
from kcachefs.core.temporaries import Temporaries
from kcachefs.core.tree import Tree
from kcachefs.core.walk import Name, Walk
from kcachefs.errors import FsError

TEMPORARY_SECONDS = 60.0
TEMPORARY_UNKNOWN_SECONDS = 3600.0
"""The least age at which a temporary name is reaped: if its writer is dead, and if its writer cannot be seen here."""


class Reaper:
    """Finds and removes abandoned temporary files and folders."""

    def __init__(
        self,
        nodes: Nodes,
        tree: Tree,
        walk: Walk,
        files: Files,
        temporaries: Temporaries,
        remover: Remover,
        prober: Prober,
        name_gone: Callable[[int, bytes], None],
    ) -> None:
        self._nodes = nodes
        self._tree = tree
        self._walk = walk
        self._files = files
        self._temporaries = temporaries
        self._remover = remover
        self._prober = prober
        self._name_gone = name_gone
        self._ahead: dict[int, int] = {}
        """Inodes that seem to begin in the future, because the clock was set back, and when that was first noticed."""
        self.seconds = TEMPORARY_SECONDS
        self.unknown_seconds = TEMPORARY_UNKNOWN_SECONDS

    def reap(self) -> int:
        """Remove abandoned files and folders; returns how many names went."""
        reaped = 0
        for ino, names in self._walk.names_of(self._without_writer()).items():
            if not self._is_abandoned(ino, names):
                continue
            for parent, name in names:
                if self._drop(ino, parent, name):
                    self._name_gone(parent, name)
                    reaped += 1
        return reaped

    def _without_writer(self) -> list[int]:
        """Inodes that are old enough and whose writer is gone."""
        found, ahead = [], self._ahead
        self._ahead = {}
        for ino in list(self._temporaries.inodes):
            since, pid = self._temporaries.writer_of(ino) or (time.time_ns(), 0)
            age = time.time_ns() - since
            if age < 0:
                self._ahead[ino] = ahead.get(ino, time.monotonic_ns())
                age = time.monotonic_ns() - self._ahead[ino]
            if age >= self._least_age(pid) and not (pid and _is_running(pid)):
                found.append(ino)
        return found

    def _least_age(self, pid: int) -> int:
        return int((self.seconds if pid else self.unknown_seconds) * 1e9)

    def _is_abandoned(self, ino: int, names: list[Name]) -> bool:
        """Whether nobody still works on an inode, or on anything below it if it is a folder."""
        writer = self._temporaries.writer_of(ino)
        if writer is None:
            return False
        now, least = time.time_ns(), self._least_age(writer[1])
        with contextlib.suppress(FsError):  # a part of it went just now
            inodes = [ino, *(below for below, _, _ in self._walk.below(ino))]
            if not any(
                below in self._nodes.handles or abs(now - self._files.attributes(below).mtime) < least
                for below in inodes
            ):
                return not self._is_open(ino, names, inodes)
        return False

    def _is_open(self, ino: int, names: list[Name], inodes: list[int]) -> bool:
        """Whether somebody has it, or anything below it, open or mapped, or as a working directory."""
        held = {below for below in inodes if self._nodes.is_known(below)}
        return bool(held) and self._prober.probe(
            [Probed(held, names, held, lambda: self._walk.below(ino))], self._nodes.is_known
        )

    def _drop(self, ino: int, parent: int, name: bytes) -> bool:
        with self._nodes.change() as txn:
            if self._tree.find(parent, name) != ino:
                return False  # it was renamed just now
            self._remover.drop(txn, ino, parent, name)
        self._remover.clear_out()
        return True


def _is_running(pid: int) -> bool:
    """Whether a process runs; works also where /proc hides other users' processes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
