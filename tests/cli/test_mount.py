"""`kcachefs mount`: what it makes, and what it leaves behind when it fails."""

from __future__ import annotations

import errno
import os
import pty
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kcachefs.errors import MountError
from kcachefs.mounts.places import REMEMBERED
from tests.cli.scene import KCACHEFS, Scene, holding, kill_and_wait
from tests.disks import ext4
from tests.engines.callers import OTHER, in_child
from tests.engines.refusals import refused
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.mount

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def test_a_mount_answers_when_the_command_returns_and_keeps_what_it_was_given(scene: Scene) -> None:
    folder = scene.mount()
    (folder / "kernel").write_bytes(b"cubin")
    assert {"triton", "inductor", "cuda", "nvrtc"} <= set(os.listdir(scene.mountpoint))
    scene.umount()
    assert scene.is_over()
    assert os.listdir(scene.mountpoint) == []
    scene.mount("--engine", "direct", "--max-size", "1GiB")
    assert (folder / "kernel").read_bytes() == b"cubin"
    state = os.statvfs(scene.mountpoint)
    assert state.f_blocks * state.f_frsize == 1 << 30


@pytest.mark.parametrize(
    "name",
    ["ü-日本-🜂, space\ttab\\backslash=\nnewline#'\"", "/".join(["x" * 200] * 18), "-dash"],
    ids=["odd", "long", "dash"],
)
def test_any_path_can_be_mounted_and_hold_a_store(scene: Scene, name: str) -> None:
    mountpoint, store = scene.folder / "m" / name, scene.folder / "s" / name
    scene.must("mount", mountpoint, "--store", store)
    (mountpoint / "triton" / "file").write_text("text")
    [state] = scene.status()
    assert (state["mountpoint"], state["store"]) == (str(mountpoint), str(store))
    scene.must("umount", mountpoint)
    assert scene.is_over()


def test_a_runtime_directory_may_be_deeper_than_a_sockets_address(scene: Scene) -> None:
    scene.runtime = scene.folder / ("deep" * 40)
    scene.environment["KCACHEFS_RUNTIME_DIR"] = str(scene.runtime)
    (scene.mount() / "kernel").write_bytes(b"cubin")
    assert "total" in scene.must("stats", "--mount", scene.mountpoint)
    scene.umount()
    assert scene.is_over()


def test_paths_may_be_relative(scene: Scene) -> None:
    scene.must("mount", "here/mount", "--store", "./here/store")
    [state] = scene.status()
    assert state["mountpoint"] == str(scene.folder / "here" / "mount")
    assert state["store"] == str(scene.folder / "here" / "store")
    scene.must("umount", "mount/../mount", cwd=scene.folder / "here")
    assert scene.is_over()


