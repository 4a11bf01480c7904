"""A real systemd as the first process of namespaces of its own, with our unit installed and nothing else to start.

It sees this machine's files, but can change none: what a service writes goes to folders of its own. It controls a
cgroup of its own. It ends with the scope, and takes every process in it along.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.places import ROOT
from tests.waiting import PATIENCE, until

MANAGER = Path("/lib/systemd/systemd")
BOOT = """
set -e
mount --make-rprivate /
# Read-only, and without the system's own units: those would tidy up, set and mount things for a machine that boots.
mount -o remount,bind,ro /
units=$(dirname "$3")
exec 8<"$4"
for folder in /run /srv /tmp /var/cache /var/log /var/tmp /usr/local/bin /etc/systemd/system \
    "$units/system" "$units/system-generators" /sys/fs/cgroup; do
    mount -t tmpfs -o mode=0755 tmpfs "$folder"
done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
[ -d "$4" ] || { mkdir -p "$4" && mount --no-canonicalize --bind /proc/self/fd/8 "$4"; }  # a checkout in /tmp
exec 8<&-
mount --make-rshared /
cp "$1" /etc/systemd/system/kcachefs.service
mkdir /etc/systemd/system/kcachefs.service.d
printf '[Service]\\nStandardError=append:/var/log/kcachefs.log\\n' >/etc/systemd/system/kcachefs.service.d/log.conf
printf '%s' "$2" >/usr/local/bin/kcachefs
chmod 755 /usr/local/bin/kcachefs
for target in nothing sysinit basic shutdown multi-user; do
    printf '[Unit]\\nDescription=Nothing\\nDefaultDependencies=no\\n' >"/etc/systemd/system/$target.target"
done
for slice in - system; do printf '[Slice]\\n' >"/etc/systemd/system/$slice.slice"; done
exec "$3" --system --unit=nothing.target --log-target=console --show-status=false --default-standard-output=inherit
"""


class BootedSystemd:
    """The running manager."""

    def __init__(self, pid: int, log: Path) -> None:
        self._pid = pid
        self._log = log

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command where the manager's services live."""
        inside = ["nsenter", "--target", str(self._pid), "--mount", "--pid", "--uts", "--ipc", "--cgroup"]
        return subprocess.run([*inside, *command], capture_output=True, text=True, timeout=PATIENCE, check=False)

    def must(self, *command: str) -> str:
        done = self.run(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr, self._log.read_text()[-3000:])
        return done.stdout

    def show(self, name: str) -> str:
        """A property of the service."""
        return self.must("systemctl", "show", "--value", "--property", name, "kcachefs.service").strip()


@contextlib.contextmanager
def booted(unit: Path, folder: Path) -> Iterator[BootedSystemd]:
    """Boot with this unit; skips the test where that cannot be done."""
    controls = _cgroup2()
    if not MANAGER.exists():
        pytest.skip(f"systemd is not installed: {MANAGER}")
    if os.geteuid() != 0 or controls is None:
        pytest.skip("systemd can only be booted by root, with a cgroup2 filesystem mounted")
    program = f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(sys.executable)} -m kcachefs "$@"\n'
    group, log = controls / f"kcachefs-test-{os.getpid()}", folder / "systemd.log"
    group.mkdir()
    enter = 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"'
    namespaces = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--cgroup", "--uts", "--ipc"]
    boot = ["bash", "-c", BOOT, "boot", str(unit), program, str(MANAGER), str(ROOT)]
    try:
        with open(log, "wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", enter, "enter", str(group), *namespaces, *boot],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={"PATH": os.environ["PATH"], "HOME": "/root", "container": "other"},
            )
        with process:
            try:
                yield _wait_for(process, log)
            finally:
                process.kill()
    finally:
        until(lambda: not any(one.read_text() for one in group.rglob("cgroup.procs")), "its processes have ended")
        for one in sorted(group.rglob("*/"), reverse=True):
            one.rmdir()
        group.rmdir()


def _wait_for(process: subprocess.Popen[bytes], log: Path) -> BootedSystemd:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def is_up() -> BootedSystemd | None:
        assert process.poll() is None, log.read_text()
        for first in children.read_text().split():
            manager = BootedSystemd(int(first), log)
            if manager.run("systemctl", "is-active", "nothing.target").stdout == "active\n":
                return manager
        return None

    found = until(is_up, "systemd has booted", pause=0.1)
    assert found is not None
    return found


def _cgroup2() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(where, os.W_OK):
            return Path(where)
    return None
