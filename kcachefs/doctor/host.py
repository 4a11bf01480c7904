"""Checks the host: /dev/fuse, the mount helper, the kernel, and the versions of the frameworks."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from kcachefs.daemon.confinement import LANDLOCK_FULL, LANDLOCK_MIN
from kcachefs.doctor.finding import NOTE, OK, PROBLEM, Finding
from kcachefs.engines import mounting
from kcachefs.frameworks.environment import installed_version
from kcachefs.frameworks.records import FRAMEWORKS

TESTED = {"torch": ((2, 6), (2, 13)), "triton": ((3, 2), (3, 9))}
"""The oldest and the newest version of each package that kcachefs was tested with."""


def fuse_device() -> Iterator[Finding]:
    if not os.path.exists("/dev/fuse"):
        yield Finding(PROBLEM, "/dev/fuse", *mounting.NO_DEVICE)
    elif not os.access("/dev/fuse", os.R_OK | os.W_OK):
        yield Finding(PROBLEM, "/dev/fuse", "cannot be opened by this user", "chmod 666 /dev/fuse, as root")
    else:
        yield Finding(OK, "/dev/fuse", "can be opened")


def mount_helper() -> Iterator[Finding]:
    found = shutil.which("fusermount3")
    if found and not _is_listed(os.getuid()):
        yield Finding(
            PROBLEM,
            "fusermount3",
            f"refuses user {os.getuid()}, who is not in the list of users",
            "add a line to /etc/passwd, or let root mount",
        )
    elif found and os.geteuid() != 0 and not mounting.may_gain_privileges():
        yield Finding(PROBLEM, "fusermount3", *mounting.NO_NEW_PRIVILEGES)
    elif found:
        yield Finding(OK, "fusermount3", found)
    elif os.geteuid() == 0:
        yield Finding(
            NOTE, "fusermount3", "is missing; root mounts without it", "for other users: apt-get install fuse3"
        )
    else:
        yield Finding(PROBLEM, "fusermount3", "is missing, and only root can mount without it", "apt-get install fuse3")


def _is_listed(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


def sharing_with_others(configuration: Path) -> Iterator[Finding]:
    """Whether an ordinary user can let others, containers among them, see a mount."""
    try:
        lines = configuration.read_text(encoding="utf-8", errors="replace").splitlines()
        allowed = any(line.strip() == "user_allow_other" for line in lines)
    except OSError:
        allowed = False
    if allowed:
        yield Finding(OK, "user_allow_other", f"is set in {configuration}")
    else:
        whose = "the mounts of users other than root" if os.geteuid() == 0 else "your mounts"
        yield Finding(
            NOTE,
            "user_allow_other",
            f"is not set in {configuration}: only their owner can use {whose}",
            f"echo user_allow_other >> {configuration}, as root; or mount with --no-allow-other",
        )


def kernel(release: str) -> Iterator[Finding]:
    version = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    if version < (5, 4):
        yield Finding(PROBLEM, "kernel", f"{release} is too old", "Linux 5.4 or newer")
    else:
        yield Finding(OK, "kernel", f"{release}, with failover (engine direct)")


def confinement(landlock: int) -> Iterator[Finding]:
    """Whether an attacker who takes over a worker could reach the host; `landlock`: the kernel's Landlock version."""
    if landlock < LANDLOCK_MIN:
        yield Finding(
            NOTE,
            "Landlock",
            "is not there: workers are not confined to their store",
            "Linux 5.19 or newer, booted with landlock in its list of security modules (lsm=)",
        )
    elif landlock < LANDLOCK_FULL:
        yield Finding(
            NOTE,
            "Landlock",
            "is an old one: workers are confined to their store, but can still truncate files",
            "Linux 6.2 or newer",
        )
    else:
        yield Finding(OK, "Landlock", "workers are confined to their store")


def framework_versions() -> Iterator[Finding]:
    for framework in FRAMEWORKS:
        name = framework.packages[0] if framework.packages else ""
        if framework.namespace not in ("triton", "inductor") or (found := installed_version(framework)) is None:
            continue
        version = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
        lowest, highest = TESTED[name]
        if version < lowest:
            needed = ".".join(map(str, lowest))
            yield Finding(NOTE, name, f"{found} is older than any tested", f"pip install '{name}>={needed}'")
        elif version > highest:
            yield Finding(NOTE, name, f"{found} is newer than any tested", "please report it if its cache moved")
        else:
            yield Finding(OK, name, found)