def test_a_symlink_leads_to_the_mount(scene: Scene) -> None:
    scene.mountpoint.mkdir()
    (scene.folder / "link").symlink_to(scene.mountpoint)
    scene.must("mount", "link")
    assert scene.mounted() == [str(scene.mountpoint)]
    scene.run("mount", "link").refused_with(4, str(scene.mountpoint), "mounted already", "kcachefs status")
    for pid in scene.daemons():
        kill_and_wait(pid)
    scene.must("mount", "link")
    scene.must("umount", "link")
    assert scene.is_over()


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["mount", "--max-size", "20 parsecs"], 2, ["20 parsecs", "20GiB"]),
        (["mount", "--max-size", "0"], 2, ["'0'", "20GiB"]),
        (["mount", "--max-size", "10"], 2, ["--max-size 10", "too small", "1.0 MiB"]),
        (["mount", "--floor", "triton=2G", "--ceiling", "triton=1G"], 2, ["--floor triton", "--ceiling"]),
        (["mount", "--max-size", "1G", "--floor", "triton=2G"], 2, ["--floor", "above --max-size"]),
        (["mount", "--uid", "99999999999"], 2, ["--uid 99999999999", "largest"]),
        (["mount", "--max-size", "-1"], 2, ["-1", "20GiB"]),
        (["mount", "--max-size", "9" * 19 + "T"], 2, ["9" * 19 + "T", "20GiB"]),
        (["mount", "--engine", "steam"], 2, ["steam", "direct", "pyfuse3"]),
        (["mount", "--colour", "blue"], 2, ["--colour", "kcachefs mount --help"]),
        (["one", "two"], 2, ["two", "kcachefs mount --help"]),
        (["file"], 4, ["{}/file", "is a file", "choose a directory"]),
        (["file/under/it"], 4, ["{}/file/under/it", "is a file", "choose a directory"]),
        (["full"], 4, ["{}/full", "not empty", "choose an empty directory"]),
        (["x" * 256], 4, ["x" * 256, "too long", "choose another"]),
        (["mount", "--store", "file"], 3, ["{}/file", "is a file"]),
        (["mount", "--store", "file/store"], 3, ["{}/file/store", "is a file"]),
        (["mount", "--store", "full"], 3, ["{}/full", "not a kcachefs store", "choose an empty directory"]),
        (["mount", "--store", "mount/store"], 2, ["{}/mount", "inside each other"]),
        (["store/mount", "--store", "store"], 2, ["{}/store/mount", "inside each other"]),
        (["new/mount", "--store", "/proc/nothing"], 3, ["/proc/nothing"]),
        (["/proc/nothing/mount"], 4, ["/proc/nothing/mount", "cannot be created"]),
        ([b"not-utf8-\xff"], 2, ["not-utf8-", "UTF-8"]),
    ],
    ids=lambda value: " ".join(map(str, value))[:30] if isinstance(value, list) else "",
)
def test_what_cannot_be_mounted_is_one_line_and_touches_nothing(
    scene: Scene, arguments: list[str], code: int, words: list[str]
) -> None:
    (scene.folder / "file").write_text("untouched")
    (scene.folder / "full").mkdir()
    (scene.folder / "full" / "file").write_text("untouched")
    before = scene.files()
    outcome = scene.run("mount", *arguments)
    outcome.refused_with(code, *(word.format(scene.folder) for word in words))
    assert scene.files() == before
    assert scene.is_over()


def test_a_mount_is_not_mounted_twice(scene: Scene) -> None:
    folder = scene.mount()
    before = scene.status()
    scene.run("mount", scene.mountpoint).refused_with(4, str(scene.mountpoint), "mounted already", "kcachefs status")
    scene.run("mount", scene.mountpoint, "--store", "other").refused_with(4, str(scene.mountpoint), "mounted already")
    scene.run("mount", "second").refused_with(3, str(scene.store), f"kcachefs umount {scene.mountpoint}", "--store")
    assert scene.mounted() == [str(scene.mountpoint)]
    assert [(now["supervisor_pid"], now["worker_pid"]) for now in scene.status()] == [
        (then["supervisor_pid"], then["worker_pid"]) for then in before
    ]
    assert not (scene.folder / "second").exists()
    assert not (scene.folder / "other").exists()
    (folder / "still").write_text("served")


def test_a_store_that_another_process_has_open_is_named_with_that_process(scene: Scene) -> None:
    scene.mount()
    scene.umount()
    for options in ([], ["-f"], ["--engine", "pyfuse3"]):
        with scene.open_store():
            scene.run("mount", "new/mount", *options).refused_with(3, str(scene.store), f"process {os.getpid()}")
        assert not (scene.folder / "new").exists()
        assert scene.is_over()


def test_a_directory_where_another_filesystem_is_mounted_is_refused(scene: Scene) -> None:
    scene.run("mount", "/proc").refused_with(4, "/proc", "proc filesystem", "choose another directory")


@as_root
def test_a_store_on_a_read_only_disk_is_named(scene: Scene) -> None:
    with ext4(scene.folder) as disk:
        scene.mount("--store", disk.path / "store", "--min-free", "1MiB")
        scene.umount()
        disk.remount_read_only()
        refused = scene.run("mount", scene.mountpoint, "--store", disk.path / "store")
        refused.refused_with(3, f"{disk.path / 'store'}: is on a read-only filesystem", "use another --store")


@as_root
def test_a_directory_of_someone_else_is_refused_to_a_user_without_rights(scene: Scene) -> None:
    # The command checks this itself, before it starts any process.
    from kcachefs.errors import MountDenied
    from kcachefs.mounts.making import created_directory, refuse_non_empty

    closed = scene.folder / "closed"
    closed.mkdir(mode=0o700)

    def attempt() -> None:
        with pytest.raises(MountDenied, match="may not read it"):
            refuse_non_empty(closed)
        with pytest.raises(MountDenied, match="cannot be created"), created_directory(closed / "new"):
            pass

    in_child(attempt, OTHER)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("name", ["folder", "folder/mount"])
