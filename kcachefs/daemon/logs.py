"""The daemon's log: one line per event, as text or JSON, rate-limited; and the signals that control it.

SIGHUP reopens the log file after it was rotated. SIGUSR1 logs what the process is doing: its state, and the stack of
every thread. A thread of its own takes both signals and waits for nothing else, so they are answered even when all
other threads hang. The supervisor forwards them to its worker.

Both processes log to standard error, which in the background is the log file. So tracebacks and the interpreter's last
words end up in it too, and reopening the log means putting another file in place of standard error.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kcachefs.printable import printable

log = logging.getLogger(__name__)

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
PER_MINUTE = 20
"""How often the same event is logged within a minute. Two lines are the same event if their templates are equal."""
MINUTE = 60.0
SIGNALS = frozenset((signal.SIGHUP, signal.SIGUSR1))
STACK_DEPTH = 12
"""How many of the innermost calls of each stack are logged."""

Facts = Mapping[str, Any]


class Log:
    """The log of this process and the thread that answers its signals. `start` makes it."""

    def __init__(
        self,
        path: str,
        source: str,
        signals: frozenset[int],
        files: socket.socket | None,
        on_reopened: Callable[[int], None],
        on_signal: Callable[[int], None],
        state: Callable[[], Facts],
    ) -> None:
        self._path = path
        self._files = files
        self._source = source
        self.signals = signals
        self._started = time.monotonic()
        self.limit = RateLimit(PER_MINUTE, MINUTE)
        self._on_reopened = on_reopened
        self._on_signal = on_signal
        self._state = state

    def watch(self) -> None:
        """Answer signals until the process ends. Runs in a thread of its own."""
        while True:
            received = signal.sigtimedwait(self.signals, MINUTE / 6)
            # If interrupted after its timeout, as by SIGSTOP and SIGCONT, the wait returns a signal it never received.
            if received is not None and received.si_signo not in self.signals:
                continue
            try:
                if received is None:
                    self.limit.report_suppressed()
                elif received.si_signo == signal.SIGHUP:
                    self.reopen()
                else:
                    self.dump()
                if received is not None:
                    self._on_signal(received.si_signo)
            except Exception:  # the next signal must still be answered
                log.exception("a signal could not be answered")

    def reopen(self) -> None:
        """Log to the file that has the log's name now, not to the one that had it before."""
        if not self._path:
            log.info("asked to reopen the log, but it is standard error and stays as it is")
            return
        try:
            file = self._new_file()
        except OSError as error:
            log.error("the log cannot be reopened and stays where it is: %s: %s", self._path, error.strerror)
            return
        sys.stderr.flush()
        for standard in (1, 2):
            os.dup2(file, standard)
        self._on_reopened(file)
        os.close(file)
        log.info("reopened the log")

    def _new_file(self) -> int:
        if self._files is None:
            return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        received: list[int] = []
        self._files.setblocking(False)  # recv_fds ignores its flags
        with contextlib.suppress(BlockingIOError):
            while more := socket.recv_fds(self._files, 16, 1)[1]:
                received += more
        if not received:
            raise OSError(errno.ENOENT, "the supervisor sent no file")
        for older in received[:-1]:
            os.close(older)
        return received[-1]

    def dump(self) -> None:
        """Log what this process is doing."""
        facts: dict[str, Any] = {"uptime_s": round(time.monotonic() - self._started, 1), **self._state()}
        stacks = dict(_thread_stacks())
        log.info("state of the %s", self._source, extra={"facts": {**facts, "threads": stacks}})


def start(
    path: str,
    source: str,
    log_format: str = "text",
    *,
    level: str = "info",
    hangup: bool = True,
    files: socket.socket | None = None,
    on_reopened: Callable[[int], None] = lambda file: None,
    on_signal: Callable[[int], None] = lambda number: None,
    state: Callable[[], Facts] = dict,
) -> None:
    """Log to standard error, which is the file at `path`, as `source`, and answer signals.

    `hangup=False` leaves SIGHUP alone: in a terminal it means that the terminal was closed. `files` is for a process
    that cannot open files: it receives the new one before each SIGHUP. The log's own thread calls `on_reopened` with
    the descriptor of a new log file, and `on_signal` with every signal after it was answered here. `state` is what
    SIGUSR1 logs besides the stacks; it must take no lock: all other threads may be waiting for that lock.
    """
    signals = SIGNALS if hangup else SIGNALS - {signal.SIGHUP}
    log_of_process = Log(path, source, signals, files, on_reopened, on_signal, state)
    handler = _StandardErrorHandler(log_of_process.limit)
    handler.setFormatter(JsonFormatter(source) if log_format == "json" else TextFormatter(source))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.raiseExceptions = False  # a full disk or a closed terminal must not cause a traceback per line
    if not faulthandler.is_enabled():
        faulthandler.enable()
    # Blocked before any other thread or process is started, and so in all of them: a signal that arrives before the
    # log's thread waits for it stays pending until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, log_of_process.signals)
    threading.Thread(target=log_of_process.watch, name="kcachefs-log", daemon=True).start()


