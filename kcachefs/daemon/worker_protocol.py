"""The protocol between supervisor and worker: lines over a socket pair, and the worker's exit code.

A worker is started before it is needed: it imports everything, checks that it knows the store's format, reports that it
is warm, and waits. When told to begin, it opens the store, serves the mount, and reports that it is ready, or why it
cannot serve; from then on it sends a heartbeat every second. A waiting worker exits when the supervisor closes its end
of the socket.

    supervisor                 worker
                 ◀── warm                   or: EXIT-CODE MESSAGE
    begin 1 … ──▶                           1: it takes over from a worker that died
                 ◀── ready VERSION          or: EXIT-CODE MESSAGE
                 ◀── .                      every second
    control   ──▶                           with a socket to take commands at, when its own is lost

docs/protocols.md describes this in full, with the descriptors that a worker inherits and the signals it obeys.
"""

from __future__ import annotations

from typing import NamedTuple

from kcachefs.errors import describe, exit_code_of

UNMOUNTED = 0
"""The worker's exit code when the mount is gone and everything is on disk."""
REPLACED = 75
"""Its exit code when it exits so that another worker can take over."""
REFUSED = 78
"""Its exit code when it could not begin, for example because the store cannot be opened."""
GONE = 79
"""Its exit code when the store that the mount began with is gone: no other worker could do better."""

WARM = b"warm"
READY = b"ready"
BEGIN = b"begin"
CONTROL = b"control"
HEARTBEAT = b".\n"
START_SECONDS = 120.0
"""How long a worker may take to start, or to open its store, before it counts as hung."""
HEARTBEAT_SECONDS = 1.0
LAST_CHANCE_SECONDS = 2.0
"""How long the supervisor looks once more for a heartbeat that is overdue, before the worker counts as silent."""
FIRST_HEARTBEAT_SECONDS = 0.25
"""When the first heartbeat is due: a worker that dies before it counts as one that cannot serve at all."""


class Beginning(NamedTuple):
    """Tells a worker to serve, and passes on what outlives a worker, which only the supervisor can count."""

    resumed: bool
    """Whether it takes over from a worker that died or left."""
    started: float
    """When it was mounted, in seconds since 1970."""
    restarts: int
    reloads: int

    def to_line(self) -> bytes:
        return b"%s %d %.3f %d %d\n" % (BEGIN, self.resumed, self.started, self.restarts, self.reloads)

    @classmethod
    def from_line(cls, line: bytes) -> Beginning:
        _, resumed, started, restarts, reloads, *_ = line.split()  # a later version may send more
        return cls(resumed == b"1", float(started), int(restarts), int(reloads))


class Refusal(NamedTuple):
    """Why a mount could not be made, and the exit code for the shell."""

    exit_code: int
    message: str
    is_final: bool = False
    """Whether no other worker could do better."""

    def to_line(self) -> bytes:
        return f"{self.exit_code} {self.message}\n".encode()

    @classmethod
    def from_error(cls, error: BaseException) -> Refusal:
        return cls(exit_code_of(error), describe(error))

    @classmethod
    def from_line(cls, line: bytes, *, default: Refusal) -> Refusal:
        """The refusal that a line states; `default` if the other side ended without stating one."""
        code, _, message = line.decode(errors="replace").rstrip("\n").partition(" ")
        return cls(int(code), message) if message and code.isdigit() else default
