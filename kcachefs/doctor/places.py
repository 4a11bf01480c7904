"""Checks where the store and the caches of frameworks and Python are, and torch's link to its precompiled header."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from kcachefs import config
from kcachefs.daemon import registry
from kcachefs.daemon.registry import MountConfig
from kcachefs.doctor.finding import NOTE, OK, PROBLEM, Finding
from kcachefs.engines import mounting
from kcachefs.errors import KcachefsError
from kcachefs.frameworks import bytecode as pycs
from kcachefs.frameworks import headers
from kcachefs.frameworks.environment import installed_version, where_now
from kcachefs.frameworks.records import FRAMEWORKS
from kcachefs.mounts import config_files
from kcachefs.mounts.making import shortage
from kcachefs.mounts.settings import mount_settings
from kcachefs.store.places import closed_folder

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

_KEEP_BYTECODE = 'eval "$(kcachefs env)", or kcachefs run: both keep it in a mount'


def store_location(store: Path) -> Iterator[Finding]:
    if (closed := closed_folder(store)) is not None:
        yield Finding(
            PROBLEM,
            "store",
            f"{store} cannot be made: no permission to write to {closed}",
            "choose a directory that you may write to, with --store DIR",
        )
        return
    found = mounting.filesystem_of(store)
    yield judge_store(store, found.fstype if found is not None else "unknown")


def judge_store(store: Path, fstype: str) -> Finding:
    if fstype in NETWORK:
        return Finding(
            PROBLEM,
            "store",
            f"{store} is on {fstype}, where its catalog does not work",
            "choose a directory on a local disk, with --store DIR",
        )
    if fstype in ("tmpfs", "ramfs"):
        return Finding(
            NOTE,
            "store",
            f"{store} is in memory ({fstype}) and lost at a reboot",
            "choose a directory on a disk, with --store DIR",
        )
    if fstype == "overlay":
        return Finding(
            NOTE,
            "store",
            f"{store} is in a container's own layer and lost with it",
            "choose a directory on a volume, with --store DIR",
        )
    if fstype == mounting.FSTYPE:
        return Finding(
            PROBLEM,
            "store",
            f"{store} is inside a kcachefs mount",
            "choose a directory outside of it, with --store DIR",
        )
    return Finding(OK, "store", f"{store} on {fstype}, {config.format_size(_free(store))} free")


def configuration(store: Path) -> Iterator[Finding]:
    """Whether the present configuration allows the next mount of the store, and whether the disk has room for it."""
    try:
        settings = mount_settings(store.with_name(f"{store.name}.mount"), store)
    except KcachefsError as error:
        message, _, remedy = str(error).partition("; ")
        yield Finding(PROBLEM, "configuration", message, remedy or "correct it; see: kcachefs config")
        return
    if all(state.store != settings.store for state in registry.all_mounts()):
        yield from disk_space(settings)


def disk_space(settings: MountConfig) -> Iterator[Finding]:
    """Whether the disk has as much free space as the mount has to leave free."""
    if complaint := shortage(settings):
        message, _, remedy = complaint.partition("; ")
        yield Finding(PROBLEM, "disk", message, remedy)


def cache_locations(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Finds caches of installed frameworks that are outside any mount, on filesystems that do not suit them."""
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
    folder = headers.temporary_folder()
    temporary = mounting.filesystem_of(folder)
    if temporary is not None and "noexec" in temporary.options.split(","):
        yield Finding(
            NOTE,
            str(folder),
            "is noexec, and TorchInductor's cache is there unless it is told otherwise",
            'eval "$(kcachefs env)"',
        )


def header_link() -> Iterator[Finding]:
    place = headers.header_folder()
    target = headers.link_target(place)
    # We use os.path here, because Path would raise the ENOTCONN of a dead mount.
    if target is not None and not os.path.isdir(target):
        yield Finding(
            PROBLEM,
            "torch's header",
            f"{place} links to {target}, which does not exist: torch.compile fails",
            f"rm {place}",
            partial(headers.unlink, target.parent),
        )
    elif os.path.isdir(place) and not place.is_symlink():
        yield Finding(
            NOTE,
            "torch's header",
            f"{place} is an ordinary folder, and kcachefs leaves it alone",
            f"to keep it in the mount: kcachefs adopt {place}, then rm -r {place}",
        )


def bytecode(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Where a command that is started here would keep Python's bytecode, and why."""
    judged = pycs.judge_command([], environ, _wish())
    if judged.is_used and not environ.get(pycs.PREFIX):
        yield Finding(NOTE, "Python's bytecode", f"{judged.reason}: each start compiles it again", _KEEP_BYTECODE)
    elif judged.is_used:
        yield Finding(OK, "Python's bytecode", f"is kept in the mount: {judged.reason}")
    else:
        yield Finding(OK, "Python's bytecode", f"is left to Python: {judged.reason}")


def _wish() -> str:
    with contextlib.suppress(KcachefsError):
        for _, values in config_files.read_all():
            if "bytecode" in values:
                return str(values["bytecode"])
    return "auto"


def _free(path: Path) -> int:
    for folder in (path, *path.absolute().parents):
        try:
            found = os.statvfs(folder)
        except OSError:
            continue
        return found.f_bavail * found.f_frsize
    return 0
