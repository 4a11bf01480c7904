"""The daemon's log: its contents, rate limit and formats, and what SIGHUP and SIGUSR1 do."""

from __future__ import annotations

import itertools
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from kcachefs.daemon.logs import PER_MINUTE, JsonFormatter, RateLimit, TextFormatter
from tests import forked_daemons
from tests.cli.scene import KCACHEFS, Scene, scene
from tests.disks import ext4
from tests.waiting import PATIENCE, until, until_gone

ALL = 3
"""The processes that answer SIGHUP: supervisor, worker, and the standby, which is started a little later."""


@pytest.fixture(name="scene")
def a_scene() -> Iterator[Scene]:
    with scene() as place:
        yield place


@pytest.fixture
def standby_soon(forked: None) -> Iterator[None]:
    """Before the scene, which takes the environment as it is then."""
    with forked_daemons.constants({"kcachefs.daemon.supervisor.STANDBY_SECONDS": 0.1}):
        yield


def state(scene: Scene) -> dict[str, Any]:
    [mine] = scene.status()
    return mine


def log_of(scene: Scene) -> Path:
    return Path(state(scene)["log"])


def objects(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON log; fails if any line is something else."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def kill_worker(scene: Scene) -> None:
    before = state(scene)["worker_pid"]
    os.kill(before, signal.SIGKILL)
    until(lambda: state(scene)["worker_pid"] not in (None, before))


# --- rate limit ------------------------------------------------------------------------------------------------------


class Heard(logging.Handler):
    """A handler behind a rate limit, with a clock that the test sets."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.now = 0.0
        self.limit = RateLimit(most, 60.0, lambda: self.now)
        self.addFilter(self.limit)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def heard() -> Iterator[tuple[Heard, logging.Logger]]:
    handler, logger = Heard(3), logging.getLogger("kcachefs.test_logs")
    logger.addHandler(handler)
    try:
        yield handler, logger
    finally:
        logger.removeHandler(handler)


def test_the_same_event_is_written_so_often_a_minute_and_then_counted(heard: tuple[Heard, logging.Logger]) -> None:
    handler, logger = heard
    for number in range(10):
        logger.error("file %d is bad", number)
        logger.error("disk %d is bad", number % 2)
    assert handler.lines == [f"{what} is bad" for n in range(3) for what in (f"file {n}", f"disk {n % 2}")]
    handler.now = 59.0
    handler.limit.report_suppressed()
    assert len(handler.lines) == 6
    handler.now = 60.0
    handler.limit.report_suppressed()
    assert handler.lines[6:] == ["… and 7 more, the last: file 9 is bad", "… and 7 more, the last: disk 1 is bad"]
    logger.error("file %d is bad", 11)
    assert handler.lines[8:] == ["file 11 is bad"]


def test_what_was_held_back_is_told_before_the_next_minute_begins_and_at_the_end(
    heard: tuple[Heard, logging.Logger],
) -> None:
    handler, logger = heard
    for number in range(5):
        logger.error("file %d is bad", number)
    handler.now = 61.0
    for number in range(5, 9):
        logger.error("file %d is bad", number)
    handler.limit.close()
    handler.limit.close()
    assert handler.lines[3:] == [
        "… and 2 more, the last: file 4 is bad",
        *(f"file {number} is bad" for number in (5, 6, 7)),
        "… and 1 more, the last: file 8 is bad",
    ]


@pytest.mark.mount
@pytest.mark.usefixtures("forked")
def test_sixty_damaged_files_are_twenty_lines_and_a_count(scene: Scene) -> None:
    folder = scene.mount()
    for number in range(60):
        (folder / f"{number}").write_bytes(os.urandom(4000))
    scene.umount()
    for volume in filter(Path.is_file, (scene.store / "volumes").rglob("*")):
        raw = bytearray(volume.read_bytes())
        raw[::100] = bytes(byte ^ 1 for byte in raw[::100])
        volume.write_bytes(raw)
    scene.mount()
    log = log_of(scene)
    for number in range(60):
        with suppress(OSError):
            (folder / f"{number}").read_bytes()
    scene.umount()
    lines = [line for line in log.read_text().splitlines() if " kcachefs.store.objects: " in line]
    *told, rest = lines
    assert all(" is damaged " in line for line in told)
    held_back = int(rest.partition("… and ")[2].split()[0])
    assert (len(told), held_back) == (PER_MINUTE, 60 - PER_MINUTE)


# --- contents --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked")
@pytest.mark.mount
def test_a_log_in_json_is_an_object_per_line_from_beginning_to_end(scene: Scene) -> None:
    folder = scene.mount("--log-format", "json")
    (folder / "file").write_text("text")
    log, supervisor = log_of(scene), state(scene)["supervisor_pid"]
    kill_worker(scene)

    def is_told() -> bool:
        """A worker that has only just begun has no thread for evictions yet: it is asked again."""
        os.kill(supervisor, signal.SIGUSR1)
        return {'"state of the %s"', '"eviction"'} <= set(re.findall(r'"state of the %s"|"eviction"', log.read_text()))

    until(is_told)
    scene.umount()
    told = objects(log)
    first, last = told[0], told[-1]
    assert first["event"] == "mounted %s at %s, worker %d"
    assert first["message"].startswith(f"mounted {scene.store} at {scene.mountpoint}, worker ")
    assert first["arguments"][:2] == [str(scene.store), str(scene.mountpoint)]
    assert (first["process"], first["pid"], first["level"]) == ("supervisor", supervisor, "info")
    assert first["logger"] == "kcachefs.daemon.supervisor"
    assert first["time"] <= last["time"]
    assert last["message"] == f"unmounted {scene.mountpoint}"
    [death] = [line for line in told if line["event"] == "the worker ended (%s); replacing it"]
    assert (death["level"], death["arguments"]) == ("error", ["signal SIGKILL"])


@pytest.mark.usefixtures("forked")
@pytest.mark.mount
def test_a_log_in_text_says_when_who_and_what(scene: Scene) -> None:
    scene.mount()
    log, supervisor = log_of(scene), state(scene)["supervisor_pid"]
    scene.umount()
    first, *_, last = log.read_text().splitlines()
    assert f" INFO supervisor[{supervisor}] kcachefs.daemon.supervisor: mounted {scene.store} at " in first
    assert last.endswith(f" unmounted {scene.mountpoint}")


def test_json_holds_a_name_that_is_not_utf_8_and_an_error_with_its_story() -> None:
    name = os.fsdecode(b"caf\xe9 \xf0\x9f\x92\xbe \n")
    try:
        raise OSError(5, "bad", name)
    except OSError as error:
        values = ("kcachefs", logging.ERROR, "file", 1, "%s failed: %s", (name, error), sys.exc_info())
    line = JsonFormatter("worker").format(logging.LogRecord(*values))
    assert "\n" not in line
    told = json.loads(line)
    assert os.fsencode(told["arguments"][0]) == os.fsencode(name)
    assert told["exception"].startswith("Traceback")
    assert (told["event"], told["level"]) == ("%s failed: %s", "error")


def test_a_name_in_the_text_log_cannot_pose_as_a_line_or_reach_the_terminal() -> None:
    name = "kernel\x1b[2J\r\n2026-01-01 00:00:00 CRITICAL supervisor[1] all is lost"
    record = logging.LogRecord("kcachefs", logging.WARNING, __file__, 1, "%s: is damaged", (name,), None)
    first, *rest = TextFormatter("worker").format(record).split("\n")
    assert "kernel\\x1b[2J\\r" in first
    assert all(line.isprintable() and line.startswith("    ") for line in rest)


def test_a_form_that_is_not_known_is_refused(scene: Scene) -> None:
    scene.run("mount", scene.mountpoint, "--log-format", "xml").refused_with(2, "xml", "text or json")


# --- SIGHUP ----------------------------------------------------------------------------------------------------------


@pytest.mark.mount
@pytest.mark.usefixtures("standby_soon")
def test_sighup_puts_a_new_file_in_the_place_of_one_that_was_rotated_away(scene: Scene) -> None:
    folder = scene.mount("--log-format", "json")
    log, before = log_of(scene), state(scene)
    until(lambda: len(scene.daemons()) == ALL)
    old = log.with_suffix(".1")
    log.rename(old)
    os.kill(before["supervisor_pid"], signal.SIGHUP)
    until(lambda: log.exists() and {line["pid"] for line in objects(log)} == set(scene.daemons()))
    size = old.stat().st_size
    (folder / "file").write_text("text")
    kill_worker(scene)
    scene.umount()
    assert old.stat().st_size == size
    told = [line["message"] for line in objects(log)]
    assert "the worker ended (signal SIGKILL); replacing it" in told
    assert any(message.startswith("served ") for message in told)
    assert told[-1] == f"unmounted {scene.mountpoint}"


@pytest.mark.mount
@pytest.mark.usefixtures("standby_soon")
def test_a_log_that_cannot_be_reopened_goes_on_where_it_is(scene: Scene) -> None:
    scene.mount()
    log = log_of(scene)
    aside = log.with_suffix(".1")
    until(lambda: len(scene.daemons()) == ALL)
    log.rename(aside)
    log.mkdir()
    os.kill(state(scene)["supervisor_pid"], signal.SIGHUP)
    until(lambda: aside.read_text().count("the log cannot be reopened and stays where it is") == ALL)
    scene.umount()
    assert aside.read_text().endswith(f"unmounted {scene.mountpoint}\n")


@pytest.mark.mount
def test_a_service_without_a_terminal_outlives_sighup(scene: Scene) -> None:
    with foreground(scene, start_new_session=True) as (process, said):
        until(lambda: len(scene.daemons()) == ALL)

        def all_have_said_so() -> bool:
            os.kill(process.pid, signal.SIGHUP)  # again: one that has just begun may not listen yet
            told = re.findall(r"\[(\d+)\].*it is standard error and stays as it is", said.read_text())
            return set(map(int, told)) >= set(scene.daemons())

        until(all_have_said_so, pause=0.5)
        (scene.mountpoint / "triton" / "file").write_text("text")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.mount
def test_what_runs_in_the_foreground_of_a_terminal_ends_with_it(scene: Scene) -> None:
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        ioctl(theirs, termios.TIOCSCTTY, 0)

    with open(ours, "rb"):
        with foreground(scene, preexec_fn=take_terminal, pass_fds=[theirs]) as (process, _):
            os.close(theirs)
            os.kill(process.pid, signal.SIGHUP)
            assert process.wait(PATIENCE) == 0
    assert scene.is_over()


@contextmanager
def foreground(scene: Scene, **options: Any) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`mount -f` once it serves, and the file that it logs to."""
    said = scene.folder / "said"
    with open(said, "wb") as file:
        command = [*KCACHEFS, "mount", "-f", str(scene.mountpoint)]
        process = subprocess.Popen(command, env=scene.environment, stdin=subprocess.DEVNULL, stderr=file, **options)
    with process:
        try:
            until(lambda: "mounted " in said.read_text())
            yield process, said
        finally:
            process.kill()


# --- SIGUSR1 ---------------------------------------------------------------------------------------------------------


def test_a_process_that_was_stopped_for_long_answers_only_what_it_received() -> None:
    script = """
import signal, threading
from kcachefs.daemon import logs
logs.MINUTE = 0.06  # it waits for signals for a sixth of that at a time
logs.start("", "test")
print("started", flush=True)
threading.Event().wait()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "started\n"
        for _ in range(10):
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            time.sleep(0.02)  # longer than it would have waited: that its time is up, a stopped process cannot show
            process.send_signal(signal.SIGCONT)
            os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        process.send_signal(signal.SIGUSR1)
        told = [process.stderr.readline()]
        process.kill()
        told += process.stderr.readlines()
    assert "INFO test" in told[0]
    assert [line for line in told if "state of the test" in line or "ERROR" in line] == told[:1]


@pytest.mark.usefixtures("forked")
@pytest.mark.mount
@pytest.mark.parametrize("engine", ["direct", "pyfuse3"])
def test_sigusr1_writes_down_what_both_processes_are_doing(scene: Scene, engine: str) -> None:
    folder = scene.mount("--log-format", "json", "--engine", engine)
    (folder / "file").write_text("text")
    before, log = state(scene), log_of(scene)
    numbers = itertools.count()

    def is_told_while_files_are_written() -> bool:
        (folder / f"{next(numbers)}").write_text("waits to be sealed")
        text = log.read_text()
        return text.count('"state of the %s"') == 2 and text.endswith("\n")  # a long line comes in pieces

    is_told_while_files_are_written()
    os.kill(before["supervisor_pid"], signal.SIGUSR1)
    until(is_told_while_files_are_written)
    supervisor, worker = (line for line in objects(log) if line["event"] == "state of the %s")
    assert (supervisor["process"], supervisor["state"]["restarts"]) == ("supervisor", 0)
    assert supervisor["state"]["worker_pid"] == worker["pid"] == before["worker_pid"]
    assert worker["requests"]["create"] >= 2
    assert worker["files"]["waiting_for_sealing"] >= 1
    assert worker["inodes"]["known_to_the_kernel"] >= 1
    assert any("Chores._work" in line for line in worker["threads"]["sealing"])
    assert any("Worker._wait" in line for line in worker["threads"]["MainThread"])
    serving = {"direct": "DirectEngine.serve", "pyfuse3": "Pyfuse3Engine.serve"}
    assert any("Worker._serve" in line for line in worker["threads"]["kcachefs-engine"])
    assert any(serving[engine] in line for line in worker["threads"]["kcachefs-engine"])
    assert (folder / "file").read_text() == "text"
    assert state(scene)["restarts"] == 0


SLOW_TO_END = """
import sys
if "kcachefs.daemon.worker" in sys.orig_argv:
    import os, time
    from kcachefs.core import Filesystem
    settle = Filesystem.settle
    def wait_and_settle(self, *arguments, **named):
        while not os.path.exists({go_on!r}):
            time.sleep(0.01)
        return settle(self, *arguments, **named)
    Filesystem.settle = wait_and_settle
"""


@pytest.mark.mount
def test_an_engine_that_ends_after_its_worker_was_told_to_finish_is_no_failure(scene: Scene) -> None:
    go_on = scene.store / "go-on"
    scene.in_every_python(SLOW_TO_END.format(go_on=str(go_on)))
    folder = scene.mount()
    log, now = log_of(scene), state(scene)
    threads = Path(f"/proc/{now['worker_pid']}/task")
    with open(folder / "file", "wb", buffering=0) as file:
        file.write(b"keeps the mount busy")
        os.kill(now["supervisor_pid"], signal.SIGTERM)
        until(lambda: "served {" in log.read_text(), "nobody waits for the engine any more")
        serving = len(list(threads.iterdir()))
    until(lambda: len(list(threads.iterdir())) < serving, "the engine's thread has ended")
    go_on.touch()
    until_gone(now["worker_pid"], now["supervisor_pid"])
    go_on.unlink()
    assert "Traceback" not in log.read_text()


HANGING = """
import sys
if "kcachefs.daemon.worker" in sys.orig_argv:
    import time
    from kcachefs.core import Filesystem
    look_up = Filesystem.lookup
    def lookup(self, caller, parent, name, *more, **named):
        while name == b"hangs":
            time.sleep(0.1)
        return look_up(self, caller, parent, name, *more, **named)
    Filesystem.lookup = lookup
"""


@pytest.mark.mount
@pytest.mark.parametrize("engine", ["direct", "pyfuse3"])
def test_a_request_that_never_ends_is_noticed_though_all_else_goes_on(scene: Scene, engine: str) -> None:
    scene.in_every_python(HANGING)
    folder = scene.mount("--engine", engine, "--hang-timeout", "1")
    log = log_of(scene)
    asking = subprocess.Popen(["stat", folder / "hangs"], stderr=subprocess.DEVNULL)
    try:
        until(lambda: "no heartbeat for 1 s" in log.read_text())
        until(lambda: "in lookup" in log.read_text().partition("Fatal Python error: Aborted")[2])
    finally:
        subprocess.run(["umount", "-l", scene.mountpoint], check=False)
        asking.kill()
        asking.wait(PATIENCE)


@pytest.mark.mount
def test_a_worker_that_hangs_says_where_before_it_is_replaced(scene: Scene) -> None:
    """Writing to a mapped page of a frozen disk blocks the whole interpreter: no thread could answer SIGUSR1."""
    with ext4(scene.folder) as disk:
        scene.must(
            "mount", scene.mountpoint, "--store", disk.path / "store", "--hang-timeout", "1", "--min-free", "1MiB"
        )
        log = log_of(scene)
        with frozen(disk.path):
            until(lambda: "Thread" in log.read_text().partition("Fatal Python error: Aborted")[2])
        until(lambda: state(scene)["restarts"] >= 1)
        assert "/kcachefs/store/" in log.read_text()
        assert "the worker ended (no heartbeat for 1 s); replacing it" in log.read_text()
        scene.umount()


@contextmanager
def frozen(disk: Path) -> Iterator[None]:
    """Freeze a filesystem: every write to it waits."""
    subprocess.run(["fsfreeze", "--freeze", disk], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", disk], check=True)
