"""Processes may be called anything: what /proc tells of one whose name is not UTF-8 is read all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs.core.sharing import groups_of
from kcachefs.daemon import serving
from kcachefs.engines import mounting
from kcachefs.fleet.deliveries import is_parting

CODE = (
    "import os, sys\n"
    "open('/proc/self/comm', 'wb').write(b'k\\xff\\x1b')\n"
    "os.chdir(sys.argv[1])\n"
    "print(flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.fixture(name="pid")
def a_pid(tmp_path: Path) -> Iterator[int]:
    command = [sys.executable, "-S", "-c", CODE, str(tmp_path), "kcachefs"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_what_proc_tells_is_read(pid: int, tmp_path: Path) -> None:
    assert groups_of(pid) == set(os.getgroups())
    assert not is_parting(pid)
    assert serving.looks_like_ours(pid)
    assert [one for one in mounting.users_of(tmp_path) if f"({pid})" in one] == [f"k\ufffd\x1b ({pid}): {tmp_path}"]
