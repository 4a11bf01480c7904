"""Reads what a mount reports in its `.kcachefs` folder: for users who may not ask its daemon."""

from __future__ import annotations

import errno
import time
from pathlib import Path

from kcachefs.errors import MountError

STATISTICS, SETTLED, ENTRIES = "stats.json", "settled.json", "entries.json"
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.05


def read(mount: Path, name: str) -> bytes:
    """A file of the folder, as this user may see it."""
    from kcachefs.core.report_folder import FOLDER  # with it comes the store, which commands on their own mount spare

    path = mount / FOLDER.decode() / name
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return path.read_bytes()
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise MountError(f"{mount}: does not report {name} ({error.strerror})") from None
            if time.monotonic() > until:
                raise MountError(f"{mount}: is busy with other users' reports; try again") from None
        time.sleep(_PAUSE_SECONDS)  # it makes one report at a time
