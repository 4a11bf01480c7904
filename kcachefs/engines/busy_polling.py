"""Busy polling: whether to look for the next request for a moment before going to sleep for it.

A program that works through names or files makes its next request 10 to 100 µs after the last reply. Going to sleep and
being woken in between takes about as long again, and a processor that slept is slow at first. On a busy machine polling
takes time from the very programs that are waited for. So it is only done while a processor is free, and only while it
finds something: a pause now and then is forgiven, a program that always takes its time is not polled for.

Where several processors are idle, polling longer pays for a start that finds everything compiled: it asks for a file,
works with it for some 100 µs, and asks for the next.

All but the briefest polling is paid for from a budget: a second at a stretch, and in the long run a sixteenth of a
processor. While a thread of the pool works for a client there is none: it would take the interpreter from that thread.

benchmarks/README.md has the measurements behind the numbers.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable

from kcachefs.engines.unused_inodes import UnusedInodes
from kcachefs.free_processors import FreeProcessors

SHORT_NS, LONG_NS = 3_000, 60_000
"""Gaps before a request. A shorter one means that the request was waiting already, a longer one that it was not worth
polling for, unless polling takes that long anyway. In between, the gap may be no more than the time to wake up."""
BRIEF_NS, USUAL_NS, PATIENT_NS = 25_000, 100_000, 1_000_000
"""How long to poll: with an empty budget or no processor to spare, with one, with several."""
BUDGET_NS, EARNED = 1_000_000_000, 16
"""How much polling can be saved up, and how many nanoseconds earn one of polling."""
PAUSE_MS = 2
"""After this long without a request, unused inodes are removed. A program that removes a tree pauses for less."""
_PATIENT_IDLE = 3
"""So many idle processors allow the longest polling."""
_SUCCESSES_MIN, _SUCCESSES_MAX = 4, 32
"""Polling begins above the first; the second is how many are remembered, so that a few long gaps are forgiven."""
_TOLERANCE = 0.1
"""Processors: what is measured by time is not that exact."""
_now = time.monotonic_ns


class BusyPolling:
    """Belongs to the thread that reads the device, except for `adapt`."""

    def __init__(
        self,
        device: int,
        meanwhile: Callable[[], None],
        unused: UnusedInodes | None = None,
        processors: FreeProcessors | None = None,
    ) -> None:
        poll = select.poll()
        poll.register(device, select.POLLIN)
        self._poll = poll.poll
        self._meanwhile = meanwhile
        """What to do first, in a few microseconds, when no request is there yet. Raises nothing."""
        self._unused = unused
        """What is left to do once there is a pause."""
        self.is_at_work = False
        """Whether one of the two is being done: should it hang, that counts as a hang in the last request."""
        self._processors = processors or FreeProcessors()
        self._successes = 0
        """How often polling found, or would have found, something; long gaps count against it."""
        self._since = self._budget_as_of = _now()
        self._budget = BUDGET_NS
        self._patience = 0
        """How long the last poll was allowed to take."""
        self._is_awake = False
        """Whether a request is being carried out: then one of the running threads is ours."""
        self.allowed = USUAL_NS if all(one.processors >= 2 for one in self._processors.look()) else 0
        """How long to poll at most, as the machine is now. Nobody has looked yet: at first a worker's own threads would
        look like others, and a program that waited for the mount is about to ask for much."""

    def adapt(self) -> None:
        """See how busy the machine is. Any thread, every second or so."""
        allowances = self._processors.look(at_work=1 + self._is_awake)
        idle = math.floor(min(one.free for one in allowances) + _TOLERANCE)
        if idle < 0 or any(one.processors < 2 for one in allowances):
            self.allowed = 0
        elif idle == 0:
            self.allowed = BRIEF_NS
        else:
            self.allowed = PATIENT_NS if idle >= _PATIENT_IDLE else USUAL_NS

    def poll(self, *, is_alone: bool = True) -> int:
        """Returns when there is a request, or soon: the read that follows waits for as long as it takes.

        Not alone: a thread of ours is at work for somebody. The result is when it was called, which is when the last
        request was done with.
        """
        since = self._since = _now()
        patience = self.allowed if is_alone and self._successes > _SUCCESSES_MIN else 0
        if patience:
            if self._budget <= 0:
                patience = min(patience, BRIEF_NS)
            end = since + patience
            if not self._poll(0):
                self.is_at_work = True
                self._meanwhile()
                self.is_at_work = False
                while not self._poll(0) and _now() < end:
                    pass
        if self._unused is not None and self._unused.waiting and not self._poll(PAUSE_MS):
            self.is_at_work = True
            self._unused.remove()
            self.is_at_work = False
        self._patience = patience
        self._is_awake = False
        return since

    def request_came(self) -> int:
        """A request was read; returns when."""
        now = _now()
        self._is_awake = True
        gap, polled = now - self._since, self._patience
        budget = self._budget + (now - self._budget_as_of) // EARNED
        self._budget_as_of = now
        if polled > BRIEF_NS and gap > BRIEF_NS:
            budget -= min(gap, polled) - BRIEF_NS
        self._budget = budget if budget < BUDGET_NS else BUDGET_NS
        if gap >= LONG_NS and gap >= self.allowed:
            self._successes = max(0, self._successes - 1)
        elif gap > SHORT_NS and self._successes < _SUCCESSES_MAX:
            self._successes += 1
        return now
