"""A host with one mount, containers that use it, and compilers that run in them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kcachefs.daemon import registry
from kcachefs.session import account
from tests.deploy.containers import PATIENCE, Container, Share, Start, containers
from tests.engines.mounting import Mount, temporary_folder
from tests.forked_programs import Program
from tests.frameworks.commands import kcachefs

TESTS = Path(__file__).parent.parent
INSIDE = Path("/opt/tests")
ALICE, BOB, CAROL = 1001, 1002, 1003
PYTHON = (sys.executable, "-B", "-W", "ignore")


@contextmanager
def host(*options: str) -> Iterator[tuple[Mount, Start]]:
    """A mount and a starter of containers."""
    with temporary_folder() as base, Mount(base / "mount", base / "store", "direct", *options) as mount:
        with containers(base / "containers") as start:
            yield mount, start


def with_compilers(start: Start, name: str, uid: int, mount: Mount) -> Container:
    return start(name, uid=uid, programs=True, shared=[mount.mountpoint, Share(TESTS, INSIDE)])


def state(mount: Mount) -> dict[str, Any]:
    """What `kcachefs status` knows about the mount."""
    found: dict[str, Any] = msgspec.to_builtins(registry.read(str(mount.mountpoint)))
    return found


def stats(mount: Mount) -> dict[str, Any]:
    account.read(mount.mountpoint)  # waits until what was just written is counted
    told: dict[str, Any] = json.loads(kcachefs("stats", "--json", "--mount", mount.mountpoint).stdout)
    return told


def compile_kernels(container: Container, mount: Mount, *blocks: int) -> dict[str, Any]:
    """Compile real Triton kernels for sm_90 in the container."""
    with ending() as compiling:
        compiling.append(start_triton(container, mount, *blocks))
        [out] = end_without_a_word(compiling)
    told: dict[str, Any] = json.loads(out)
    return told


def start_triton(container: Container, mount: Mount, *blocks: int) -> Program:
    variables = {"TRITON_CACHE_DIR": triton_of(mount), "PYTHONWARNINGS": "ignore"}
    return container.start_program(INSIDE / "triton_kernel.py", *map(str, blocks), **variables)


def triton_of(mount: Mount) -> str:
    return str(mount.mountpoint / "triton")


@contextmanager
def ending() -> Iterator[list[subprocess.Popen[str]]]:
    """A list of processes that are killed at the end of the scope."""
    processes: list[subprocess.Popen[str]] = []
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def end_without_a_word(processes: list[subprocess.Popen[str]]) -> list[str]:
    """Wait until they have ended well, without a word to standard error; returns what they printed."""
    printed = []
    for process in processes:
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, err) == (0, ""), out + err
        printed.append(out)
    return printed
