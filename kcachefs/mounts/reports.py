"""Reads what a mount reports in its `.kcachefs` folder: for users who may not ask its daemon."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from kcachefs.errors import MountError

STATISTICS, SETTLED, ENTRIES = "stats.json", "settled.json", "entries.json"
_T = TypeVar("_T")
_ASK_AGAIN = (errno.EAGAIN, errno.ESTALE)
"""One report is made at a time, and a worker that takes over knows none of those before it."""
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.05


def read(mount: Path, name: str) -> bytes:
    """A file of the folder, as this user may see it."""
    from kcachefs.core.report_folder import FOLDER  # it imports the store, which most commands do not need

    path = mount / FOLDER.decode() / name
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return path.read_bytes()
        except OSError as error:
            if error.errno not in _ASK_AGAIN:
                raise MountError(f"{mount}: does not report {name} ({error.strerror})") from None
            if time.monotonic() > until:
                raise MountError(f"{mount}: does not report {name} for now ({error.strerror}); try again") from None
        time.sleep(_PAUSE_SECONDS)


def decoded(raw: bytes, kind: type[_T], what: str) -> _T:
    """What a report says; `MountError` if it is cut short, as by a mount that ends, or of another version."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise MountError(f"the mount's report of {what} is not understood ({error})") from None
