"""Engines talk to the kernel. Both are thin layers over the same core.

An engine comes in two halves, because the filesystem stands between them. The `Kernel` is made first: the filesystem
reports changes to it. The filesystem is made next, and the engine that serves it last.
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
    """The interface of every engine, as the worker uses it."""

    def serve(self) -> None:
        """Answer requests until the filesystem is unmounted."""

    def stop(self) -> None:
        """Say that no more requests need an answer. Called from another thread, even after `serve` has returned."""

    def request_at_hand(self) -> object:
        """The request being worked on; None while the engine waits. If it stays the same for long, the engine hangs."""


def prepare_engine(
    name: str, device: int, requests: int, relay: socket.socket, *, resumed: bool = False, resend: bool = True
) -> tuple[Kernel, Callable[[Filesystem], Engine]]:
    """Return the kernel behind a mounted /dev/fuse descriptor, and a function that makes the named engine for it.

    `requests` is the descriptor of the request buffer's memory; `relay` leads to the supervisor's notification relay.
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
