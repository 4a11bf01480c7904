"""Confines a worker to its store: taking it over, by a request or a hostile store, must not give away the host.

It can still read and write the store, read Python and its packages, the system's libraries, /proc and the cgroups, and
make its control socket. Everything else that its user could reach is out of reach. The supervisor is not confined: it
has to start every worker, and reads nothing that a user of the mount can write.

If the kernel lacks a feature that this needs, the worker serves all the same, and logs what is missing.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from kcachefs import libc
from kcachefs.daemon import landlock, syscall_filter
from kcachefs.daemon.landlock import Right

LANDLOCK_MIN = 2
"""The first version that lets a file be renamed from one folder of the store to another."""
LANDLOCK_FULL = 3
"""The first version that also keeps a worker from truncating files."""
NO_LANDLOCK = (
    "the worker can read what its user can: this kernel has no Landlock, or one older than version 2 (Linux 5.19)"
)
NO_LANDLOCK_FOR_AGENT = "the fleet's agent can write what its user can: this kernel has no Landlock, or an old one"
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
_KERNEL = ("/proc", "/sys/fs/cgroup")
"""They tell who a caller is, how busy the machine is, and how much of it is ours."""


def confine(store: Path, sockets: Path | None) -> list[str]:
    """Give up, for good, everything but the store and what serving needs; returns what could not be given up.

    `store` must exist. In `sockets`, if there is such a folder, the worker can make sockets and nothing else.
    Everything that serving imports from outside of kcachefs and the standard library must be imported already. This
    needs no_new_privs, and like that is per thread: call it before the first thread starts.
    """
    _load_early()
    gaps = []
    if landlock.version() < LANDLOCK_MIN:
        gaps.append(NO_LANDLOCK)
    else:
        try:
            _restrict_files(store, sockets)
        except OSError as error:
            gaps.append(f"the worker can read what its user can: Landlock failed: {error.strerror}")
    try:
        syscall_filter.apply()
    except OSError as error:
        gaps.append(f"the worker can make any system call: {error.strerror}")
    return gaps


def confine_agent(folder: Path, bucket: str, log: str) -> list[str]:
    """Confine a fleet's agent: it reaches the network, reads what its user can, and writes to its own folder.

    It also writes to its log, and to a bucket that is a local folder. For other buckets `bucket` is empty.
    """
    if landlock.version() < LANDLOCK_MIN:
        return [NO_LANDLOCK_FOR_AGENT]
    try:
        with landlock.Ruleset(network=True) as rules:
            rules.allow("/", landlock.READ)
            for path in (folder, "/dev/null", Path(log).parent if log else folder, bucket or folder):
                rules.allow(path, landlock.READ | landlock.WRITE)
            rules.enforce()
    except OSError as error:
        return [f"the fleet's agent can write what its user can: Landlock failed: {error.strerror}"]
    return []


def _restrict_files(store: Path, sockets: Path | None) -> None:
    with landlock.Ruleset() as rules:
        rules.allow(store, landlock.READ | landlock.WRITE)
        if sockets is not None:
            rules.allow(sockets, Right.MAKE_SOCK)
        for path in {*_KERNEL, *_SYSTEM, *_python_files()}:
            rules.allow(path, landlock.READ)
        rules.enforce()


def _python_files() -> Iterator[str]:
    """The standard library and the packages that are imported; not all of sys.path, which may hold a home directory."""
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    yield from libraries
    below = tuple(f"{folder}/" for folder in (*_SYSTEM, *libraries))
    for name, module in list(sys.modules.items()):
        if "." not in name:
            folders = getattr(module, "__path__", None)
            file = getattr(module, "__file__", None)
            for path in map(str, folders) if folders is not None else filter(None, [file]):
                if not path.startswith(below) or os.path.islink(path):
                    yield path


def _load_early() -> None:
    """Load files that the C library would otherwise look for later, when it may no longer read them."""
    time.localtime()  # the time zone
    with suppress(OSError):
        libc.load("libgcc_s.so.1")  # a thread that is ended needs it, and without it the process aborts
