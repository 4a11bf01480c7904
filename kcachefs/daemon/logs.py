"""The daemon's log: one line per event, as text or JSON, the same event only so often; and the signals that concern it.

SIGHUP opens the log file anew, for whoever rotates it. SIGUSR1 writes down what the process is doing: its state, every
thread's stack, every trio task. Both are taken by a thread of their own, which waits for nothing else, so that they are
answered even when the other threads hang. The supervisor passes them on to its worker.

The log is the standard error of both processes, which in the background is the log file: so tracebacks and the
interpreter's own last words are in it too, and reopening it is a matter of putting another file in its place.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import trio  # the supervisor has no use for it

log = logging.getLogger(__name__)

FORMATS = ("text", "json")
PER_MINUTE = 20
"""How often the same event is written down within a minute. Which event it is, its text without its figures says."""
MINUTE = 60.0
SIGNALS = frozenset((signal.SIGHUP, signal.SIGUSR1))
STACK_DEPTH = 12
"""Innermost calls of each stack that are written down."""

Facts = Mapping[str, Any]


class Log:
    """The log of this process, and the thread that looks after it. `start` makes it."""

    def __init__(self, path: str, source: str, signals: frozenset[int] = SIGNALS) -> None:
        self._path = path
        self._source = source
        self.signals = signals
        self._started = time.monotonic()
        self.limit = RateLimit(PER_MINUTE, MINUTE)
        self.on_signal: Callable[[int], None] = lambda number: None
        """Told of every signal after it was answered here."""
        self.state: Callable[[], Facts] = dict
        """What SIGUSR1 writes down beside the stacks. Must take no lock: it may be a lock that everything waits for."""
        self.root_task: trio.lowlevel.Task | None = None

    def watch(self) -> None:
        """Answer signals until the process ends. The thread that looks after the log."""
        while True:
            taken = signal.sigtimedwait(self.signals, MINUTE / 6)
            try:
                if taken is None:
                    self.limit.sum_up()
                elif taken.si_signo == signal.SIGHUP:
                    self.reopen()
                else:
                    self.dump()
                if taken is not None:
                    self.on_signal(taken.si_signo)
            except Exception:  # the next one has to be answered all the same
                log.exception("a signal could not be answered")

    def reopen(self) -> None:
        """Put the file that has the log's name now in the place of the one that had it."""
        if not self._path:
            log.info("asked to reopen the log, which is standard error and stays as it is")
            return
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            log.error("the log stays where it is, as it cannot be reopened: %s: %s", self._path, error.strerror)
            return
        sys.stderr.flush()
        for standard in (1, 2):
            os.dup2(file, standard)
        os.close(file)
        log.info("the log was reopened")

    def dump(self) -> None:
        """Write down what this process is doing."""
        facts: dict[str, Any] = {"uptime_s": round(time.monotonic() - self._started, 1), **self.state()}
        stacks = dict(_stacks_of_threads())
        tasks = list(_stacks_of_tasks(self.root_task)) if self.root_task is not None else []
        log.info("state of the %s", self._source, extra={"facts": {**facts, "threads": stacks, "tasks": tasks}})


def start(path: str, source: str, form: str = "text", *, debug: bool = False, hangup: bool = True) -> Log:
    """Log to standard error, and answer signals. `source` is who logs; `path` is the file that standard error is.

    `hangup=False` leaves SIGHUP alone: in a terminal it means that the terminal is gone.
    """
    made = Log(path, source, SIGNALS if hangup else SIGNALS - {signal.SIGHUP})
    handler = _Handler(made.limit)
    handler.setFormatter(JsonForm(source) if form == "json" else TextForm(source))
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True)
    logging.raiseExceptions = False  # a full disk or a closed terminal must not become a traceback per line
    if not faulthandler.is_enabled():
        faulthandler.enable()
    # Blocked here before there is another thread, hence in all of them, and in every process started from now on: what
    # comes before its own thread waits for it is kept for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, made.signals)
    threading.Thread(target=made.watch, name="kcachefs-log", daemon=True).start()
    return made


