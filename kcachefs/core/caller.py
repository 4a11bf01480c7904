"""The caller of a request, as a value that travels with the request: nothing remembers who asked last."""

from __future__ import annotations

import msgspec

UNKNOWN = 0xFFFFFFFF
"""The user and group of a caller that the kernel does not name."""


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Who makes a request."""

    uid: int
    gid: int
    pid: int = 0
    """The number of the calling thread; 0 if there is none, or this process cannot see it."""
    request: int = 0
    """The request's number if the kernel may send the request again to the next worker, else 0."""

    @property
    def is_known(self) -> bool:
        return self.uid != UNKNOWN

    def aside(self) -> Caller:
        """The same caller for a step that the request needs but did not ask for, which the replay guard ignores."""
        return Caller(self.uid, self.gid, self.pid)


NOBODY = Caller(UNKNOWN, UNKNOWN)
"""The caller of a write out of the kernel's page cache: the user who changed the page was checked at open."""
