"""Mounts under a policy, and the users who meet on them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from kcachefs.core.report import Statistics
from kcachefs.daemon import control, registry
from kcachefs.store import fsck
from tests.engines.callers import Identity, in_thread
from tests.engines.mounting import Mount, temporary_folder
from tests.waiting import until

T = TypeVar("T")

ALICE = Identity(uid=42042, gid=42042, groups=(42044,))
BOB = Identity(uid=42052, gid=42052)

ENGINES = [
    pytest.param(engine, marks=pytest.mark.mount)
    for engine in os.environ.get("KCACHEFS_TEST_ROOTS", "plain,direct,pyfuse3").split(",")
    if engine != "plain"
]
each_engine = pytest.mark.parametrize("engine", ENGINES)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


@contextmanager
def mounted(engine: str, *options: str) -> Iterator[Mount]:
    """A mount with these options, whose store must be clean afterwards."""
    with temporary_folder() as base:
        with Mount(base / "mount", base / "store", engine, *options) as mount:
            yield mount
        assert fsck.run(base / "store").findings == []


def reopened(mount: Mount, *options: str) -> None:
    """Mount the same store again with other options."""
    mount.umount()
    mount.options = options
    mount.start()


def replace_worker(mount: Mount) -> None:
    """Kill the worker, and return once another one serves."""
    _, worker = mount.daemon()
    os.kill(worker, signal.SIGKILL)
    until(lambda: mount.daemon()[1:] != [worker] and mount.answers(), "another worker serves the mount")


def settled(mount: Mount) -> Statistics:
    """The mount's numbers, once everything written so far is sealed."""
    raw = control.ask(registry.socket_path(str(mount.mountpoint)), "stats", {"settle": True})
    return msgspec.json.decode(raw, type=Statistics)


def asked(mount: Mount, verb: str, **arguments: Any) -> Any:
    """What the mount's daemon answers to its owner."""
    return msgspec.json.decode(control.ask(registry.socket_path(str(mount.mountpoint)), verb, arguments))


def as_user(who: Identity | None, function: Callable[[], T], *, umask: int = 0o022) -> T:
    """Run the function in a thread of that user, and return its result."""

    def run() -> T:
        os.umask(umask)
        return function()

    return in_thread(run, who)


def publish(path: Path, data: bytes) -> None:
    """Write as Inductor does: under another name, and then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{threading.get_native_id()}.1.tmp"
    temporary.write_bytes(data)
    temporary.rename(path)


def triton_put(folder: Path, name: str, data: bytes) -> None:
    """Write as Triton does: in a temporary folder inside the entry, and then renamed."""
    temporary = folder / f"tmp.pid_{os.getpid()}_{name}"
    temporary.mkdir(parents=True, exist_ok=True)
    (temporary / name).write_bytes(data)
    os.replace(temporary / name, folder / name)
    os.removedirs(temporary)