def test_a_link_that_somebody_puts_in_the_way_of_a_new_directory_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, moment: str
) -> None:
    """Root mounts below a folder that everybody may write to."""
    from kcachefs.mounts.making import created_directory

    wanted, target, secret = tmp_path / "folder" / "mount", tmp_path / name, tmp_path / "secret"
    secret.mkdir(mode=0o700)
    mkdir = os.mkdir

    def raced(path: str, *arguments: int, dir_fd: int | None = None) -> None:
        is_target = Path(path).name == target.name
        if is_target and moment == "before":
            target.symlink_to(secret)
        mkdir(path, *arguments, dir_fd=dir_fd)
        if is_target and moment == "after":
            target.rename(tmp_path / "away")
            target.symlink_to(secret)

    monkeypatch.setattr(os, "mkdir", raced)
    with pytest.raises(MountError, match="choose a directory"), created_directory(wanted, shared=True):
        pass
    assert stat.S_IMODE(secret.stat().st_mode) == 0o700
    assert list(secret.iterdir()) == []


def test_a_shared_directory_and_its_parents_can_be_reached_whatever_the_umask(tmp_path: Path) -> None:
    from kcachefs.mounts.making import created_directory

    wanted = tmp_path / "parent" / "mount"
    before = os.umask(0o077)
    try:
        with created_directory(wanted, shared=True):
            assert [stat.S_IMODE(one.stat().st_mode) for one in (wanted.parent, wanted)] == [0o711, 0o755]
        with pytest.raises(ZeroDivisionError), created_directory(wanted / "more", shared=True):
            _ = 1 // 0
    finally:
        os.umask(before)
    assert list(wanted.iterdir()) == []


def test_of_two_that_mount_at_one_place_at_once_one_wins(scene: Scene) -> None:
    commands = [
        subprocess.Popen(
            [*KCACHEFS, "mount", scene.mountpoint, "--store", scene.folder / name],
            env=scene.environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two", "three")
    ]
    said = [command.communicate(timeout=PATIENCE)[1] for command in commands]
    assert sorted(command.returncode for command in commands) == [0, 4, 4], said
    assert all("another process is mounting" in line or "mounted already" in line for line in said if line)
    assert scene.mounted() == [str(scene.mountpoint)]
    scene.umount()
    assert scene.is_over()


# --- after a crash ----------------------------------------------------------------------------------------------------


def test_a_mount_that_a_crash_left_is_mounted_anew_though_someone_is_still_in_it(scene: Scene) -> None:
    folder = scene.mount()
    (folder / "file").write_text("acknowledged")
    with holding("sh", "-c", f"cd {folder} && echo holding && read -r _"):
        for pid in scene.daemons():
            kill_and_wait(pid)
        with refused(errno.ENOTCONN):
            os.statvfs(scene.mountpoint)
        scene.mount()
        assert (folder / "file").read_text() == "acknowledged"
        assert scene.mounted() == [str(scene.mountpoint)]
        scene.umount()
    assert scene.is_over()


def test_a_mount_outlives_its_supervisor_and_is_unmounted_cleanly(scene: Scene) -> None:
    folder = scene.mount()
    [state] = scene.status()
    kill_and_wait(state["supervisor_pid"])
    (folder / "file").write_text("served")
    assert [mount["worker_pid"] for mount in scene.status()] == [state["worker_pid"]]
    scene.umount()
    scene.open_store().close()
    assert scene.is_over()
    assert scene.status() == []


# --- terminals, services, signals -------------------------------------------------------------------------------------


def test_a_mount_survives_the_terminal_it_was_made_in(scene: Scene) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [*KCACHEFS, "mount", str(scene.mountpoint)], scene.environment)
    said = b""
    try:
        while piece := os.read(terminal, 1024):
            said += piece
    except OSError:
        pass  # EIO: everything on the terminal has let go of it
    finally:
        os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, said
    assert said.startswith(b"mounted at")
    (scene.mountpoint / "triton" / "file").write_text("served")
    for daemon in scene.daemons():
        assert os.getsid(daemon) != os.getsid(0)
        assert Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[4] == "0", "has a terminal"
    scene.umount()


