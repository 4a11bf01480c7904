"""Whether to look for the next request for a moment before going to sleep for it.

A program that works through names or files makes its next request 10 to 100 µs behind the last reply. To be put to
sleep and woken in between costs about as long again, and a processor that slept is slow at first: a handler of 4 µs
took 8. Measured on two quiet cores, in turns with and without 25 µs of looking: a first ENOENT 23 µs instead of 34, a
put 249 instead of 315, 4 KiB written 37 instead of 52; and with 100 µs of it, gcc lost 0.7 s instead of 1.1 with
writing torch's precompiled header. On a busy machine the looking takes time from the very programs that are waited for
(mkdir and rmdir took a third longer), so it is only done while a processor is free, and only while it finds something:
a pause now and then is forgiven, a program that always takes its time is not looked for.

Where several processors are idle, more of it pays for a start that finds everything compiled: it asks for a file, works
with it for some 100 µs, and asks for the next. On 16 cores a request cost 15 µs at once, 50 behind such a pause and 120
behind 5 ms. There the looking goes on for a millisecond, which is longer than nine pauses of ten.

With one or two idle processors it goes on for 100 µs. With 300, gcc by itself lost 0.5 s instead of 0.7 with the
header, and a whole start of torch.compile no less than before: to have both processors busy is not free either.

All but the briefest is paid for from a purse: a second at a stretch, and in the long run a sixteenth of a processor.
While a thread of the pool works for a client there is no looking: it would take the interpreter from that thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from pathlib import Path

SHORT_NS, LONG_NS = 3_000, 60_000
"""A request that came sooner was there already. One that came later was not worth looking for, unless patiently; of a
shorter gap being woken may have been a part."""
BRIEF_NS, USUAL_NS, PATIENT_NS = 25_000, 100_000, 1_000_000
"""How long to look: with an empty purse or no processor to spare, with one, with several."""
PURSE_NS, EARNED = 1_000_000_000, 16
"""How much looking can be saved up; one of so many nanoseconds is."""
_SEVERAL = 3
_ENOUGH, _FULL = 4, 32
_CGROUPS = Path("/sys/fs/cgroup")
_now = time.monotonic_ns


class Anticipation:
    """Belongs to the thread that reads the device, but for `weigh`."""

    def __init__(self, device: int) -> None:
        poll = select.poll()
        poll.register(device, select.POLLIN)
        self._poll = poll.poll
        self._processors = processors()
        self._credit = 0
        self._since = self._settled = _now()
        self._purse = PURSE_NS
        self._patience = 0
        """How long it was looked this time, at most."""
        self._is_awake = False
        self.allowed = BRIEF_NS
        """How long to look at most, as the machine is now."""

    def weigh(self) -> None:
        """See how busy the machine is. Any thread, every second or so."""
        idle = self._processors - (running() - 1 - self._is_awake)
        if idle < 0 or self._processors < 2:
            self.allowed = 0
        elif idle == 0:
            self.allowed = BRIEF_NS
        else:
            self.allowed = PATIENT_NS if idle >= _SEVERAL else USUAL_NS

    def look(self, *, is_alone: bool = True) -> None:
        """Returns when there is a request, or soon: the read that follows waits for as long as it takes.

        Not alone: a thread of ours is at work for somebody.
        """
        since = self._since = _now()
        patience = self.allowed if is_alone and self._credit > _ENOUGH else 0
        if patience:
            if self._purse <= 0:
                patience = min(patience, BRIEF_NS)
            end = since + patience
            while not self._poll(0) and _now() < end:
                pass
        self._patience = patience
        self._is_awake = False

    def came(self) -> None:
        """A request was read."""
        now = _now()
        self._is_awake = True
        gap, looked = now - self._since, self._patience
        purse = self._purse + (now - self._settled) // EARNED
        self._settled = now
        if looked > BRIEF_NS and gap > BRIEF_NS:
            purse -= min(gap, looked) - BRIEF_NS
        self._purse = purse if purse < PURSE_NS else PURSE_NS
        if gap >= LONG_NS and gap >= self.allowed:
            self._credit = max(0, self._credit - 1)
        elif gap > SHORT_NS and self._credit < _FULL:
            self._credit += 1


def processors() -> int:
    """How many of them this process may use: those it is allowed on, or fewer where its group has a quota of time."""
    count = len(os.sched_getaffinity(0))
    own = _CGROUPS / _group()
    for folder in (own, *own.parents):
        if folder.is_relative_to(_CGROUPS):
            with contextlib.suppress(OSError, ValueError):  # the topmost has none, and "max" is no number
                quota, period = (folder / "cpu.max").read_text().split()
                count = min(count, int(quota) // int(period))
    return count


def _group() -> str:
    """The path of this process's group, below the topmost that it can see."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                return line[4:]
    return ""


def running() -> int:
    """How many threads of all programs run, or would."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 1 << 30
