"""Checks what a user asked of a mount and turns it into a `MountConfig`. Touches no file and starts nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from kcachefs import config
from kcachefs.core.limits import Limits
from kcachefs.core.sharing import Sharing, check, parse_writers
from kcachefs.daemon.logs import FORMATS
from kcachefs.daemon.registry import MountConfig
from kcachefs.engines import ENGINES, mounting
from kcachefs.errors import UsageError

LEAST_MAX_SIZE = 1 << 20
_ID_MAX = (1 << 32) - 2


def mount_settings(
    directory: Path,
    store: Path | None = None,
    *,
    max_size: str = config.DEFAULT_MAX_SIZE,
    max_files: int = 0,
    min_free: str = config.DEFAULT_MIN_FREE,
    grace: float = 30.0,
    floors: Sequence[str] = (),
    ceilings: Sequence[str] = (),
    max_size_per_uid: str = "0",
    tenant_ranges: Sequence[str] = (),
    engine: str = "direct",
    sharing: Sharing | None = None,
    allow_other: bool | None = None,
    log_format: str = "text",
    hang_seconds: float = 30.0,
) -> MountConfig:
    """The settings of a mount; raises UsageError for anything that makes no sense.

    `allow_other` None means: root shares the mount with other users, and so does a user where /etc/fuse.conf lets them.
    """
    if engine not in ENGINES:
        raise UsageError(f"engine {engine}: unknown; use direct or pyfuse3")
    if log_format not in FORMATS:
        raise UsageError(f"log format {log_format}: unknown; use text or json")
    if sharing is not None and sharing.idmap and engine != "direct":
        raise UsageError(f"--idmap: does not work with --engine {engine}; leave out one of the two")
    # realpath stops at a dead mount, which is as far as the path needs to be resolved.
    mountpoint = os.path.realpath(directory)
    store_path = os.path.abspath(store or config.default_store())
    for path in (mountpoint, store_path):
        try:
            path.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{path!r}: is not UTF-8; choose another name") from None
    if _is_inside(os.path.realpath(store_path), mountpoint) or _is_inside(mountpoint, os.path.realpath(store_path)):
        raise UsageError(f"{mountpoint}: a mount and its store cannot be inside each other; choose another --store")
    inside = mounting.filesystem_of(Path(store_path))
    if inside is not None and inside.fstype == mounting.FSTYPE:
        raise UsageError(f"{store_path}: is inside the mount {inside.mountpoint}; choose another --store")
    quota = config.parse_size(max_size, least=1)
    if quota < LEAST_MAX_SIZE:
        least = config.format_size(LEAST_MAX_SIZE)
        raise UsageError(f"--max-size {max_size}: is too small for any cache; give at least {least}")
    _check_bounds(quota, _sizes_by_namespace(floors), _sizes_by_namespace(ceilings))
    return MountConfig(
        mountpoint=mountpoint,
        store=store_path,
        engine=engine,
        limits=Limits(
            max_size=quota,
            max_files=max_files,
            max_size_per_uid=config.parse_size(max_size_per_uid),
            tenant_ranges=_tenant_ranges(tenant_ranges),
            min_free=config.parse_size(min_free),
            grace=grace,
            floors=_sizes_by_namespace(floors),
            ceilings=_sizes_by_namespace(ceilings),
        ),
        sharing=sharing or Sharing(),
        allow_other=mounting.may_allow_other() if allow_other is None else allow_other,
        log_format=log_format,
        hang_seconds=hang_seconds,
        resend=config.use_resend(),
    )


def sharing_settings(
    policy: str = "",
    *,
    read_only: bool = False,
    writers: Sequence[str] = (),
    base: bool = False,
    uid: int | None = None,
    gid: int | None = None,
    umask: str | None = None,
    idmap: bool = False,
) -> Sharing:
    """How a mount is shared; raises UsageError for combinations that make no sense."""
    if read_only and policy not in ("", "read-only"):
        raise UsageError(f"--read-only: means --policy read-only, so --policy {policy} contradicts it; drop one")
    if umask is not None and not re.fullmatch("[0-7]{1,4}", umask):
        raise UsageError(f"--umask {umask}: is not an octal mask; write it like 022")
    for option, number in (("--uid", uid), ("--gid", gid)):
        if number is not None and number > _ID_MAX:
            raise UsageError(f"{option} {number}: is no possible id; the largest is {_ID_MAX}")
    uids, gids = parse_writers(writers)
    if base and not writers and os.geteuid() == 0:
        # In most containers every user is root, so root must not become a writer without being named.
        raise UsageError("--base: when root mounts, name who writes the base with --writers, for example uid:0")
    return check(
        Sharing(
            policy="read-only" if read_only else policy or "shared",
            writer_uids=uids,
            writer_gids=gids,
            base=base,
            uid=uid,
            gid=gid,
            umask=int(umask, 8) & 0o777 if umask is not None else None,
            idmap=idmap,
        )
    )


def _check_bounds(quota: int, floors: dict[str, int], ceilings: dict[str, int]) -> None:
    for name, floor in floors.items():
        if name in ceilings and floor > ceilings[name]:
            raise UsageError(f"--floor {name}: is above its --ceiling, so both cannot hold; lower it")
    if sum(floors.values()) > quota:
        raise UsageError("--floor: together the floors are above --max-size, so nothing could be evicted; lower them")


def _tenant_ranges(texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for text in filter(None, ",".join(texts).split(",")):
        found = re.fullmatch(r"(\d{1,10}):(\d{1,10})", text.strip(), re.ASCII)
        first, count = (int(found[1]), int(found[2])) if found is not None else (0, 0)
        if not count or first + count - 1 > _ID_MAX:
            raise UsageError(f"--tenant-range {text}: is no range of users; write FIRST:COUNT, like 100000:65536")
        if any(first < other + size and other < first + count for other, size in ranges):
            raise UsageError(f"--tenant-range {text}: overlaps another one, so its users would be two tenants")
        ranges.append((first, count))
    return tuple(ranges)


def _sizes_by_namespace(texts: Sequence[str]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        name, equals, size = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r}: is not NAMESPACE=SIZE; write it like triton=2GiB")
        sizes[name] = config.parse_size(size)
    return sizes


def _is_inside(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder
