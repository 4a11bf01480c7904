"""Removes the links to a mount's precompiled headers when its daemon is killed: torch fails on a link to a dead mount.

A shell waits until every process of the daemon is gone, because a shell takes far less memory than Python. It reads
from a pipe that nobody writes to; the supervisor and its workers hold the other end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import tempfile
from pathlib import Path

from kcachefs import own_python

log = logging.getLogger(__name__)

_WAIT = 'read -r _; exec "$@"'
_MOUNT = "HEADERS_OF_MOUNT"
_LINK = "precompiled_headers"
"""The name of the link, and of the namespace that it leads to; frameworks/headers.py makes it."""


class HeaderGuard:
    """The supervisor's side: `lifeline` is the descriptor that every worker inherits."""

    def __init__(self, mountpoint: str) -> None:
        self._mountpoint = Path(mountpoint)
        self._process: subprocess.Popen[bytes] | None = None
        read_end, self.lifeline = os.pipe()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KCACHEFS_")}
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WAIT, "sh", *own_python.command("kcachefs.daemon.header_guard")],
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=own_python.environment({**environment, _MOUNT: mountpoint}),
                cwd=own_python.DIRECTORY,
                start_new_session=True,
            )
        except OSError as error:
            log.warning("torch's links to %s will stay if the daemon is killed: %s", mountpoint, error)
        finally:
            os.close(read_end)

    def end(self) -> None:
        """The mount is gone: remove the links now."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        os.close(self.lifeline)
        unlink_all(self._mountpoint)


def unlink_all(mount: Path) -> None:
    """Remove every user's link to this mount, as far as we may."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as folders:
        for folder in folders:
            if folder.name.startswith("torchinductor_"):
                _unlink_in(folder.path, mount)


def _unlink_in(folder: str, mount: Path) -> None:
    """Remove the link through a descriptor: the folder's owner could swap the folder for a link after our check."""
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.readlink(_LINK, dir_fd=opened) == str(mount / _LINK):
                os.unlink(_LINK, dir_fd=opened)
        finally:
            os.close(opened)


def main() -> None:
    with contextlib.suppress(KeyError):
        unlink_all(Path(os.environ[_MOUNT]))


if __name__ == "__main__":
    main()
