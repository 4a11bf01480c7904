"""The part of the direct engine that its handlers may use: the request at hand, the filesystem, and ways to reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kcachefs.core import Filesystem
from kcachefs.core.caller import Caller
from kcachefs.core.remote import Delivery
from kcachefs.engines.unused_inodes import UnusedInodes


class Exchange(Protocol):
    """One request at a time. Only `defer` and `wait_for` hand work to another thread."""

    fs: Filesystem
    buffer: memoryview
    """The request, from its header on."""
    header: tuple[int, ...]
    """The unpacked header: length, opcode, number, inode, uid, gid, pid, extensions, padding."""
    listing_times: dict[int, int]
    """The mtime that each directory had when it was last opened."""
    unused: UnusedInodes
    capabilities: int
    """The capabilities that we ask of the kernel."""

    def caller(self) -> Caller:
        """Who makes the request."""

    def defer(
        self,
        unique: int,
        ino: int,
        action: Callable[[], bytes | Sequence[bytes | memoryview]],
        *,
        waits: bool = False,
        holds: int = 0,
    ) -> None:
        """Call `action` and reply, in another thread; `waits`: it may wait for room, holding `holds` bytes."""

    def wait_for(self, unique: int, ino: int, delivery: Delivery, action: Callable[[], bytes]) -> None:
        """Wait in another thread for a delivery from a remote tier, then call `action` there and reply."""

    def reply_error(self, unique: int, number: int) -> None: ...

    def negotiated(self, capabilities: int) -> None:
        """Keep the capabilities agreed on with the kernel."""

    def interrupt(self, unique: int) -> None:
        """The caller of a deferred request got a signal."""
