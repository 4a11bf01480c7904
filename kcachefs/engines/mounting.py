"""Mounting and unmounting, through mount(2) as root and fusermount3 otherwise; and reading the mount table in /proc."""

from __future__ import annotations

import array
import contextlib
import errno
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kcachefs import libc
from kcachefs.errors import MountBusy, MountDenied, MountError

FSTYPE = "fuse.kcachefs"
NO_DEVICE = "is missing", "modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN"
NO_NEW_PRIVILEGES = (
    "cannot become root to mount: new privileges are forbidden here (no_new_privs)",
    "in a pod: allowPrivilegeEscalation: true; with Docker: without no-new-privileges; or use a mount of the host's",
)
"""What is wrong, and what to do about it."""


def mount(mountpoint: Path, source: Path, *, allow_other: bool = True) -> int:
    """Mount at `mountpoint` and return the /dev/fuse descriptor that serves it."""
    if os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK | os.W_OK):
        return _mount_as_root(mountpoint, source, allow_other)
    return _mount_through_fusermount(mountpoint, source, allow_other)


def _mount_as_root(mountpoint: Path, source: Path, allow_other: bool) -> int:
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    mode = stat.S_IFMT(os.stat(mountpoint).st_mode)
    options = f"fd={device},rootmode={mode:o},user_id={os.getuid()},group_id={os.getgid()},default_permissions"
    if allow_other:
        options += ",allow_other"
    flags = libc.MS_NOSUID | libc.MS_NODEV
    try:
        libc.mount(os.fsencode(source), os.fsencode(mountpoint), FSTYPE.encode(), flags, options.encode())
    except OSError as error:
        os.close(device)
        if error.errno == errno.EPERM:
            raise MountDenied(
                f"{mountpoint}: you may not mount here; in a container, give the container SYS_ADMIN and /dev/fuse"
            ) from None
        raise MountError(f"{mountpoint}: cannot be mounted: {error.strerror}") from None
    return device


def _mount_through_fusermount(mountpoint: Path, source: Path, allow_other: bool) -> int:
    program = shutil.which("fusermount3")
    if program is None:
        _refuse_without_device(mountpoint)
        raise MountError("fusermount3 is missing; install the package fuse3")
    options = ["default_permissions", "subtype=kcachefs", f"fsname={_escape(str(source))}", "nosuid", "nodev"]
    options += ["allow_other"] * allow_other
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        done = subprocess.run(
            [program, "-o", ",".join(options), "--", str(mountpoint)],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
        if done.returncode != 0:
            _refuse_without_device(mountpoint)  # only now: in some clusters, fusermount3 needs no device here
            raise _refusal(done.stderr, mountpoint)
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_LEN(4))
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    os.set_inheritable(descriptors[0], False)
    return descriptors[0]


def _refuse_without_device(mountpoint: Path) -> None:
    if not os.path.exists("/dev/fuse"):
        raise MountDenied(f"{mountpoint}: cannot be mounted: /dev/fuse {'; '.join(NO_DEVICE)}")


def may_allow_other(configuration: Path = Path("/etc/fuse.conf")) -> bool:
    """Whether this user may share a mount with other users: root always, others where fuse.conf says so."""
    if os.geteuid() == 0:
        return True
    try:
        lines = configuration.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def may_gain_privileges() -> bool:
    """Whether a setuid-root program, such as fusermount3, really gains root here."""
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as lines:
            return not any(line.split() == ["NoNewPrivs:", "1"] for line in lines)
    except OSError:
        return True


def _refusal(message: str, mountpoint: Path) -> MountError:
    """The error for what fusermount3 reported, with advice."""
    if "allow_other" in message:
        return MountError(
            f"{mountpoint}: only root may share a mount with other users here; "
            "add user_allow_other to /etc/fuse.conf, or mount with --no-allow-other"
        )
    if "/dev/fuse" in message:
        return MountDenied(
            f"{mountpoint}: cannot be mounted: /dev/fuse is closed to users; open it: chmod 666 /dev/fuse"
        )
    if "could not determine username" in message:
        return MountDenied(
            f"{mountpoint}: cannot be mounted: user {os.getuid()} is not in the list of users, so fusermount3 refuses; "
            "add a line to /etc/passwd, or let root mount"
        )
    if os.geteuid() != 0 and not may_gain_privileges():
        return MountDenied(f"{mountpoint}: cannot be mounted: fusermount3 {'; '.join(NO_NEW_PRIVILEGES)}")
    return MountDenied(f"{mountpoint}: cannot be mounted: {_last_line(message)}")


