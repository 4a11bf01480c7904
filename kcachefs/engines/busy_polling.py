"""Busy polling: whether to look for the next request for a moment before sleeping until it comes.

A program that works through names or files makes its next request 10 to 100 µs after the last reply. Going to sleep and
being woken in between takes about as long again, and a processor that slept is slow at first. But on a busy machine
polling takes time from the very programs that we wait for. So we poll only while a processor is free, and only while
polling finds requests. A pause now and then is forgiven, but a program that always takes its time is not polled for.

If several processors are idle, longer polling pays off for a program start that finds everything compiled: it asks for
a file, works with it for some 100 µs, and asks for the next.

All but the briefest polling is paid for from a budget: a second at a stretch, and in the long run a sixteenth of a
processor. We do not poll at all while a thread of the pool works for a client: polling would take the interpreter from
that thread.

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
"""Limits for the gap before a request. After a gap shorter than the first, the request was waiting already. A gap
longer than the second was not worth polling for, unless polling takes that long anyway. A gap in between may be no more
than the time to wake up."""
BRIEF_NS, USUAL_NS, PATIENT_NS = 25_000, 100_000, 1_000_000
"""How long to poll: with an empty budget or no idle processor, with one or two idle, with more."""
BUDGET_NS, EARNED = 1_000_000_000, 16
"""How much polling can be saved up, and how many nanoseconds earn one of polling."""
PAUSE_MS = 2
"""After this long without a request, unused inodes are removed. A program that removes a tree pauses for less."""
_PATIENT_IDLE = 3
"""This many idle processors allow the longest polling."""
_SUCCESSES_MIN, _SUCCESSES_MAX = 4, 32
"""We poll only after more successes than the first. At most the second number is remembered, enough to forgive a few
long gaps."""
_TOLERANCE = 0.1
"""In processors: measured times are not exact, so a processor counts as free even if this share of it is not."""
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
        """Work to do before polling, in a few microseconds, if no request is there yet. Raises nothing."""
        self._unused = unused
        """Inodes to remove once there is a pause."""
        self.is_at_work = False
        """Whether `_meanwhile` or `_unused` is at work: if either hangs, that counts as a hang in the last request."""
        self._processors = processors or FreeProcessors()
        self._successes = 0
        """How often polling found a request, or would have; long gaps count against it."""
        self._since = self._budget_as_of = _now()
        self._budget = BUDGET_NS
        self._patience = 0
        """How long the last poll was allowed to take."""
        self._is_awake = False
        """Whether a request is being carried out: if so, one of the running threads is ours."""
        self.allowed = USUAL_NS if all(one.processors >= 2 for one in self._processors.look()) else 0
        """How long to poll at most, given how busy the machine is. The first value disregards that: a worker's own
        threads would look like other programs at first, and a program that waited for the mount is about to make many
        requests."""

    def adapt(self) -> None:
        """Adapt `allowed` to how busy the machine is. Any thread may call this, every second or so."""
        allowances = self._processors.look(at_work=1 + self._is_awake)
        idle = math.floor(min(one.free for one in allowances) + _TOLERANCE)
        if idle < 0 or any(one.processors < 2 for one in allowances):
            self.allowed = 0
        elif idle == 0:
            self.allowed = BRIEF_NS
        else:
            self.allowed = PATIENT_NS if idle >= _PATIENT_IDLE else USUAL_NS

    def poll(self, *, is_alone: bool = True) -> int:
        """Return once there is a request, or soon: the read that follows waits for as long as it takes.

        `is_alone` is false while another thread of ours works for a client. The result is the time of the call, at
        which the last request was finished.
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
        """Note that a request was read; returns the time."""
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
