"""A command that is told to end (SIGTERM, or SIGHUP from a terminal that closes) puts right what it changed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.scene import KCACHEFS, Scene
from tests.waiting import PATIENCE, until, until_gone

_SLOW = """
import os, time
from pathlib import Path
from kcachefs.core.insight import Insight

quick = Insight.stats

def stats(self, **arguments):
    Path({begun!r}).write_text(str(os.getpid()))
    while not Path({go_on!r}).exists():
        time.sleep(0.01)
    return quick(self, **arguments)

Insight.stats = stats
"""


def read_until(terminal: int, wanted: bytes) -> bytes:
    """What is shown at a terminal up to these bytes."""
    seen = b""
    while wanted not in seen:
        assert select.select([terminal], [], [], PATIENCE)[0], seen
        seen += os.read(terminal, 1 << 16)
    return seen


@pytest.mark.mount
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_top_leaves_the_terminal_as_it_was(scene: Scene, number: signal.Signals) -> None:
    pytest.importorskip("textual")
    scene.mount()
    controller, terminal = os.openpty()
    try:
        before = termios.tcgetattr(terminal)
        with subprocess.Popen(
            [*KCACHEFS, "top", str(scene.mountpoint)],
            env={**scene.environment, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        ) as process:
            read_until(controller, b"quit")
            assert termios.tcgetattr(terminal) != before, "no echo, no lines"
            process.send_signal(number)
            left = read_until(controller, b"\x1b[?1049l")
            assert process.wait(PATIENCE) == 128 + number
        while select.select([controller], [], [], 0)[0]:
            left += os.read(controller, 1 << 16)
        assert termios.tcgetattr(terminal) == before
        assert b"Traceback" not in left
    finally:
        os.close(controller)
        os.close(terminal)


def test_what_works_on_a_store_ends_too(scene: Scene) -> None:
    with slow_statistics(scene) as (process, child):
        process.terminate()
        out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, errors) == (143, "", "")
    until_gone(child)
    scene.open_store().close()


def test_a_signal_to_all_of_them_ends_all_of_them(scene: Scene) -> None:
    with slow_statistics(scene) as (process, child):
        os.killpg(process.pid, signal.SIGTERM)
        out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, errors) == (143, "", "")
    until_gone(child)
    scene.open_store().close()


def test_what_works_on_a_store_in_its_own_process_dies_at_once(scene: Scene) -> None:
    """An exception in the middle of anything would leave locks behind, for which closing the store then waits."""
    scene.mount()
    scene.umount()
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from kcachefs.cli import ending, target\n"
        "ending.unwind_when_told_to()\n"
        "with target.store_at_rest(Path(sys.argv[1])) as fs, fs.store.catalog.lock:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still there')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(scene.store)], env=scene.environment, capture_output=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, b"")
    scene.open_store().close()


_DESTRUCTION = """
import os, sys, time
from kcachefs.cli import ending

class Told:
    def __del__(self):
        os.kill(os.getpid(), {number})
        print("dropped", flush=True)

ending.unwind_when_told_to()
try:
    del_ = Told()
    del del_
    while True:
        time.sleep(0.1)
except KeyboardInterrupt:
    sys.exit(130)
finally:
    print("unwound", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_while_an_object_is_destroyed_ends_a_command(number: signal.Signals) -> None:
    """Python drops the exception then. Ctrl-C during `adopt`, which destroys a folder for each entry, did nothing."""
    code = _DESTRUCTION.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "unwound\n", "")


_BUSY = """
import threading
class Timer(threading.Timer):
    times = 0
    def start(self):
        super().start()
        Timer.times += 1
        if Timer.times == 1:
            self.join()
threading.Timer = Timer
"""
"""The first time, the signal is sent before whoever sends it goes on, as on a busy machine."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_sent_again_and_comes_too_early_is_not_lost(number: signal.Signals) -> None:
    code = _BUSY + _DESTRUCTION.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "unwound\n", "")


def test_other_exceptions_that_python_drops_are_still_told() -> None:
    code = (
        "from kcachefs.cli import ending\n"
        "ending.unwind_when_told_to()\n"
        "class Broken:\n"
        "    def __del__(self): 1 // 0\n"
        "Broken()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "ZeroDivisionError" in done.stderr


def test_under_nohup_a_closed_terminal_ends_nothing(scene: Scene) -> None:
    with slow_statistics(scene, "nohup") as (process, _):
        process.send_signal(signal.SIGHUP)
        (scene.folder / "go on").touch()
        out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert json.loads(out)["total"]["entries"] == 0


@contextmanager
def slow_statistics(scene: Scene, *prefix: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A command that is at work on a store until there is a file "go on", and the process that it has for that."""
    scene.mount()
    scene.umount()
    begun, go_on = scene.folder / "begun", scene.folder / "go on"
    scene.in_every_python(_SLOW.format(begun=str(begun), go_on=str(go_on)))
    with subprocess.Popen(
        [*prefix, *KCACHEFS, "stats", "--json", "--store", str(scene.store)],
        env=scene.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process, int(until(lambda: begun.exists() and begun.read_text(), "it began"))
        finally:
            go_on.touch()


def test_a_bug_has_an_exit_code_of_its_own(scene: Scene) -> None:
    """Not 1, by which a check says no."""
    scene.in_every_python("import kcachefs.daemon.registry as one\none.all_mounts = lambda: 1 // 0\n")
    outcome = scene.run("status", env=scene.environment)
    assert outcome.code == 70
    assert outcome.err.endswith("ZeroDivisionError: integer division or modulo by zero\n")


@pytest.mark.parametrize(("words", "code"), [("stats --no-such-option", 2), ("stats --store nowhere", 3)])
def test_the_exit_code_is_right_where_no_word_can_be_written(scene: Scene, words: str, code: int) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*KCACHEFS, *words.split()], env=scene.environment, stderr=full, check=False)
    assert done.returncode == code


def test_words_that_are_not_utf_8_are_refused_in_one_line(scene: Scene) -> None:
    scene.mount()
    scene.run("ls", b"\xff").refused_with(2, "\\xff: is not UTF-8")
    scene.umount()
    assert scene.run("ls", b"\xff", "--store", scene.store).err.count("\n") <= 1
