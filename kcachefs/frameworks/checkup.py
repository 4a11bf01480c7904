"""What `kcachefs doctor` looks at: one function per thing, each telling what it found and what to do about it.

Nothing here changes anything. A mount that does not answer can hold whoever asks it for ever, so mounts are asked from
a thread that is left behind when it does not come back.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kcachefs import config
from kcachefs.daemon import registry
from kcachefs.engines import mounting
from kcachefs.errors import KcachefsError
from kcachefs.frameworks import headers
from kcachefs.frameworks.environment import installed_version, where_now
from kcachefs.frameworks.records import FRAMEWORKS

OK, NOTE, PROBLEM = "ok", "note", "problem"
ANSWER_SECONDS = 5.0
GROUPS_SAMPLED = 20
NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "9p",
    "fuse.sshfs",
    "fuse.gcsfuse",
    "glusterfs",
)
TESTED = {"torch": ((2, 6), (2, 13)), "triton": ((3, 2), (3, 9))}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    level: str
    subject: str
    message: str
    remedy: str = ""


def examine(store: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Everything, in the order in which it matters."""
    yield from device()
    yield from helper()
    yield from sharing(Path("/etc/fuse.conf"))
    yield from kernel(os.uname().release)
    yield from versions()
    yield from place_of_store(store)
    yield from present_mounts(mounting.mounts())
    yield from present_caches(environ)
    yield from header_link()


# --- what mounting needs ---------------------------------------------------------------------------------------------


def device() -> Iterator[Finding]:
    if not os.path.exists("/dev/fuse"):
        yield Finding(
            PROBLEM, "/dev/fuse", "is missing", "modprobe fuse; in a container: --device /dev/fuse --cap-add SYS_ADMIN"
        )
    elif not os.access("/dev/fuse", os.R_OK | os.W_OK):
        yield Finding(PROBLEM, "/dev/fuse", "may not be opened by this user", "chmod 666 /dev/fuse, as root")
    else:
        yield Finding(OK, "/dev/fuse", "can be opened")


def helper() -> Iterator[Finding]:
    found = shutil.which("fusermount3")
    if found:
        yield Finding(OK, "fusermount3", found)
    elif os.geteuid() == 0:
        yield Finding(
            NOTE, "fusermount3", "is missing; root mounts without it", "for other users: apt-get install fuse3"
        )
    else:
        yield Finding(PROBLEM, "fusermount3", "is missing, and only root can mount without it", "apt-get install fuse3")


def sharing(configuration: Path) -> Iterator[Finding]:
    """Whether a mount of an ordinary user can be seen by others, containers among them."""
    try:
        allowed = any(line.strip() == "user_allow_other" for line in configuration.read_text().splitlines())
    except OSError:
        allowed = False
    if allowed:
        yield Finding(OK, "user_allow_other", f"is set in {configuration}")
    else:
        who = "mounts of other users than root" if os.geteuid() == 0 else "your mounts"
        yield Finding(
            NOTE,
            "user_allow_other",
            f"is not set in {configuration}: {who} are for their owner alone",
            f"echo user_allow_other >> {configuration}, as root; or mount with --no-allow-other",
        )


def kernel(release: str) -> Iterator[Finding]:
    version = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    if version < (5, 4):
        yield Finding(PROBLEM, "kernel", f"{release} is too old", "Linux 5.4 or newer; 6.9 for failover")
    elif version < (6, 9):
        yield Finding(
            NOTE,
            "kernel",
            f"{release} cannot resend requests: what a killed daemon had taken and not answered fails once",
            "Linux 6.9 or newer",
        )
    else:
        yield Finding(OK, "kernel", f"{release}, with failover (engine direct)")


def versions() -> Iterator[Finding]:
    for framework in FRAMEWORKS:
        name = framework.packages[0] if framework.packages else ""
        if framework.namespace not in ("triton", "inductor") or (found := installed_version(framework)) is None:
            continue
        version = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
        lowest, highest = TESTED[name]
        if version < lowest:
            needed = ".".join(map(str, lowest))
            yield Finding(NOTE, name, f"{found} is older than any that was tried", f"pip install '{name}>={needed}'")
        elif version > highest:
            yield Finding(NOTE, name, f"{found} is newer than any that was tried", "if its cache moved, please tell us")
        else:
            yield Finding(OK, name, found)


# --- where things are ------------------------------------------------------------------------------------------------


def place_of_store(store: Path) -> Iterator[Finding]:
    found = mounting.filesystem_of(store)
    yield judge_store(store, found.fstype if found is not None else "unknown")


def judge_store(store: Path, kind: str) -> Finding:
    if kind in NETWORK:
        return Finding(
            PROBLEM, "store", f"{store} is on {kind}, where its catalog cannot live", "--store on a local disk"
        )
    if kind in ("tmpfs", "ramfs"):
        return Finding(NOTE, "store", f"{store} is in memory ({kind}) and lost at a reboot", "--store on a disk")
    if kind == "overlay":
        return Finding(NOTE, "store", f"{store} is in a container's own layer and lost with it", "--store on a volume")
    if kind == mounting.FSTYPE:
        return Finding(PROBLEM, "store", f"{store} is inside a kcachefs mount", "--store outside of it")
    return Finding(OK, "store", f"{store} on {kind}, {config.format_size(_free(store))} free")


