"""The worker is killed, hangs, or is replaced by newer code: users of the mount see a pause and nothing else."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import kcachefs
from kcachefs import reports
from kcachefs.cli.reload import PATIENCE_SECONDS, UNWRITTEN_SECONDS
from kcachefs.core.report import Statistics
from kcachefs.daemon import registry
from kcachefs.daemon.registry import MountState
from kcachefs.engines import mounting
from kcachefs.store import Store
from kcachefs.store.records import FORMAT
from tests import command_server, forked_daemons
from tests.cli.scene import runs
from tests.copies import copy_package
from tests.daemon import kills
from tests.engines.mounting import Mount, delete_in_use, kill, temporary_folder
from tests.pids import limited
from tests.waiting import PATIENCE, until, until_gone

pytestmark = pytest.mark.mount


@pytest.fixture
def base() -> Iterator[Path]:
    with temporary_folder() as folder:
        yield folder


def state(mount: Mount) -> MountState:
    found = registry.read(str(mount.mountpoint))
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked")
def test_kills_under_writers_readers_and_eviction_are_not_noticed(seed: int) -> None:
    outcome = kills.run(30, seed)
    assert outcome.restarts == 30
    print(f"longest pause {outcome.longest_pause * 1000:.0f} ms")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked")
def test_without_a_kernel_that_sends_again_they_are_not_noticed_either(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("KCACHEFS_RESEND", "0")
    outcome = kills.run(10, seed)
    assert outcome.restarts == 10


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked")
def test_reloads_under_the_same_are_not_noticed(seed: int) -> None:
    outcome = kills.run(5, seed, reload=True)
    assert (outcome.restarts, outcome.reloads) == (0, 5)


@pytest.mark.usefixtures("forked")
def test_a_report_of_the_worker_before_is_an_error_and_the_next_is_anew(base: Path) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        path = mount.mountpoint / ".kcachefs" / "stats.json"
        with path.open("rb", buffering=0) as read, path.open("rb", buffering=0) as unread:
            assert read.readall().startswith(b"{")
            known = os.fstat(unread.fileno()).st_ino
            kills.kill_worker(mount)
            with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
                unread.read(1)
            for _ in range(20):
                with path.open("rb", buffering=0) as new:
                    assert os.fstat(new.fileno()).st_ino > known
                    assert json.loads(new.readall())["requests"]


@pytest.mark.usefixtures("forked")
def test_whoever_asks_for_reports_beside_kills_gets_whole_ones(base: Path) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount, ThreadPoolExecutor(1) as beside:
        over = threading.Event()

        def ask() -> int:
            asked = 0
            while not over.is_set():
                reports.decoded(reports.read(mount.mountpoint, reports.STATISTICS), Statistics, "stats")
                asked += 1
            return asked

        asking = beside.submit(ask)
        try:
            for _ in range(3):
                kills.kill_worker(mount)
        finally:
            over.set()
        assert asking.result() > 0


@pytest.mark.usefixtures("forked")
def test_a_worker_that_hangs_is_replaced(base: Path) -> None:
    with Mount(base / "mount", base / "store", "direct", "--hang-timeout", "1") as mount:
        (mount.mountpoint / "triton" / "file").write_bytes(b"content")
        hung = state(mount).worker_pid
        os.kill(hung, signal.SIGSTOP)
        assert (mount.mountpoint / "triton" / "file").read_bytes() == b"content"
        now = kills.wait_for_another(mount, hung)
        assert (now.restarts, now.last_exit) == (1, "no heartbeat for 1 s")


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("engine", ["direct", "pyfuse3"])
def test_a_worker_that_was_stopped_together_with_its_supervisor_serves_on(base: Path, engine: str) -> None:
    with Mount(base / "mount", base / "store", engine, "--hang-timeout", "1") as mount:
        stopped = mount.daemon()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        registry.state_path(str(mount.mountpoint)).unlink()
        began = time.monotonic()
        until(lambda: time.monotonic() > began + 2)  # it may be longer: the time to wait for a heartbeat is over
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        # Written again at the next heartbeat, which comes after whatever the supervisor made of the silence.
        until(lambda: registry.read(str(mount.mountpoint)) or not runs(stopped[0]))
        assert state(mount).restarts == 0
        assert state(mount).supervisor_pid == stopped[0]


@pytest.mark.usefixtures("forked")
def test_a_supervisor_that_may_start_no_thread_tries_again_until_it_may(base: Path) -> None:
    with (
        forked_daemons.constants({"kcachefs.daemon.supervisor.STANDBY_SECONDS": 0.0}),
        Mount(base / "mount", base / "store", "direct") as mount,
    ):
        supervisor, worker = mount.daemon()
        log = Path(state(mount).log)
        until(lambda: len(workers(supervisor)) == 2)
        with limited(supervisor) as limit:
            limit.set(limit.count - 1)  # the thread that relays for the worker goes with it
            kill(worker)
            until(lambda: "could not take over, trying another: " in log.read_text())
            limit.lift()
            os.statvfs(mount.mountpoint)
        assert "can't start new thread" in log.read_text()
        now = kills.wait_for_another(mount, worker)
        assert (now.supervisor_pid, now.restarts) == (supervisor, 1)


@pytest.mark.usefixtures("forked")
def test_a_crash_loop_is_damped_and_told(base: Path) -> None:
    with (
        forked_daemons.constants({"kcachefs.daemon.worker.FIRST_HEARTBEAT_SECONDS": 100.0}),
        Mount(base / "mount", base / "store", "direct", "--hang-timeout", "600") as mount,
    ):
        descriptors = Path(f"/proc/{state(mount).supervisor_pid}/fd")
        before = len(list(descriptors.iterdir()))
        for _ in range(6):
            kills.kill_worker(mount)
        told = Path(state(mount).log).read_text()
        # Five belong to the standby; while it is being started there are a few more.
        until(lambda: len(list(descriptors.iterdir())) <= before + 5, "descriptors of dead workers are closed")
    assert "the worker ended (signal SIGKILL); replacing it" in told
    assert "workers in a row died before serving: waiting" in told


@pytest.mark.usefixtures("forked")
def test_the_supervisor_gone_the_mount_goes_on_and_the_next_one_cleans_up(base: Path) -> None:
    mount = Mount(base / "mount", base / "store", "direct")
    with mount:
        (mount.mountpoint / "triton" / "file").write_bytes(b"content")
        supervisor, worker = mount.daemon()
        kill(supervisor)
        (mount.mountpoint / "triton" / "more").write_bytes(b"more")
        kill(worker)
        with pytest.raises(OSError, match=r"not connected|aborted"):
            os.statvfs(mount.mountpoint)
        mount.start()
        assert (mount.mountpoint / "triton" / "more").read_bytes() == b"more"


@pytest.mark.usefixtures("forked")
def test_the_pyfuse3_engine_ends_with_its_worker_and_says_so(base: Path) -> None:
    with Mount(base / "mount", base / "store", "pyfuse3") as mount:
        (mount.mountpoint / "triton" / "file").write_bytes(b"content")
        log = Path(state(mount).log)
        shown = command_server.run("status")
        assert "cannot take over" in shown.stdout
        refused = reload(mount.mountpoint)
        assert (refused.returncode, refused.stdout) == (4, "")
        assert refused.stderr.count("\n") == 1
        supervisor, worker = mount.daemon()
        kill(worker)
        until_gone(supervisor)
        assert "cannot take over from a dead worker" in log.read_text()
        mount.start()
        assert (mount.mountpoint / "triton" / "file").read_bytes() == b"content"


# --- another store ----------------------------------------------------------------------------------------------------


def deleted(store: Path, backup: Path) -> None:
    delete_in_use(store)


def another_in_its_place(store: Path, backup: Path) -> None:
    delete_in_use(store)
    with Store(store) as another:
        assert not another.recovered


def from_a_backup(store: Path, backup: Path) -> None:
    delete_in_use(store)
    shutil.copytree(backup, store)


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("replaced", [deleted, another_in_its_place, from_a_backup])
def test_no_worker_takes_over_with_another_store(base: Path, replaced: Callable[[Path, Path], None]) -> None:
    """The numbers of inodes that the kernel still knows are other files there."""
    mount = Mount(base / "mount", base / "store", "direct")
    with mount:
        (mount.mountpoint / "triton" / "old").write_bytes(b"old")
        mount.umount()
        shutil.copytree(mount.store, base / "backup")
        mount.start()
        (mount.mountpoint / "triton" / "file").write_bytes(b"mine")
        with (mount.mountpoint / "triton" / "file").open("r+b", buffering=0) as file:
            replaced(mount.store, base / "backup")
            before = sorted(base.glob("store/*"))
            refused = reload(mount.mountpoint)
            assert refused.returncode == 4
            assert "the old one keeps serving: " in refused.stderr
            assert refused.stderr.count("\n") == 1
            assert os.pread(file.fileno(), 4, 0) == b"mine"
            supervisor, worker = mount.daemon()
            log = Path(state(mount).log)
            kill(worker)
            until_gone(supervisor)
            with pytest.raises(OSError, match=r"not connected|aborted"):
                os.pwrite(file.fileno(), b"else", 0)
    why = "the store of this mount is gone" if replaced is deleted else "is not the store that this mount began with"
    assert why in refused.stderr
    assert f"the worker cannot be replaced: {mount.store}: {why}" in log.read_text()
    assert sorted(base.glob("store/*")) == before


@pytest.mark.usefixtures("forked")
def test_the_unmount_of_a_store_that_was_deleted_says_so(base: Path) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        log, supervisor = Path(state(mount).log), state(mount).supervisor_pid
        (mount.mountpoint / "triton" / "file").write_bytes(b"content")
        delete_in_use(mount.store)
        mounting.unmount(mount.mountpoint)
        until_gone(supervisor)
    assert f"the last changes could not be written: {mount.store}: the store of this mount is gone" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert not mount.store.exists()


@pytest.mark.usefixtures("forked")
def test_a_write_that_failed_does_not_crash_the_worker_at_the_unmount(base: Path) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        log = Path(state(mount).log)
        mount.store.rename(base / "away")
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            (mount.mountpoint / "triton" / "large").write_bytes(os.urandom(3 << 20))
        (base / "away").rename(mount.store)
        supervisor = state(mount).supervisor_pid
        mounting.unmount(mount.mountpoint)  # and nobody tells the worker, who hears it from the kernel
        until_gone(supervisor)
    assert "replacing it" not in log.read_text()


# --- reload -----------------------------------------------------------------------------------------------------------


def reload(mountpoint: Path) -> subprocess.CompletedProcess[str]:
    return command_server.run("reload", mountpoint)


@pytest.fixture
def installed(base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code that a test can change; the commands below run from it."""
    copy = base / "installed" / "kcachefs"
    copy_package(copy)
    monkeypatch.setenv("PYTHONPATH", str(copy.parent))
    monkeypatch.chdir(base)
    return copy


