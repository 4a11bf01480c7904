"""Writes a file for a user: it appears only when it is whole, and never replaces anything but an ordinary file."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kcachefs.errors import UsageError


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write. It replaces the file at `path`, or the target of a link there, when the scope succeeds.

    Anything but an ordinary file (/dev/null, a pipe, a terminal) is written to directly: root would replace it for
    everybody.
    """
    place = Path(os.path.realpath(path))
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = 0
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path}: is a folder; name a file in it")
    # /dev/stdout may lead to a file that has no name any more.
    if mode and not (stat.S_ISREG(mode) and place.exists()):
        with open(path, "wb") as file:
            yield file
        return
    try:
        handle, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    except OSError as error:  # the error names the temporary file
        raise type(error)(error.errno, error.strerror, str(path)) from None
    try:
        with open(handle, "wb") as file:
            umask = os.umask(0o077)
            os.umask(umask)
            os.fchmod(handle, 0o666 & ~umask)
            yield file
        os.replace(name, place)
    except BaseException:
        os.unlink(name)
        raise