def present_mounts(table: Iterable[mounting.Mounted]) -> Iterator[Finding]:
    """Mounts that are dead, that forbid what compilers need, or that are seen at another path than they were filled."""
    for mount in table:
        if mount.fstype != mounting.FSTYPE:
            continue
        where = Path(mount.mountpoint)
        if not _answers(where):
            yield Finding(
                PROBLEM, "mount", f"{where} does not answer", f"kcachefs umount --lazy {where}; kcachefs mount {where}"
            )
            continue
        if "noexec" in mount.options.split(","):
            yield Finding(
                PROBLEM,
                "mount",
                f"{where} is noexec: compiled libraries cannot be loaded",
                f"mount -o remount,exec {where}",
            )
        elsewhere = _filled_at(where)
        if elsewhere is not None:
            yield Finding(
                PROBLEM,
                "mount",
                f"{where} was filled at {elsewhere}: what is cached holds that path, and is not found at this one",
                f"have it at {elsewhere} here too (docker run -v {elsewhere}:{elsewhere}:rslave)",
            )
        if _engine(where) == "pyfuse3":
            yield Finding(
                NOTE,
                "mount",
                f"{where} is served by pyfuse3, and does not outlive its daemon",
                f"kcachefs umount {where}; kcachefs mount {where} --engine direct",
            )
        elif "noexec" not in mount.options.split(",") and elsewhere is None:
            yield Finding(OK, "mount", f"{where} answers")


def present_caches(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Caches of what is installed here that are not in a mount, where that costs something."""
    for framework in FRAMEWORKS:
        now = where_now(framework, environ)
        if not framework.variables or installed_version(framework) is None or not now.startswith("/"):
            continue
        found = mounting.filesystem_of(Path(now))
        if found is None or found.fstype == mounting.FSTYPE:
            continue
        if found.fstype in (*NETWORK, "tmpfs", "ramfs"):
            cost = "slow and unsafe to share" if found.fstype in NETWORK else "lost at a reboot, and counts as memory"
            yield Finding(
                NOTE, framework.name, f"keeps its cache at {now}, on {found.fstype}: {cost}", 'eval "$(kcachefs env)"'
            )
    temporary = mounting.filesystem_of(Path(tempfile.gettempdir()))
    if temporary is not None and "noexec" in temporary.options.split(","):
        yield Finding(
            NOTE,
            tempfile.gettempdir(),
            "is noexec, and TorchInductor's cache is there unless it is told otherwise",
            'eval "$(kcachefs env)"',
        )


def header_link() -> Iterator[Finding]:
    place = headers.place_of_headers()
    target = headers.leads_to(place)
    if target is not None and not target.is_dir():
        yield Finding(
            PROBLEM,
            "torch's header",
            f"{place} leads to {target}, which is not there: torch.compile fails",
            f"rm {place}",
        )
    elif place.is_dir() and not place.is_symlink():
        yield Finding(
            NOTE,
            "torch's header",
            f"{place} is a folder of its own, and is left alone",
            f"to have it in the mount: kcachefs adopt {place}, then rm -r {place}",
        )


# --- asking ----------------------------------------------------------------------------------------------------------


def _answers(mountpoint: Path) -> bool:
    answered: list[bool] = []

    def ask() -> None:
        try:
            os.statvfs(mountpoint)
        except OSError:
            return
        answered.append(True)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    return bool(answered)


def _engine(mountpoint: Path) -> str:
    """What serves a mount of this user; nothing for those of others."""
    with contextlib.suppress(KcachefsError, OSError):
        state = registry.read(str(mountpoint))
        return state.engine if state is not None else ""
    return ""


def _filled_at(mountpoint: Path) -> str | None:
    """Another path at which Triton wrote into this mount, as its group files tell; None when it is this one."""
    others: list[str] = []
    for group in _some_groups(mountpoint / "triton"):
        try:
            paths = list(json.loads(group.read_bytes())["child_paths"].values())
        except (OSError, ValueError, KeyError, AttributeError):
            continue
        if not paths:
            continue
        wrote = Path(paths[0]).parent.parent
        if wrote == mountpoint / "triton":
            return None
        if wrote.name == "triton":
            others.append(str(wrote.parent))
    return others[0] if others else None


def _some_groups(folder: Path) -> Iterator[Path]:
    seen = 0
    try:
        with os.scandir(folder) as kernels:
            for kernel_folder in kernels:
                for group in Path(kernel_folder.path).glob("__grp__*.json"):
                    yield group
                    seen += 1
                if seen >= GROUPS_SAMPLED:
                    return
    except OSError:
        return


def _free(path: Path) -> int:
    for folder in (path, *path.absolute().parents):
        try:
            found = os.statvfs(folder)
        except OSError:
            continue
        return found.f_bavail * found.f_frsize
    return 0
