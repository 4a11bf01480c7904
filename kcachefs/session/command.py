"""Runs a command as if it had been started directly: the command gets our signals, and we exit the way it did.

Signals are blocked and taken one by one, so none is lost. The command is in our process group, so Ctrl-C in a terminal
reaches it without us; we forward only signals that were sent to us alone.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from kcachefs import own_python

_SI_KERNEL = 0x80
_FORWARDED = (
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
    """Run the command and return its wait status; raises OSError if it cannot be started."""
    own_python.notice_children()  # while SIGCHLD is ignored, we would get none
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
    try:
        defaults = [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
        child = _spawn(arguments, environment, setsigmask=before, setsigdef=[*defaults, signal.SIGPIPE])
        return _forward_signals_until_exit(child)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _spawn(arguments: Sequence[str], environment: Mapping[str, str], **signals: Any) -> int:
    """Start the command and return its pid. As usual, a shell runs a script whose first line names no interpreter."""
    try:
        return os.posix_spawnp(arguments[0], list(arguments), environment, **signals)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        script = shutil.which(arguments[0]) or arguments[0]
        with open(script, "rb") as file:
            if b"\0" in file.read(256):  # a program for another machine
                raise
    return os.posix_spawn("/bin/sh", ["/bin/sh", script, *arguments[1:]], environment, **signals)


def _forward_signals_until_exit(child: int) -> int:
    """Forward signals and return the child's wait status.

    Until we have waited for the child, no other process can have its pid.
    """
    while True:
        information = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
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
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has already dumped core, if anybody wants one
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 70)