class _Handler(logging.Handler):
    """Standard error, as often as the limit allows, and at the end what it did not.

    Not through `sys.stderr`: what a closed terminal refuses would stay there, and be tried again when we end, which
    then counts as a failure.
    """

    def __init__(self, limit: RateLimit) -> None:
        super().__init__()
        self._limit = limit
        self.addFilter(limit)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a full disk, a closed terminal: there is nobody else to tell
            os.write(2, f"{self.format(record)}\n".encode(errors="backslashreplace"))

    def close(self) -> None:
        self._limit.close()
        super().close()


def has_terminal() -> bool:
    """Whether a terminal can hang up on this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


# --- how often -------------------------------------------------------------------------------------------------------


class RateLimit(logging.Filter):
    """Lets the same event through so many times in so many seconds, and then says how many more there were."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: dict[tuple[str, int, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if hasattr(record, "held_back"):  # our own summary
            return True
        event = (record.name, record.levelno, str(record.msg))
        self.sum_up()
        with self._lock:
            window = self._windows.setdefault(event, _Window(self._clock()))
            window.seen += 1
            window.last = record
            return window.seen <= self._most

    def sum_up(self) -> None:
        """Say what was held back in windows that are over."""
        with self._lock:
            now = self._clock()
            over = {event: window for event, window in self._windows.items() if now - window.began >= self._seconds}
            for event in over:
                del self._windows[event]
        for window in over.values():
            self._tell(window)

    def close(self) -> None:
        """Say it now: the process ends."""
        with self._lock:
            windows, self._windows = list(self._windows.values()), {}
        for window in windows:
            self._tell(window)

    def _tell(self, window: _Window) -> None:
        more, last = window.seen - self._most, window.last
        if more > 0 and last is not None:
            where, said = logging.getLogger(last.name), "… and %d more, the last: %s"
            where.log(last.levelno, said, more, last.getMessage(), extra={"held_back": more})


class _Window:
    """One event since it was first seen."""

    __slots__ = ("began", "last", "seen")

    def __init__(self, began: float) -> None:
        self.began = began
        self.seen = 0
        self.last: logging.LogRecord | None = None


# --- how it looks ----------------------------------------------------------------------------------------------------


class TextForm(logging.Formatter):
    """A line for people; what belongs to it and does not fit on it follows, indented."""

    def __init__(self, source: str) -> None:
        super().__init__(f"%(asctime)s %(levelname)s {source}[%(process)d] %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).rstrip().replace("\n", "\n    ")
        lines = [text]
        for name, value in getattr(record, "facts", {}).items():
            lines += _indented(name, value)
        return "\n".join(lines)


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


class JsonForm(logging.Formatter):
    """One object per line. `event` is the message without its figures, the same for the same event."""

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
        return json.dumps(line, default=str)  # in ASCII, which holds even names that are not UTF-8


# --- what runs -------------------------------------------------------------------------------------------------------


def _stacks_of_threads() -> Iterator[tuple[str, list[str]]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for number, frame in sys._current_frames().items():
        if number != threading.get_ident():
            yield names.get(number) or str(number), _lines(traceback.walk_stack(frame))


def _stacks_of_tasks(task: trio.lowlevel.Task) -> Iterator[dict[str, Any]]:
    """Of a task and all below it. Read beside the loop that runs them, so one may be missing that just came or went."""
    yield {"name": task.name, "stack": _lines(reversed(list(task.iter_await_frames())))}
    for nursery in list(task.child_nurseries):
        for child in sorted(nursery.child_tasks, key=lambda child: child.name):
            yield from _stacks_of_tasks(child)


def _lines(frames: Any) -> list[str]:
    """Innermost call first."""
    found = [f"{frame.f_code.co_filename}:{number} {frame.f_code.co_qualname}" for frame, number in frames]
    return found[:STACK_DEPTH]
