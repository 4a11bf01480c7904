"""Engines speak with the kernel. Both are thin layers over the one core.

An engine comes in two halves, because the filesystem stands between them: the kernel that the filesystem tells of
changes is made first, then the filesystem, then the engine that serves it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kcachefs.errors import MountError

if TYPE_CHECKING:
    from kcachefs.core import Filesystem
    from kcachefs.core.kernel import Kernel

ENGINES = ("direct", "pyfuse3")


class Engine(Protocol):
    """What the worker asks of an engine."""

    def serve(self) -> None:
        """Answer requests until the filesystem is unmounted."""

    def stop(self) -> None:
        """No more requests need an answer. Called from another thread, also when `serve` has ended by itself."""

    def request_at_hand(self) -> object:
        """What it is working on; None while it waits. If the answer stays the same for long, the engine hangs."""


def prepare_engine(
    name: str, device: int, requests: int, relay: socket.socket, *, resumed: bool = False, resend: bool = True
) -> tuple[Kernel, Callable[[Filesystem], Engine]]:
    """The kernel behind a /dev/fuse descriptor that is mounted already, and what makes the engine of that name for it.

    `requests` is the memory of the request buffer, `relay` leads to the supervisor's notification relay.
    """
    if name == "pyfuse3":
        try:
            from kcachefs.engines.pyfuse3 import Pyfuse3Engine
            from kcachefs.engines.pyfuse3_kernel import Pyfuse3Kernel
        except ImportError as error:
            raise MountError(f"--engine pyfuse3: {error}; install it with: pip install 'kcachefs[pyfuse3]'") from None
        through_libfuse = Pyfuse3Kernel()
        return through_libfuse, lambda fs: Pyfuse3Engine(fs, device, through_libfuse)
    from kcachefs.engines.direct import DirectEngine
    from kcachefs.engines.direct_kernel import DirectKernel
    from kcachefs.engines.request_buffer import RequestBuffer

    kernel = DirectKernel(device, relay)
    buffer = RequestBuffer(requests)
    return kernel, lambda fs: DirectEngine(fs, device, kernel, buffer, resumed=resumed, resend=resend)
