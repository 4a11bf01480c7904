"""Removes the links to a mount's precompiled headers when its daemon is killed: torch fails on a link to a dead mount.

A shell waits until every process of the daemon is gone, because it takes far less memory than Python: it reads from a
pipe whose other end the supervisor and its workers hold, and nobody writes to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from pathlib import Path

from kcachefs import own_python

log = logging.getLogger(__name__)

_WAIT = 'read -r _; exec "$@"'
_MOUNT = "HEADERS_OF_MOUNT"


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
                env={**environment, _MOUNT: mountpoint},
                cwd=own_python.DIRECTORY,
                start_new_session=True,
            )
        except OSError as error:
            log.warning("torch's links to %s will stay if the daemon is killed: %s", mountpoint, error)
        finally:
            os.close(read_end)

    def end(self) -> None:
        """The mount is gone: remove the links now."""
        from kcachefs.frameworks import headers

        if self._process is not None:
            self._process.kill()
            self._process.wait()
        os.close(self.lifeline)
        headers.unlink_all(self._mountpoint)


def main() -> None:
    from kcachefs.frameworks import headers

    with contextlib.suppress(KeyError):
        headers.unlink_all(Path(os.environ[_MOUNT]))


if __name__ == "__main__":
    main()
