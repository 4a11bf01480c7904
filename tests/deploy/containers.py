"""Real containers for the tests, made with runc: each has its own PID, mount and IPC namespaces, user and root.

A container's root is busybox. With `programs` it also has the host's programs and this Python with its packages,
read-only and at their own paths, so that real compilers run inside. Shared folders are bound at the host's path,
because compilers write absolute paths into what they cache.

    with containers(folder) as start:
        alice = start("alice", uid=1001, shared=[mount])
        alice.sh(f"echo text > {mount}/triton/file")

The machine's control groups are left alone: a container does not need them. A container ends with the process that
started it, however that ends, because its first process reads from a pipe that nobody else holds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forked_programs import Program

PATIENCE = 280.0
DAEMON = 10001
"""The user that the image has for a daemon without root."""

_PROGRAMS = ("/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl")
_LINKS = ("bin", "lib", "lib64", "sbin")
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"}
_CAPABILITIES = ["CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_CHOWN", "CAP_FOWNER", "CAP_KILL"]


@dataclass(frozen=True)
class Share:
    """A folder of the host inside a container."""

    source: Path
    target: Path | None = None
    propagation: str = "rprivate"
    """`rslave`: what is mounted below it on the host later appears inside too."""


class Container:
    """A container that runs until its scope ends, and in which commands can be run."""

    def __init__(self, name: str, uid: int, state: Path, lifeline: int) -> None:
        self.name = name
        self._uid = uid
        self._lifeline = lifeline
        self._runc = ("runc", "--root", str(state))

    def start(self, *command: str | Path, **environment: str) -> subprocess.Popen[str]:
        """Run a command inside, as the container's user."""
        given = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        return subprocess.Popen(
            [*self._runc, "exec", *given, self.name, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_program(self, file: Path, *arguments: str, **environment: str) -> Program:
        """Run a Python program that needs Triton inside, as the container's user."""
        given = {**_ENVIRONMENT, **environment}
        return Program(file, *arguments, env=given, inside=(self.pid(), self._uid))

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        with self.start(*command, **environment) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def must(self, *command: str | Path, **environment: str) -> str:
        """Run a command that must succeed and print nothing to standard error; returns its output."""
        done = self.run(*command, **environment)
        assert (done.returncode, done.stderr) == (0, ""), (command, done)
        return done.stdout

    def sh(self, script: str) -> str:
        return self.must("/bin/sh", "-euc", script)

    def pid(self) -> int:
        """The host's pid of its first process."""
        told = subprocess.run([*self._runc, "state", self.name], capture_output=True, check=True)
        found: int = json.loads(told.stdout)["pid"]
        return found

    def remove(self) -> None:
        """Kill everything that runs in it and remove it."""
        os.close(self._lifeline)
        subprocess.run([*self._runc, "delete", "--force", self.name], check=True, timeout=PATIENCE)


class Start:
    """Starts containers whose bundles are in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = folder / "state"
        self.running: list[Container] = []

    def __call__(
        self,
        name: str,
        *,
        uid: int = 0,
        shared: Sequence[Path | Share] = (),
        programs: bool = False,
        privileged: bool = False,
        user_namespace: int | None = None,
    ) -> Container:
        """A running container. Its user has no capabilities unless it is `privileged`, which grants those for mounting.

        `user_namespace` is the host's uid for the container's uid 0.
        """
        shares = [share if isinstance(share, Share) else Share(share) for share in shared]
        if programs:
            shares += [Share(Path(path)) for path in _needed_by_python() if os.path.exists(path)]
        bundle = self._folder / name
        _make_root(bundle / "rootfs", programs=programs)
        config = _config(uid, shares, privileged, user_namespace)
        (bundle / "config.json").write_text(json.dumps(config))
        container = self._run(f"{self._folder.name}-{name}", uid, bundle)
        self.running.append(container)
        return container

    def _run(self, name: str, uid: int, bundle: Path) -> Container:
        watched, lifeline = os.pipe()
        # A file, because a pipe would stay open for as long as the container runs.
        with open(bundle / "said", "w+") as said, open(watched) as stdin:
            command = ["runc", "--root", str(self._state), "run", "--detach", "--bundle", str(bundle), name]
            done = subprocess.run(command, stdin=stdin, stdout=said, stderr=said, timeout=PATIENCE)
            said.seek(0)
            if done.returncode != 0:
                os.close(lifeline)
                raise RuntimeError(f"runc cannot run a container on this machine: {said.read().strip()}")
        return Container(name, uid, self._state, lifeline)


@contextmanager
def containers(folder: Path) -> Iterator[Start]:
    """A starter of containers whose files are in `folder`; everything is removed at the end."""
    if shutil.which("runc") is None or not os.path.exists("/bin/busybox"):
        raise RuntimeError("these tests need runc and busybox: apt-get install runc busybox-static")
    folder.mkdir(mode=0o711)
    start = Start(folder)
    try:
        yield start
    finally:
        with ExitStack() as ends:
            ends.callback(shutil.rmtree, folder)
            for container in start.running:
                ends.callback(container.remove)


def _make_root(root: Path, *, programs: bool) -> None:
    for name in ("proc", "dev", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    (root / "etc" / "passwd").write_text(f"root:x:0:0::/tmp:/bin/sh\nkcachefs:x:{DAEMON}:{DAEMON}::/tmp:/bin/sh\n")
    (root / "etc" / "mtab").symlink_to("/proc/mounts")  # as container engines make it
    (root / "etc" / "fuse.conf").write_text("user_allow_other\n")
    (root / "tmp").chmod(0o1777)
    if programs:
        for name in _LINKS:
            (root / name).symlink_to(f"usr/{name}")
        return
    (root / "bin").mkdir()
    shutil.copy("/bin/busybox", root / "bin" / "busybox")
    subprocess.run(["/bin/busybox", "--install", "-s", root / "bin"], check=True)
    for link in (root / "bin").iterdir():
        if link.is_symlink():
            link.unlink()
            link.symlink_to("busybox")


def _needed_by_python() -> list[str]:
    return [*_PROGRAMS, sys.prefix, sys.base_prefix]


def _config(uid: int, shares: Sequence[Share], privileged: bool, user_namespace: int | None) -> dict[str, Any]:
    """A minimal config.json for the bundle."""
    namespaces = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]
    # The root must propagate mounts before anything below it can: container engines set that, runc does not.
    outward = any(share.propagation == "rshared" for share in shares)
    linux: dict[str, Any] = {"namespaces": namespaces, "rootfsPropagation": "rshared" if outward else "rslave"}
    capabilities = _CAPABILITIES if privileged else []
    if privileged:
        linux["devices"] = [{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229, "fileMode": 0o666}]
        linux["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
    if user_namespace is not None:
        namespaces.append({"type": "user"})
        whole = [{"containerID": 0, "hostID": user_namespace, "size": 65536}]
        linux |= {"uidMappings": whole, "gidMappings": whole}
    return {
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs"},
        "hostname": "container",
        "process": {
            "user": {"uid": uid, "gid": uid},
            "args": ["/bin/cat"],
            "cwd": "/",
            "env": [f"{name}={value}" for name, value in _ENVIRONMENT.items()],
            # As container engines do it: a user other than root has none, but setuid programs may.
            "capabilities": dict.fromkeys(
                ["bounding", *(["effective", "permitted"] if uid == 0 else [])], capabilities
            ),
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]},
            *map(_bind, shares),
        ],
        "linux": linux,
    }


def _bind(share: Share) -> dict[str, Any]:
    rights = "ro" if str(share.source) in _needed_by_python() else "rw"
    return {
        "destination": str(share.target or share.source),
        "type": "bind",
        "source": str(share.source),
        "options": ["rbind", share.propagation, rights],
    }
