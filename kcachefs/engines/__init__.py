"""Engines: what speaks with the kernel. Both are thin over the one core."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol

from kcachefs.errors import MountError

if TYPE_CHECKING:
    from kcachefs.core import Filesystem

ENGINES = ("direct", "pyfuse3")


class Engine(Protocol):
    """What the worker asks of an engine."""

    @property
    def requests(self) -> int:
        """How many requests were answered so far."""

    async def run(self) -> None:
        """Answer requests until the filesystem is unmounted."""

    def statistics(self) -> dict[str, int]:
        """Requests so far, by name."""

    def attention(self) -> object:
        """What it is at, None when it waits: the same thing for long means that it hangs."""


def make_engine(
    name: str,
    fs: Filesystem,
    device: int,
    intake: int,
    herald: socket.socket,
    *,
    resumed: bool = False,
    resend: bool = True,
) -> Engine:
    """The engine of that name on a /dev/fuse descriptor that is mounted already."""
    if name == "pyfuse3":
        try:
            from kcachefs.engines.pyfuse3 import Pyfuse3Engine
        except ImportError as error:
            raise MountError(f"--engine pyfuse3: {error}; install it with: pip install 'kcachefs[pyfuse3]'") from None
        return Pyfuse3Engine(fs, device)
    from kcachefs.engines.direct import DirectEngine
    from kcachefs.engines.intake import Intake

    return DirectEngine(fs, device, Intake(intake), herald, resumed=resumed, resend=resend)
