"""How a mount is shared: the policy, who may write, and who seems to own its files. Plain data, checked here."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kcachefs.core.caller import Caller
from kcachefs.errors import UsageError

POLICIES = ("shared", "publish", "private", "read-only")


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """What the options of a mount say about its users."""

    policy: str = "shared"
    writer_uids: tuple[int, ...] = ()
    writer_gids: tuple[int, ...] = ()
    """Who may write where others only read: on a read-only mount, or in the base of a private one."""
    base: bool = False
    """Private trees show what the writers keep in the shared tree, below what users have of their own."""
    uid: int | None = None
    gid: int | None = None
    umask: int | None = None
    """The owner, group and mask of modes that everything appears with; None: as it is."""
    idmap: bool = False
    """The mount may be bound with other user ids (mount --bind -o X-mount.idmap=…).

    The kernel then names a user only in requests that create something, so `.kcachefs` shows no numbers.
    """

    @property
    def squashes(self) -> bool:
        return not (self.uid is None and self.gid is None and self.umask is None)

    def is_writer(self, caller: Caller) -> bool:
        """Whether a caller is among the writers. /proc shows its other groups while the process waits for us."""
        if caller.uid in self.writer_uids or caller.gid in self.writer_gids:
            return True
        return bool(self.writer_gids) and caller.pid > 0 and not groups_of(caller.pid).isdisjoint(self.writer_gids)


def groups_of(pid: int) -> set[int]:
    """The supplementary groups of a process that waits for us; none if it cannot be seen."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("Groups:"):
                return set(map(int, line[7:].split()))
    return set()


def parse_writers(texts: Sequence[str], flag: str = "--writers") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The users and the groups of lists like `uid:1000,gid:50`; a bare number is a user.

    >>> parse_writers(["uid:1000,gid:50", "0"])
    ((1000, 0), (50,))
    """
    uids: list[int] = []
    gids: list[int] = []
    for part in filter(None, ",".join(texts).split(",")):
        found = re.fullmatch(r"(?:(uid|gid):)?(\d{1,10})", part.strip(), re.ASCII)
        if found is None or int(found[2]) >= (1 << 32) - 1:
            raise UsageError(f"{flag} {part}: is not a user or a group; write it like uid:1000,gid:50")
        (gids if found[1] == "gid" else uids).append(int(found[2]))
    return tuple(uids), tuple(gids)


def check(sharing: Sharing) -> Sharing:
    """These settings, if they make sense together; raises UsageError otherwise."""
    if sharing.policy not in POLICIES:
        raise UsageError(f"--policy {sharing.policy}: is not known; choose one of {', '.join(POLICIES)}")
    if sharing.base and sharing.policy != "private":
        raise UsageError("--base: works only with --policy private; add it")
    writes = sharing.writer_uids or sharing.writer_gids
    if writes and sharing.policy != "read-only" and not sharing.base:
        raise UsageError("--writers: works only with --policy read-only, or with --policy private --base")
    if sharing.squashes and sharing.policy not in ("shared", "read-only"):
        raise UsageError(
            f"--uid, --gid, --umask: hide who owns a file, which --policy {sharing.policy} depends on; leave them out"
        )
    if sharing.idmap and sharing.policy != "shared":
        raise UsageError("--idmap: works only with --policy shared, because the kernel then does not say who asks")
    return sharing
