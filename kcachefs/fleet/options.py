"""A mount's settings for its fleet, as plain data."""

from __future__ import annotations

import msgspec

MODES = ("read", "publish")
"""Only take entries from the bucket, or also publish what is compiled here."""
FOLDER = "fleet"
"""The folder in a store that belongs to its agent: the index, and packs while they are checked or made."""


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `kcachefs mount` that begin with `--fleet`, and `--trust`."""

    url: str
    mode: str = "read"
    trust: tuple[str, ...] = ()
    """Public keys, or files that hold one, in addition to those in the configuration's folders."""
    key: str = ""
    """The file of the secret key that signs what is published."""
    writer_uids: tuple[int, ...] = ()
    writer_gids: tuple[int, ...] = ()
    """The users and groups whose entries are published; if both are empty, only the mount owner's are."""
    scope: str = ""
    """The part of the bucket to use; if empty, the machine and its GPUs decide."""

    @property
    def publishes(self) -> bool:
        return self.mode == "publish"
