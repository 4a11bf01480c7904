"""The tests' own tools: waiting that says what never happened, and commands that the server runs as a shell would."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from kcachefs.filelock import open_locked
from tests import command_server, forked_daemons
from tests.engines.mounting import Mount
from tests.waiting import until, until_gone


def test_until_returns_what_became_true() -> None:
    found = iter([0, "", "ready"])
    assert until(lambda: next(found), pause=0) == "ready"


def test_until_says_what_never_happened() -> None:
    with pytest.raises(AssertionError, match="after 0 s still not true: the mount answers"):
        until(lambda: False, "the mount answers", seconds=0, pause=0)
    with pytest.raises(AssertionError, match=r"os\.getpid\(\) == 0"):
        until(lambda: os.getpid() == 0, seconds=0, pause=0)


def test_a_process_that_stays_is_named() -> None:
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        with pytest.raises(AssertionError, match=str(sleeper.pid)):
            until_gone(sleeper.pid, seconds=0)
        sleeper.kill()
        until_gone(sleeper.pid)


def test_a_clock_that_jumps_goes_ahead_and_never_back() -> None:
    program = (
        "import time; begin = time.perf_counter(); import tests.jumping_clock\n"
        "first = time.monotonic(), time.time()\n"
        "for clock in (time.monotonic, time.time, time.monotonic_ns, time.time_ns):\n"
        "    seen = [clock() for _ in range(2000)]\n"
        "    assert seen == sorted(seen)\n"
        "passed = time.perf_counter() - begin\n"
        "assert all(now > then + passed + 10 for now, then in zip((time.monotonic(), time.time()), first))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(command_server.ROOT)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


@pytest.mark.parametrize(
    "arguments", [("umount", "relative"), ("status", "--json"), ("no-such-command",), ("--version",)]
)
def test_the_server_runs_a_command_as_a_new_python_does(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    environment = {**os.environ, "KCACHEFS_RUNTIME_DIR": str(tmp_path / "run")}
    served = command_server.run(*arguments, env=environment, cwd=tmp_path)
    started = subprocess.run(
        [sys.executable, "-m", "kcachefs", *arguments],
        env={**environment, "PYTHONPATH": str(command_server.ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (served.returncode, served.stdout, served.stderr) == (started.returncode, started.stdout, started.stderr)


def test_the_server_leaves_a_command_alone_that_has_another_kcachefs(tmp_path: Path) -> None:
    (tmp_path / "kcachefs").mkdir()
    (tmp_path / "kcachefs" / "__init__.py").touch()
    (tmp_path / "kcachefs" / "__main__.py").write_text("print('another')")
    assert command_server.run(env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd="/").stdout == "another\n"


def described(pid: int) -> dict[str, object]:
    """What others see of a process, without what differs from one to the next."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
    targets = [os.readlink(one) for one in (process / "fd").iterdir()]
    return {
        "arguments": [one for one in (process / "cmdline").read_bytes().split(b"\0") if one and not one.isdigit()],
        "environment": sorted(filter(None, (process / "environ").read_bytes().split(b"\0"))),
        "folder": os.readlink(process / "cwd"),
        "descriptors": sorted(re.sub(r"\d+", "N", target) for target in targets),
        "leads a session": os.getsid(pid) == pid,
        **{name: status[name] for name in ("Name", "SigBlk", "SigIgn", "SigCgt", "CapEff", "Seccomp", "NoNewPrivs")},
        "niceness": os.getpriority(os.PRIO_PROCESS, pid),
    }


def has_answered(supervisor: int) -> bool:
    """Whether it has closed the pipe on which it told `kcachefs mount` that it serves; that is its last argument."""
    process = Path(f"/proc/{supervisor}")
    number = (process / "cmdline").read_bytes().rstrip(b"\0").rpartition(b"\0")[2].decode()
    try:
        return not os.readlink(process / "fd" / number).startswith("pipe:")
    except FileNotFoundError:
        return True


@pytest.mark.mount
def test_a_forked_daemon_is_as_one_that_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = Mount(tmp_path / "mount", tmp_path / "store", "direct")
    seen = []
    for forked in (True, False):
        monkeypatch.setattr(command_server, "forks_daemons", forked)
        with mount:
            daemons = mount.daemon()
            for pid in daemons:  # zeros follow the arguments of one that was forked
                assert Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0\0") == forked
            until(partial(has_answered, daemons[0]), "the supervisor closes the pipe")
            seen.append([described(pid) for pid in daemons])
    for forked_one, started_one in zip(*seen, strict=True):
        assert {
            name: (value, started_one[name]) for name, value in forked_one.items() if value != started_one[name]
        } == {}


@pytest.mark.mount
def test_a_forked_daemon_has_the_constants_of_its_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = Mount(tmp_path / "mount", tmp_path / "store", "direct")
    both = {"kcachefs.core.tree.LINK_MAX": 2, "kcachefs.daemon.supervisor.STANDBY_SECONDS": 0.0}
    with forked_daemons.constants(both):
        with mount:
            children = Path("/proc/{0}/task/{0}/children".format(mount.daemon()[0]))
            until(lambda: children.read_text().count(" ") == 3, "the guard of headers, the worker and a standby")
            file = mount.mountpoint / "file"
            file.touch()
            os.link(file, mount.mountpoint / "second")
            with pytest.raises(OSError) as refused:
                os.link(file, mount.mountpoint / "third")
            assert refused.value.errno == errno.EMLINK
        monkeypatch.setattr(command_server, "forks_daemons", False)
        with pytest.raises(AssertionError, match="only daemons that are forked"):
            mount.start()
    monkeypatch.undo()
    with forked_daemons.constants({"kcachefs.core.tree.NO_SUCH": 2}), pytest.raises(RuntimeError):
        mount.start()
    with mount:
        os.link(mount.mountpoint / "file", mount.mountpoint / "third")


def test_a_run_removes_what_killed_ones_left_in_memory(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not tmp_path.is_relative_to(memory):
        pytest.skip("the folders of the tests do not lie in memory here")
    left, used = (Path(tempfile.mkdtemp(prefix="kcachefs-test-run-", dir=memory)) for _ in range(2))
    (left / "file").write_text("text")
    lock = open_locked(used, os.O_RDONLY, fcntl.LOCK_EX)
    try:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", __file__]
        subprocess.run(command, cwd=command_server.ROOT, check=True, capture_output=True)
        assert not left.exists()
        assert used.exists()
    finally:
        os.close(lock)
        shutil.rmtree(used, ignore_errors=True)
