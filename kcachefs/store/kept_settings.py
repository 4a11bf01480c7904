"""The settings that a store keeps for its next mount, and for the next worker of the present mount."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from kcachefs.errors import NotAStore
from kcachefs.store.descriptor import replace_file

NAME = "settings.json"
"""What `kcachefs set` changed, for the next mount."""
LIVE = "settings.live.json"
"""The configuration of the present mount after the last change."""
_SIZE_MAX = 1 << 20


def read(store: Path, name: str = NAME) -> dict[str, Any]:
    """The kept values by the names of their options; empty if the store keeps none, or belongs to somebody else.

    Somebody else's store cannot be mounted: opening it says why.
    """
    try:
        fd = os.open(store / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return {}
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return {}
        return msgspec.json.decode(os.read(fd, _SIZE_MAX), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, IsADirectoryError) as error:
        raise NotAStore(f"{store / name}: is damaged ({error}); remove it to have the defaults again") from None
    finally:
        os.close(fd)


def write(store: Path, values: dict[str, Any], name: str = NAME) -> None:
    """Keep these values and no others. A kill or a power cut leaves the old ones or the new ones."""
    from kcachefs.store.header import clear_errors  # imported here because it loads LMDB, which `read` does not need

    with clear_errors(store):
        replace_file(store / name, msgspec.json.format(msgspec.json.encode(values)) + b"\n")
