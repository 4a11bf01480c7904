"""Reads what a mount reports in its `.kcachefs` folder: any user may, without a connection to its daemon."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from kcachefs.errors import MountError

FOLDER = ".kcachefs"
STATISTICS, SETTLED, ENTRIES = "stats.json", "settled.json", "entries.json"
_T = TypeVar("_T")
_ASK_AGAIN = (errno.EAGAIN, errno.ESTALE)
"""Only one report is made at a time, and a worker that takes over does not know its predecessor's reports."""
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.05


def read(mount: Path, name: str) -> bytes:
    """A file of the folder, with the data that this user may see."""
    path = mount / FOLDER / name
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return path.read_bytes()
        except OSError as error:
            if error.errno not in _ASK_AGAIN:
                raise MountError(f"{mount}: does not report {name} ({error.strerror})") from None
            if time.monotonic() > until:
                raise MountError(f"{mount}: was busy with other reports for a minute; try again") from None
        time.sleep(_PAUSE_SECONDS)


def decoded(raw: bytes, kind: type[_T], what: str) -> _T:
    """The decoded report; `MountError` if it is cut short, as by a mount that ends, or of another version."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise MountError(f"the mount's report of {what} is not understood ({error})") from None