def _last_line(message: str) -> str:
    return message.strip().rpartition("\n")[2].rpartition("fusermount3: ")[2] or "fusermount3 failed"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace(",", "\\,")


def unmount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Undo a mount. MountBusy if something still uses it, unless `lazy`, which hides it until its last user is gone."""
    if os.geteuid() == 0:
        try:
            libc.umount2(os.fsencode(mountpoint), libc.MNT_DETACH if lazy else 0)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise MountBusy(f"{mountpoint}: is in use") from None
            raise MountError(f"{mountpoint}: cannot be unmounted: {error.strerror}") from None
        return
    command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", str(mountpoint)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        if "busy" in done.stderr.lower():
            raise MountBusy(f"{mountpoint}: is in use")
        if "not found in" in done.stderr:
            raise MountDenied(f"{mountpoint}: cannot be unmounted: it is somebody else's; ask its owner, or root")
        raise MountDenied(f"{mountpoint}: cannot be unmounted: {_last_line(done.stderr)}")


@dataclass(frozen=True)
class Mounted:
    """A line of /proc/self/mountinfo."""

    mountpoint: str
    fstype: str
    source: str
    device: str
    options: str = ""
    owner: int | None = None
    """The user who made it; None if it is not a FUSE mount."""


def mounts() -> list[Mounted]:
    """Everything mounted in this mount namespace, in mounting order."""
    found = []
    # Decoded the way Python decodes all paths, because the results are compared with such paths.
    encoding = sys.getfilesystemencoding()
    with open("/proc/self/mountinfo", encoding=encoding, errors="surrogateescape", newline="\n") as lines:
        for line in lines:
            before, _, after = line.partition(" - ")
            fields, rest = before.split(" "), after.split(" ")
            owner = re.search(r"\buser_id=(\d+)", rest[2]) if rest[0].startswith("fuse") else None
            found.append(
                Mounted(
                    mountpoint=_unescape(fields[4]),
                    fstype=rest[0],
                    source=_unescape(rest[1]),
                    device=fields[2],
                    options=fields[5],
                    owner=int(owner[1]) if owner is not None else None,
                )
            )
    return found


def mounted_at(mountpoint: Path) -> Mounted | None:
    """The mount at `mountpoint`, the uppermost if there are several."""
    wanted = os.fspath(mountpoint)
    return next((mount for mount in reversed(mounts()) if mount.mountpoint == wanted), None)


def filesystem_of(path: Path) -> Mounted | None:
    """The mount that the path is on, or will be on once it is created."""
    wanted = Path(os.path.realpath(path))
    table = {mount.mountpoint: mount for mount in mounts()}
    return next((table[str(folder)] for folder in (wanted, *wanted.parents) if str(folder) in table), None)


def _unescape(text: str) -> str:
    if "\\" not in text:  # true of most paths
        return text
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), text)


def set_readahead(mountpoint: Path, kilobytes: int) -> None:
    """Let the kernel read ahead further than its default of 128 KiB. Only root can; others keep the default."""
    found = mounted_at(mountpoint)
    if found is not None and os.geteuid() == 0:
        try:
            Path(f"/sys/class/bdi/{found.device}/read_ahead_kb").write_text(str(kilobytes))
        except OSError:
            return  # /sys is read-only in a container: the default stays


def users_of(mountpoint: Path) -> list[str]:
    """The users that keep a mount busy, as far as /proc shows them: `python3 (1234): /mnt/kcache/triton/x`."""
    prefix = os.fspath(mountpoint)
    users = [f"a mount: {mount.mountpoint}" for mount in mounts() if mount.mountpoint.startswith(prefix + "/")]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if (used := used_by(pid, mountpoint)) is not None:
                name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
                users.append(f"{name} ({pid}): {used}")
        except OSError:
            continue  # the process has ended, or we may not look at it
    return users


def used_by(pid: str, mountpoint: Path) -> str | None:
    """A path in a mount that the process uses, if any; `self` means the calling process."""
    prefix = os.fspath(mountpoint)
    return next((path for path in _paths_used_by(pid) if path == prefix or path.startswith(prefix + "/")), None)


def _paths_used_by(pid: str) -> Iterator[str]:
    """The paths of a process: its working directory, root, executable, open files and mapped files."""
    links = [f"/proc/{pid}/{name}" for name in ("cwd", "root", "exe")]
    for link in (*links, *(child.path for child in os.scandir(f"/proc/{pid}/fd"))):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(link)
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape", newline="\n") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6:
                yield fields[5]
