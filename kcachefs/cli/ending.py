"""How a command ends that is told to: by SIGTERM, or by SIGHUP from a terminal that closes.

Most unwind, as after Ctrl-C: what is temporary goes, and a terminal is left as it was found. A command that works on a
store dies at once: a store survives a kill at any moment, but no exception in the middle of anything.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

NUMBERS = (signal.SIGTERM, signal.SIGHUP)
at_the_end = ExitStack()
"""What has to be done before this command ends, however it does."""
_SHOW_CURSOR = b"\x1b[?25h"


def unwind_when_told_to() -> None:
    """From now on these signals end this process by an exception. The second one kills."""
    for number in NUMBERS:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _unwind)


@contextmanager
def dying_when_told_to() -> Iterator[None]:
    """They kill this process in the scope. Outside of the main thread, which alone can say so, nothing changes."""
    is_main = threading.current_thread() is threading.main_thread()
    changed = [number for number in NUMBERS if is_main and signal.getsignal(number) is _unwind]
    for number in changed:
        signal.signal(number, _die)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, _unwind)


def _unwind(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


def _die(number: int, frame: object) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(2, _SHOW_CURSOR)  # a progress bar hides it
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