def set_level(level: str) -> None:
    """Log from this level on."""
    logging.getLogger().setLevel(level.upper())


class _StandardErrorHandler(logging.Handler):
    """Writes to standard error as often as the limit allows, and at the end reports what was suppressed.

    Bypasses `sys.stderr`: output that a closed terminal refuses would stay in its buffer and be written again at exit,
    which would then fail.
    """

    def __init__(self, limit: RateLimit) -> None:
        super().__init__()
        self._limit = limit
        self.addFilter(limit)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a full disk, a closed terminal: nowhere else to report it
            os.write(2, f"{self.format(record)}\n".encode(errors="backslashreplace"))

    def close(self) -> None:
        self._limit.close()
        super().close()


def has_terminal() -> bool:
    """Whether this process has a controlling terminal, which could close."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


# --- rate limit ------------------------------------------------------------------------------------------------------


class RateLimit(logging.Filter):
    """Lets the same event through `limit` times in `seconds`, and afterwards reports how many more there were."""

    def __init__(self, limit: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._limit = limit
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: dict[tuple[str, int, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if hasattr(record, "held_back"):  # our own report
            return True
        event = (record.name, record.levelno, str(record.msg))
        self.report_suppressed()
        with self._lock:
            window = self._windows.setdefault(event, _Window(self._clock()))
            window.seen += 1
            window.last = record
            return window.seen <= self._limit

    def report_suppressed(self) -> None:
        """Report what was suppressed in windows that have ended."""
        with self._lock:
            now = self._clock()
            ended = {event: window for event, window in self._windows.items() if now - window.began >= self._seconds}
            for event in ended:
                del self._windows[event]
        for window in ended.values():
            self._report(window)

    def close(self) -> None:
        """Report everything now, because the process ends."""
        with self._lock:
            windows, self._windows = list(self._windows.values()), {}
        for window in windows:
            self._report(window)

    def _report(self, window: _Window) -> None:
        more, last = window.seen - self._limit, window.last
        if more > 0 and last is not None:
            logger = logging.getLogger(last.name)
            logger.log(last.levelno, "… and %d more, the last: %s", more, last.getMessage(), extra={"held_back": more})


class _Window:
    """The occurrences of one event since it was first seen."""

    __slots__ = ("began", "last", "seen")

    def __init__(self, began: float) -> None:
        self.began = began
        self.seen = 0
        self.last: logging.LogRecord | None = None


# --- formats --------------------------------------------------------------------------------------------------------


class TextFormatter(logging.Formatter):
    """One line per event, for people; its facts follow on indented lines."""

    def __init__(self, source: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {source}[%(process)d] %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).rstrip().replace("\n", "\n    ")
        lines = [text]
        for name, value in getattr(record, "facts", {}).items():
            lines += _indented(name, value)
        # The text may hold file names. A line that begins inside one is indented, so it never looks like a separate
        # event.
        return "\n".join([printable(line) for line in "\n".join(lines).split("\n")])


def _indented(name: str, value: Any, depth: int = 1) -> Iterator[str]:
    margin = "    " * depth
    if isinstance(value, Mapping) and value:
        yield f"{margin}{name}:"
        for key, inner in value.items():
            yield from _indented(str(key), inner, depth + 1)
    elif isinstance(value, list) and value:
        yield f"{margin}{name}:"
        for inner in value:
            if isinstance(inner, Mapping):
                yield from _indented(str(inner.get("name", "")), inner.get("stack", []), depth + 1)
            else:
                yield f"{margin}    {inner}"
    else:
        yield f"{margin}{name}: {value}"


class JsonFormatter(logging.Formatter):
    """One object per line. `event` is the template of the message, which is equal for equal events."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._source,
            "pid": record.process,
            "logger": record.name,
            "event": str(record.msg),
            "message": record.getMessage(),
        }
        if record.args:
            line["arguments"] = [*record.args.values()] if isinstance(record.args, Mapping) else [*record.args]
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        if hasattr(record, "held_back"):
            line["held_back"] = record.held_back
        line |= getattr(record, "facts", {})
        return json.dumps(line, default=str)  # ASCII, which can express even names that are not UTF-8


# --- stacks ----------------------------------------------------------------------------------------------------------


def _thread_stacks() -> Iterator[tuple[str, list[str]]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():
        if number != threading.get_ident():
            yield names.get(number) or str(number), _lines(traceback.walk_stack(frame))


def _lines(frames: Any) -> list[str]:
    """One line per call, innermost first."""
    found = [f"{frame.f_code.co_filename}:{number} {frame.f_code.co_qualname}" for frame, number in frames]
    return found[:STACK_DEPTH]