def test_a_reload_runs_the_code_that_is_installed_now(base: Path, installed: Path) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        before = state(mount)
        assert before.version == kcachefs.__version__
        with open(mount.mountpoint / "triton" / "half", "wb", buffering=0) as half:
            half.write(b"old ")
            change(installed / "__init__.py", f'"{kcachefs.__version__}"', '"9.9.9"')
            done = reload(mount.mountpoint)
            assert done.returncode == 0, done.stderr
            half.write(b"new")
        now = state(mount)
        assert (now.version, now.reloads, now.restarts) == ("9.9.9", 1, 0)
        assert str(now.worker_pid) in done.stdout
        assert now.worker_pid != before.worker_pid
        assert (mount.mountpoint / "triton" / "half").read_bytes() == b"old new"


def test_a_reload_of_code_that_cannot_start_changes_nothing(base: Path, installed: Path) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        before = state(mount)
        change(installed / "daemon" / "worker.py", "import msgspec", "import no_such_thing")
        refused = reload(mount.mountpoint)
        assert refused.returncode == 4
        assert "did not start, the old one keeps serving" in refused.stderr
        assert refused.stderr.count("\n") == 1
        (mount.mountpoint / "triton" / "file").write_bytes(b"content")
        assert state(mount).worker_pid == before.worker_pid
        change(installed / "daemon" / "worker.py", "import no_such_thing", "import msgspec")
        assert reload(mount.mountpoint).returncode == 0


