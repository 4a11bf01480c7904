"""Whether to look for the next request for a moment before going to sleep for it.

A program that works through names or files makes its next request 10 to 100 µs behind the last reply. To be put to
sleep and woken in between costs about as long again, and a processor that slept is slow at first: a handler of 4 µs
took 8. Measured on two quiet cores, in turns with and without 25 µs of looking: a first ENOENT 23 µs instead of 34, a
put 249 instead of 315, 4 KiB written 37 instead of 52; and with 100 µs of it, gcc lost 0.5 s instead of 1.1 with
writing torch's precompiled header. On a busy machine the looking takes time from the very programs that are waited for
(mkdir and rmdir took a third longer), so it is only done while a processor is free, and only while it finds something:
a pause now and then is forgiven, a program that always takes its time is not looked for.

Where several processors are idle, more of it pays for a start that finds everything compiled: it asks for a file, works
with it for some 100 µs, and asks for the next. On 16 cores a request cost 15 µs at once, 50 behind such a pause and 120
behind 5 ms. There the looking goes on for a millisecond, which is longer than nine pauses of ten.

All but the briefest is paid for from a purse: a second at a stretch, and in the long run a sixteenth of a processor.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

SHORT_NS, LONG_NS = 3_000, 60_000
"""A request that came sooner was there already; one that came later was not worth looking for, unless patiently."""
BRIEF_NS, USUAL_NS, PATIENT_NS = 25_000, 100_000, 1_000_000
"""How long to look: with an empty purse, with a processor to spare, with several."""
PURSE_NS, EARNED_NS = 1_000_000_000, 62_500_000
"""How much looking can be saved up, and how much comes with each second."""
_SEVERAL = 3
_ENOUGH, _FULL = 4, 32
_now = time.monotonic_ns


class Anticipation:
    """Belongs to the thread that reads the device, but for `weigh`."""

    def __init__(self, device: int) -> None:
        poll = select.poll()
        poll.register(device, select.POLLIN)
        self._poll = poll.poll
        self._credit = 0
        self._since = _now()
        self._purse = PURSE_NS
        self.patience = USUAL_NS
        """How long to look now."""

    def weigh(self) -> None:
        """Settle how long to look, for the next second."""
        idle = len(os.sched_getaffinity(0)) - (running() - 1)
        self._purse = min(PURSE_NS, self._purse + EARNED_NS)
        if idle < 0:
            self.patience = 0
        elif self._purse <= 0:
            self.patience = BRIEF_NS
        else:
            self.patience = PATIENT_NS if idle >= _SEVERAL else USUAL_NS

    def look(self) -> None:
        """Returns when there is a request, or soon: the read that follows waits for as long as it takes."""
        since = self._since = _now()
        if self._credit > _ENOUGH and self.patience:
            end = since + self.patience
            while not self._poll(0) and _now() < end:
                pass

    def came(self) -> None:
        """A request was read."""
        gap, patience = _now() - self._since, self.patience
        if gap > LONG_NS and patience > BRIEF_NS and self._credit > _ENOUGH:
            self._purse -= min(gap, patience)
            if self._purse <= 0:
                self.patience = BRIEF_NS
        if gap >= LONG_NS and gap >= patience:
            self._credit = max(0, self._credit - 1)
        elif gap > SHORT_NS and self._credit < _FULL:
            self._credit += 1


def running() -> int:
    """How many threads of all programs run, or would."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 1 << 30
