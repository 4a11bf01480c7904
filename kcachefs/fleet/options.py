"""What a mount is told about its fleet. Plain data."""

from __future__ import annotations

import msgspec

MODES = ("read", "publish")
"""Take entries from the bucket; or also put there what is compiled here."""
FOLDER = "fleet"
"""The folder in a store that belongs to its agent: the index, and packs while they are checked or made."""


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `kcachefs mount` that begin with `--fleet`, and `--trust`."""

    url: str
    mode: str = "read"
    trust: tuple[str, ...] = ()
    """Public keys, or files that hold one, beside those of the configuration's folders."""
    key: str = ""
    """The file of the secret key that signs what is published."""
    writer_uids: tuple[int, ...] = ()
    writer_gids: tuple[int, ...] = ()
    """Whose entries are published; with neither, the mount owner's."""
    scope: str = ""
    """Which part of the bucket; empty: by the machine and its GPUs."""

    @property
    def publishes(self) -> bool:
        return self.mode == "publish"
