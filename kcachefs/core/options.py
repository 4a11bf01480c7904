"""How a filesystem is mounted, and the numbers that it shows. Plain data."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from kcachefs.core.limits import Limits
from kcachefs.core.sharing import Sharing

BLOCK = 4096
NAME_MAX = 255
FOREVER_SECONDS = 3600
"""How long the kernel may trust names and attributes: every change goes through it, or is announced to it."""
PREFERRED_SIZE = 64 << 10
"""The block size that stat reports: C programs, gcc among them, then write 8 KiB at a time instead of 4."""


class FsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a filesystem is mounted."""

    limits: Limits = Limits()
    uid: int = 0
    gid: int = 0
    sharing: Sharing = Sharing()
    metrics_gid: int | None = None
    """The group whose members may read the metrics of the whole mount."""
    resumed: bool = False
    """The mount exists already, and its last worker died."""


class Statfs(msgspec.Struct, frozen=True):
    """What df shows: the quota as the size, and what is left of it, or of the disk beneath if that is less."""

    blocks: int
    free: int
    files: int
    files_free: int
    block_size: int = BLOCK
    name_max: int = NAME_MAX


class AttributeChanges(TypedDict, total=False):
    """What `set_attributes` can change; None leaves a field as it is. Times are nanoseconds."""

    mode: int | None
    uid: int | None
    gid: int | None
    size: int | None
    atime: int | None
    mtime: int | None
