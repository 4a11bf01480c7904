"""Run a command as if it had been started directly: it gets the signals, and we end the way it ended.

The signals are blocked and taken one by one, so none is lost between two looks. What a terminal sends (Ctrl-C) goes to
the command by itself, as it is in the same process group; only what was sent to us alone is passed on.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

_SI_KERNEL = 0x80
_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGWINCH,
    signal.SIGCONT,
)


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """The command's wait status. Raises OSError when it cannot be started."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    try:
        defaults = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        child = os.posix_spawnp(
            arguments[0], list(arguments), environment, setsigmask=before, setsigdef=[*defaults, signal.SIGPIPE]
        )
        return _attend(child)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _attend(child: int) -> int:
    """Pass signals on until the command has ended. The child is ours and not yet waited for: its number is its own."""
    while True:
        information = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        if information.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
        elif information.si_code != _SI_KERNEL:
            os.kill(child, information.si_signo)


def end_like(status: int) -> NoReturn:
    """End this process with the same exit code, or by the same signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command left a core if one was wanted
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 70)
