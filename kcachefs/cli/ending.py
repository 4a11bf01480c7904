"""How a command terminates on a signal: on SIGTERM, or on SIGHUP from a terminal that closes.

Most commands unwind, as after Ctrl-C: temporary files are removed, and the terminal is left as it was found. A command
that works on a store dies at once: a store survives a kill at any moment, but not an exception in the middle of
anything.

Python drops an exception that is raised while an object is destroyed. A signal that arrives at such a moment, Ctrl-C
too, is sent again a moment later.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

NUMBERS = (signal.SIGTERM, signal.SIGHUP)
_NUMBERS_BY_CODE = {128 + number: number for number in NUMBERS}
at_the_end = ExitStack()
"""Everything that has to be done before this command ends, however it ends."""
_SHOW_CURSOR = b"\x1b[?25h"
_AGAIN_SECONDS = 0.01


def unwind_when_told_to() -> None:
    """From now on these signals end this process by an exception. The second signal kills it."""
    for number in NUMBERS:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _unwind)
    sys.unraisablehook = _send_again


@contextmanager
def dying_when_told_to() -> Iterator[None]:
    """In this scope these signals kill the process. Only the main thread can set this up: elsewhere nothing changes."""
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


def _send_again(dropped: sys.UnraisableHookArgs) -> None:
    """Python has dropped an exception. Most are not missed, but some were meant to end this process."""
    error = dropped.exc_value
    if isinstance(error, KeyboardInterrupt):
        number = signal.SIGINT
    elif isinstance(error, SystemExit) and error.code in _NUMBERS_BY_CODE:
        number = _NUMBERS_BY_CODE[error.code]
    else:
        sys.__unraisablehook__(dropped)
        return
    # Not at once: the exception would be raised in here, and dropped as well. On a busy machine that may still happen,
    # hence the loop.
    while True:
        try:
            if number in NUMBERS:
                signal.signal(number, _unwind)
            again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        except (KeyboardInterrupt, SystemExit):
            continue