def test_a_mount_in_the_foreground_ends_with_its_terminal(scene: Scene) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        buffered = {name: value for name, value in scene.environment.items() if name != "PYTHONUNBUFFERED"}
        os.execve(sys.executable, [*KCACHEFS, "mount", "-f", str(scene.mountpoint)], buffered)
    try:
        # It answers a moment before it knows that it does: who ends it in between ended it before it was mounted.
        until(lambda: (scene.store / REMEMBERED).exists(), "it is mounted")
    finally:
        os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0
    assert scene.is_over()
    scene.open_store().close()


def test_an_engine_that_is_asked_for_serves(scene: Scene) -> None:
    folder = scene.mount("--engine", "pyfuse3")
    (folder / "file").write_text("text")
    assert [mount["engine"] for mount in scene.status()] == ["pyfuse3"]
    scene.umount()
    assert scene.is_over()


# --- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["direct", "pyfuse3"])
def test_a_read_only_mount_can_be_read_and_nothing_else(scene: Scene, engine: str) -> None:
    folder = scene.mount()
    (folder / "file").write_text("text")
    scene.umount()
    scene.mount("--read-only", "--engine", engine)
    assert (folder / "file").read_text() == "text"
    assert os.listdir(folder) == ["file"]
    for attempt in (
        lambda: (folder / "new").touch(),
        lambda: (folder / "file").write_text("other"),
        lambda: (folder / "new").mkdir(),
        lambda: (folder / "file").unlink(),
        lambda: (folder / "file").rename(folder / "moved"),
        lambda: (folder / "file").chmod(0o600),
        lambda: os.truncate(folder / "file", 0),
    ):
        with refused(errno.EROFS):
            attempt()
    scene.umount()
    scene.mount()
    assert (folder / "file").read_text() == "text"


@as_root
def test_other_users_see_the_mount_unless_it_is_kept_to_its_owner(scene: Scene) -> None:
    folder = scene.mount()

    def write() -> None:
        (folder / "theirs").write_text("text")

    in_child(write, OTHER)
    assert (folder / "theirs").stat().st_uid == OTHER.uid
    scene.umount()
    scene.mount("--no-allow-other")
    assert (folder / "theirs").read_text() == "text"

    def look() -> None:
        with refused(errno.EACCES):
            os.listdir(folder)

    in_child(look, OTHER)


def test_less_free_space_than_the_mount_is_to_leave_is_said(scene: Scene) -> None:
    outcome = scene.run("mount", scene.mountpoint, "--min-free", "1000T")
    assert outcome.code == 0
    assert "less than --min-free 1000.0 TiB" in outcome.err
    assert scene.mounted() == [str(scene.mountpoint)]


@pytest.mark.parametrize("options", [[], ["-f"]], ids=["background", "foreground"])
def test_a_limit_of_file_sizes_is_named_and_leaves_no_mount(scene: Scene, options: list[str]) -> None:
    outcome = scene.run("mount", scene.mountpoint, *options, preexec_fn=limit_files)
    outcome.refused_with(4, "a file may have at most 2,048,000 bytes here", "ulimit -f")
    assert scene.status() == []
    assert scene.is_over()
    assert not any("Traceback" in log.read_text() for log in (scene.folder / "log").glob("*"))


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_048_000, 2_048_000))


@as_root
def test_a_daemon_that_runs_out_of_descriptors_once_it_has_mounted_unmounts(scene: Scene) -> None:
    scene.in_every_python(
        """
import os, resource, sys
from kcachefs.errors import MountError
from kcachefs.engines import mounting

def mount_and_use_up(*arguments, mount=mounting.mount, **options):
    device = mount(*arguments, **options)
    probe = os.dup(device)
    os.close(probe)
    resource.setrlimit(resource.RLIMIT_NOFILE, (probe, probe))
    return device

mounting.mount = mount_and_use_up
"""
    )
    outcome = scene.run("mount", scene.mountpoint, env=scene.environment)
    outcome.refused_with(4, f"{scene.mountpoint}: could not be mounted: ", "Too many open files")
    assert scene.is_over()
