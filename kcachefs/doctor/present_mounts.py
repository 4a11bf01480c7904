"""Checks the mounts of the host: whether they answer, allow execution, and are at the path where they were filled.

Asking a mount that does not answer, or the disk of its store, can block forever. So each is asked from a thread of its
own, which is abandoned if it does not return. All are asked at once, so that many silent ones take no longer than one.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from kcachefs.core.report import Statistics
from kcachefs.daemon import control, registry
from kcachefs.daemon.registry import MountConfig
from kcachefs.doctor.finding import NOTE, OK, PROBLEM, Finding
from kcachefs.doctor.places import disk_space
from kcachefs.engines import mounting
from kcachefs.errors import KcachefsError
from kcachefs.mounts import ending
from kcachefs.mounts.insight_reports import InsightReports
from kcachefs.store.places import HEADER

ANSWER_SECONDS = 5.0
GROUPS_SAMPLED = 20


def mounts(table: Iterable[mounting.Mounted]) -> Iterator[Finding]:
    """Finds mounts that are dead, that do not allow execution, that lack room, or that were filled at another path."""
    dead = {state.mountpoint: state for state in registry.dead_mounts()}
    ours = [mount for mount in table if mount.fstype == mounting.FSTYPE]
    answers = [(_ask_store(Path(mount.mountpoint)), _ask(partial(os.statvfs, mount.mountpoint))) for mount in ours]
    for mount, (trouble_with_store, is_answering) in zip(ours, answers, strict=True):
        where = Path(mount.mountpoint)
        trouble = trouble_with_store()
        if trouble is not None:
            yield trouble
            continue
        if not is_answering():
            yield _silent(mount, dead.get(mount.mountpoint))
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
                f"{where} was filled at {elsewhere}: cached files hold that path, and are not found at this one",
                f"mount it at {elsewhere} here too (docker run -v {elsewhere}:{elsewhere}:rslave)",
            )
        yield from _disk_space(where)
        yield from _refused_writes(where)
        if _engine(where) == "pyfuse3":
            yield Finding(
                NOTE,
                "mount",
                f"{where} is served by pyfuse3, and does not survive its daemon",
                f"kcachefs umount {where}; kcachefs mount {where} --engine direct",
            )
        elif "noexec" not in mount.options.split(",") and elsewhere is None:
            yield Finding(OK, "mount", f"{where} answers")


def _silent(mount: mounting.Mounted, ours: registry.MountState | None) -> Finding:
    where = Path(mount.mountpoint)
    said = f"{where} does not answer"
    if ours is not None:
        mend = partial(ending.unmount, where, lazy=True)
        return Finding(PROBLEM, "mount", said, registry.repair(ours), mend)
    unmount = f"kcachefs umount --lazy {where}"
    if os.geteuid() not in (0, mount.owner):
        return Finding(NOTE, "mount", f"{said}, and is another user's", f"ask its owner, or root, to run: {unmount}")
    return Finding(PROBLEM, "mount", said, unmount)


def _ask(question: Callable[[], object]) -> Callable[[], bool]:
    """Begin to ask, and return a function that waits and says whether an answer came in time and without an error."""
    answered = threading.Event()
    until = time.monotonic() + ANSWER_SECONDS

    def ask() -> None:
        with contextlib.suppress(OSError):
            question()
            answered.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()

    def wait() -> bool:
        thread.join(max(0.0, until - time.monotonic()))
        return answered.is_set()

    return wait


def _ask_store(mountpoint: Path) -> Callable[[], Finding | None]:
    """Begin to ask what keeps a mount of this user from reading or writing its store.

    The mount itself may answer from memory even then. Returns a function that waits and returns the finding, or None if
    nothing is wrong.
    """
    state = registry.read(str(mountpoint))
    if state is None or not state.alive:
        return lambda: None
    store = Path(state.store)
    found: list[Finding | None] = []
    is_answering = _ask(lambda: found.append(_trouble_with_header(mountpoint, store)))

    def wait() -> Finding | None:
        if is_answering():
            return found[0]
        said = f"{mountpoint}: its store {store} does not answer"
        return Finding(PROBLEM, "mount", said, f"look at the disk (dmesg), then kcachefs umount --lazy {mountpoint}")

    return wait


def _trouble_with_header(mountpoint: Path, store: Path) -> Finding | None:
    again = f"kcachefs umount {mountpoint}; kcachefs mount {mountpoint}"
    try:
        with (store / HEADER).open("rb") as header:
            os.posix_fadvise(header.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # ask the disk, not the page cache
            header.read(1)
            is_read_only = bool(os.fstatvfs(header.fileno()).f_flag & os.ST_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return Finding(PROBLEM, "mount", f"{mountpoint}: its store {store} is gone", again)
    except PermissionError:
        return None
    except OSError as error:
        said = f"{mountpoint}: its store {store} cannot be read: {error.strerror}"
        return Finding(PROBLEM, "mount", said, f"look at the disk (dmesg), then {again} --store on another one")
    if is_read_only:
        said = f"{mountpoint}: its store {store} is on a read-only filesystem: every write fails"
        return Finding(PROBLEM, "mount", said, "look at the disk (dmesg), and make it writable again")
    return None


def _disk_space(mountpoint: Path) -> Iterator[Finding]:
    """Whether the disk of this user's mount has as much free space as the mount's present settings leave free."""
    with contextlib.suppress(KcachefsError, OSError):
        if registry.read(str(mountpoint)) is not None:
            yield from disk_space(control.ask_mount(mountpoint, "settings", MountConfig, seconds=ANSWER_SECONDS))


def _refused_writes(mountpoint: Path) -> Iterator[Finding]:
    """Whether the store of this user's mount refused the last write."""
    with contextlib.suppress(KcachefsError, OSError):
        if registry.read(str(mountpoint)) is not None:
            told = control.ask_mount(mountpoint, "stats", Statistics, seconds=ANSWER_SECONDS)
            if told.store.trouble:
                said = f"{mountpoint}: nothing can be written to its store: {told.store.trouble}"
                yield Finding(PROBLEM, "mount", said, "look at the disk (dmesg), and make it writable again")


def _engine(mountpoint: Path) -> str:
    """The engine that serves this user's mount; empty for another user's mount."""
    with contextlib.suppress(KcachefsError, OSError):
        state = registry.read(str(mountpoint))
        return state.engine if state is not None else ""
    return ""


def _filled_at(mountpoint: Path) -> str | None:
    """The other path at which Triton wrote into this mount, as its group files show; None if there is none.

    A single group file that was written at the present path is enough for None.
    """
    others: list[str] = []
    for group in _some_groups(mountpoint):
        try:
            paths = list(json.loads(group)["child_paths"].values())
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            continue
        if not paths or not isinstance(paths[0], str):
            continue
        written_to = Path(paths[0]).parent.parent
        if written_to == mountpoint / "triton":
            return None
        if written_to.name == "triton":
            others.append(str(written_to.parent))
    return others[0] if others else None


def _some_groups(mountpoint: Path) -> Iterator[bytes]:
    """Triton's group files, requested as artefacts: opening them would be a use of their entries."""
    with contextlib.suppress(KcachefsError, OSError):
        asked = InsightReports.of(mountpoint)
        entries = [one.entry for one in asked.entries() if one.path.startswith("triton/")]
        for group in asked.artifacts(entries[:GROUPS_SAMPLED], ["__grp__*.json"]):
            if group.content is not None:
                yield group.content
