"""Runs programs as other users, who may not be able to reach the Python and the checkout of the tests.

A developer's home is often closed to others. So each program runs in its own mount namespace, in which a closed folder
is replaced by an open one that holds only what the program needs.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kcachefs
from kcachefs.frameworks import headers
from tests import forked_programs
from tests.engines.callers import Child, Identity
from tests.frameworks.programs import PATIENCE, finish_program, start_program
from tests.frameworks.worlds import World

_CLONE_NEWNS = 0x20000


def as_tenant(made: World, who: Identity, program: str, *arguments: str) -> Callable[[], dict[str, Any]]:
    """A function for a child process of root that runs a program as a user whose home is also the TMPDIR."""
    forked_programs.keep()  # the child does not last
    home = made.mount.mountpoint.parent / f"home_{who.uid}"
    if not home.exists():
        home.mkdir()
        os.chown(home, who.uid, who.gid)
    Path(made.environment["KCACHEFS_PROGRAMS"]).chmod(0o777)
    environment = {**made.environment, "HOME": str(home), "TMPDIR": str(home), "LOGNAME": f"tenant{who.uid}"}

    def run() -> dict[str, Any]:
        forked_programs.reach()
        open_what_is_closed(home)
        who.assume()
        os.environ.update(environment)
        tempfile.tempdir = None
        os.chdir(home)
        assert headers.link(made.mount.mountpoint)
        return finish_program(start_program(program, environment, *arguments))

    return run


def ran(made: World, who: Identity, program: str, *arguments: str) -> dict[str, Any]:
    """What a program said that ran as this user."""
    with Child(as_tenant(made, who, program, *arguments)) as child:
        return child.result(PATIENCE)


def open_what_is_closed(home: Path) -> None:
    """Go into a mount namespace of our own, in which other users reach Python and the checkout."""
    assert ctypes.CDLL(None).unshare(_CLONE_NEWNS) == 0
    _mount("--make-rprivate", "/")
    needed = {
        Path(os.path.realpath(place))
        for place in (sys.base_prefix, sys.prefix, sysconfig.get_path("purelib"), Path(kcachefs.__file__).parent.parent)
    }
    closed = {parent for path in needed for parent in path.parents if not parent.stat().st_mode & 0o001}
    for folder in closed:
        kept = {path: home / f"kept_{number}" for number, path in enumerate(needed) if path.is_relative_to(folder)}
        for path, aside in kept.items():
            aside.mkdir(exist_ok=True)
            _mount("--bind", path, aside)
        _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
        for path, aside in sorted(kept.items()):  # a folder before its contents
            path.mkdir(parents=True, exist_ok=True)
            _mount("--bind", aside, path)


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True, capture_output=True)