def test_a_reload_of_code_that_does_not_know_the_format_changes_nothing(base: Path, installed: Path) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        before = state(mount)
        change(installed / "store" / "records.py", f"FORMAT = {FORMAT}", f"FORMAT = {FORMAT - 1}")
        refused = reload(mount.mountpoint)
        assert refused.returncode == 4
        assert f"keeps serving: {mount.store}: has format {FORMAT}, this kcachefs knows up to" in refused.stderr
        assert refused.stderr.count("\n") == 1
        (mount.mountpoint / "triton" / "file").write_bytes(b"content")
        assert state(mount).worker_pid == before.worker_pid


@pytest.fixture
def slow(base: Path, installed: Path) -> Callable[[], None]:
    """Makes the installed code wait while it is imported, until there is a file `gate`; it makes a file `begun`."""

    def slow_down() -> None:
        change(installed / "__init__.py", f'"{kcachefs.__version__}"', '"9.9.9"')
        begun, gate = str(base / "begun"), str(base / "gate")
        waits = f"import os, time\nopen({begun!r}, 'w')\nwhile not os.path.exists({gate!r}): time.sleep(0.01)\n"
        change(installed / "daemon" / "worker.py", "import msgspec", f"{waits}import msgspec")

    return slow_down


@contextmanager
def reloading(mount: Mount, base: Path) -> Iterator[subprocess.Popen[str]]:
    """A reload whose new worker has begun to start and waits at the gate."""
    command = [sys.executable, "-m", "kcachefs", "reload", str(mount.mountpoint)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            until((base / "begun").exists)
            yield process
        finally:
            (base / "gate").touch()


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_worker_that_dies_while_slow_code_is_loaded_is_replaced_at_once(
    base: Path, installed: Path, slow: Callable[[], None]
) -> None:
    change(installed / "daemon" / "supervisor.py", "STANDBY_SECONDS = 5.0", "STANDBY_SECONDS = 0.0")
    with Mount(base / "mount", base / "store", "direct") as mount:
        before = state(mount)
        # A second thread, that of the log, says that the standby has imported everything.
        until(
            lambda: [len(os.listdir(f"/proc/{pid}/task")) > 1 for pid in workers(before.supervisor_pid)] == [True] * 2
        )
        slow()
        with reloading(mount, base) as command:
            kill(before.worker_pid)
            (mount.mountpoint / "triton" / "file").write_bytes(b"content")
            assert until(lambda: state(mount).restarts) == 1
            assert state(mount).version == kcachefs.__version__
            with pytest.raises(subprocess.TimeoutExpired):  # the standby is not what the command waits for
                command.wait(UNWRITTEN_SECONDS + 1)
            (base / "gate").touch()
            assert command.wait(PATIENCE) == 0
        now = state(mount)
        assert (now.version, now.reloads, now.restarts) == ("9.9.9", 1, 1)
        assert (mount.mountpoint / "triton" / "file").read_bytes() == b"content"


def test_a_worker_that_begins_while_the_log_is_rotated_follows_it(
    base: Path, installed: Path, slow: Callable[[], None]
) -> None:
    change(installed / "daemon" / "supervisor.py", "STANDBY_SECONDS = 5.0", "STANDBY_SECONDS = 600.0")
    with Mount(base / "mount", base / "store", "direct", "--log-format", "json") as mount:
        before = state(mount)
        log = Path(before.log)

        def writers() -> set[int]:
            return {json.loads(line)["pid"] for line in log.read_text().splitlines()} if log.exists() else set()

        slow()
        kill(before.worker_pid)
        [successor] = until(lambda: [pid for pid in workers(before.supervisor_pid) if pid != before.worker_pid])
        log.rename(log.with_suffix(".1"))
        os.kill(before.supervisor_pid, signal.SIGHUP)
        until(lambda: before.supervisor_pid in writers())
        (base / "gate").touch()
        until(lambda: successor in writers())
        assert "cannot be reopened" not in log.read_text()


def workers(supervisor: int) -> list[int]:
    found = []
    for pid in children(supervisor):
        with contextlib.suppress(OSError):  # it has ended
            if b"kcachefs.daemon.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_a_standby_that_dies_is_replaced(base: Path, installed: Path) -> None:
    change(installed / "daemon" / "supervisor.py", "STANDBY_SECONDS = 5.0", "STANDBY_SECONDS = 0.0")
    change(installed / "daemon" / "crash_loop.py", "NEXT_STANDBY_SECONDS = 5.0", "NEXT_STANDBY_SECONDS = 0.1")
    with Mount(base / "mount", base / "store", "direct") as mount:
        supervisor, serving = mount.daemon()

        ended = [serving]
        for _ in range(3):
            [standby] = until(lambda: [pid for pid in workers(supervisor) if pid not in ended])
            kill(standby)
            ended.append(standby)
        assert "the standby ended (signal SIGKILL)" in Path(state(mount).log).read_text()
        assert state(mount).worker_pid == serving


def test_where_none_stands_by_the_code_that_is_loaded_takes_over_and_that_is_the_reload(
    base: Path, installed: Path, slow: Callable[[], None]
) -> None:
    change(installed / "daemon" / "supervisor.py", "STANDBY_SECONDS = 5.0", "STANDBY_SECONDS = 5000.0")
    with Mount(base / "mount", base / "store", "direct") as mount:
        slow()
        with reloading(mount, base) as command:
            kill(state(mount).worker_pid)
            (base / "gate").touch()
            (mount.mountpoint / "triton" / "file").write_bytes(b"content")
            assert command.wait(PATIENCE) == 0
        now = state(mount)
        assert (now.version, now.reloads, now.restarts) == ("9.9.9", 1, 1)


@pytest.mark.parametrize("how", ["umount", "signal"])
def test_a_mount_can_be_ended_while_slow_code_is_loaded(base: Path, slow: Callable[[], None], how: str) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        supervisor = state(mount).supervisor_pid
        slow()
        with reloading(mount, base) as command:
            started = workers(supervisor)
            if how == "umount":
                mount.umount()
            else:
                os.kill(supervisor, signal.SIGTERM)
            until_gone(supervisor, *started)
            assert command.wait(PATIENCE) == 4
            assert command.stderr is not None
            assert "was unmounted in the meantime" in command.stderr.read()


def test_a_reload_whose_supervisor_dies_says_so_at_once(base: Path, slow: Callable[[], None]) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        slow()
        with reloading(mount, base) as command:
            kill(state(mount).supervisor_pid)
            assert command.wait(PATIENCE_SECONDS / 2) == 4
            assert command.stderr is not None
            told = command.stderr.read()
        assert f"{mount.mountpoint}: its supervisor died before another worker took over; unmount and mount" in told
        assert told.count("\n") == 1


def test_a_reload_of_what_is_not_mounted_is_one_line(base: Path) -> None:
    refused = reload(base / "nothing")
    assert refused.returncode == 4
    assert refused.stderr.count("\n") == 1


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
