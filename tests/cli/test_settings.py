"""`kcachefs set`, `config`, the configuration files and `mount -o remount`: one set of options, however it is given."""

from __future__ import annotations

import errno
import inspect
import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from kcachefs.cli.mount import _OF_COMMAND
from kcachefs.cli.mount import mount as mount_command
from kcachefs.cli.mount_helper import parse_options
from kcachefs.cli.set import set as set_command
from kcachefs.daemon import control
from kcachefs.daemon.options import LIVE, OPTIONS
from kcachefs.errors import DaemonError
from kcachefs.store import kept_settings
from tests.cli.scene import HELPER, Scene
from tests.cli.test_mount_helper import installed_helper
from tests.disks import tmpfs
from tests.engines.callers import OTHER, Child, in_child
from tests.waiting import until

pytestmark = pytest.mark.mount

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def config(scene: Scene, *arguments: str | Path) -> dict[str, tuple[Any, str]]:
    """Every option's value, and where it comes from."""
    found = json.loads(scene.must("config", "--json", *arguments))["options"]
    return {name: (one["value"], one["origin"]) for name, one in found.items()}


def write_user_file(scene: Scene, text: str) -> Path:
    path = scene.folder / "config" / "kcachefs" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_system_file(scene: Scene, text: str) -> Path:
    path = scene.folder / "etc" / "config.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def quota(scene: Scene) -> int:
    """The quota that the mount goes by, as df shows it."""
    state = os.statvfs(scene.mountpoint)
    return state.f_blocks * state.f_frsize


def used(scene: Scene) -> int:
    state = os.statvfs(scene.mountpoint)
    return (state.f_blocks - state.f_bfree) * state.f_frsize


# --- one list of options ----------------------------------------------------------------------------------------------

EXAMPLES = {
    "max_size": "5GiB",
    "max_files": "100",
    "min_free": "1MiB",
    "grace": "2.5",
    "floor": "triton=1MiB",
    "ceiling": "triton=2MiB",
    "max_size_per_uid": "1GiB",
    "tenant_range": "100000:65536",
    "policy": "publish",
    "writers": "uid:5",
    "base": "",
    "uid": "7",
    "gid": "7",
    "umask": "022",
    "idmap": "",
    "engine": "pyfuse3",
    "read_only": "",
    "allow_other": "",
    "hang_timeout": "60",
    "metrics_gid": "7",
    "metrics_listen": "127.0.0.1:9464",
    "fleet": "s3://bucket/prefix",
    "fleet_mode": "publish",
    "trust": "/etc/kcachefs/fleet.pub",
    "fleet_key": "/etc/kcachefs/fleet.key",
    "fleet_writers": "uid:1000",
    "fleet_scope": "x86_64-cuda90",
    "bytecode": "off",
    "log_format": "json",
    "log_level": "debug",
}


def test_the_command_line_fstab_and_the_files_know_the_same_options() -> None:
    names = [one.name for one in OPTIONS]
    assert set(inspect.signature(mount_command).parameters) - set(_OF_COMMAND) == set(names)
    live = set(inspect.signature(set_command).parameters) - {"directory", "forget", "as_json"}
    assert live == {one.name for one in LIVE}
    assert set(EXAMPLES) == set(names)
    for option in OPTIONS:
        text = EXAMPLES[option.name]
        parsed = parse_options(f"{option.name}={text}" if text else option.name)
        assert list(parsed) == [option.name]
        option.value(parsed[option.name])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-sise = '5GiB'", ["max-sise", "did you mean max_size?"]),
        ("colour = 'blue'", ["colour", "no such option"]),
        ("max_size = 10", ["--max-size 10", "too small"]),
        ("max_size = true", ["--max-size True", "not a size"]),
        ("max_size = '5 parsecs'", ["5 parsecs", "20GiB"]),
        ("grace = -1", ["--grace -1", "seconds"]),
        ("grace = nan", ["--grace nan", "seconds"]),
        ("grace = 1e300", ["--grace 1e+300", "seconds"]),
        ("max_files = 'many'", ["--max-files many", "not a number"]),
        ("uid = 99999999999", ["--uid 99999999999", "largest"]),
        ("max_size_per_uid = '10'", ["--max-size-per-uid 10", "too small"]),
        ("floor = 'triton'", ["--floor triton", "triton=2GiB"]),
        ("floor = 5", ["--floor 5", "triton=2GiB"]),
        ("read_only = 'yes'", ["--read-only yes", "true or false"]),
        ("umask = '999'", ["--umask 999", "octal"]),
        ("engine = 'steam'", ["--engine steam", "direct or pyfuse3"]),
        ("log_level = 'loud'", ["--log-level loud", "warning or error"]),
        ("writers = [1]", ["--writers", "uid:1000"]),
        ("fleet_writers = 'me'", [": --fleet-writers me", "uid:1000"]),
        ("read_only = true\npolicy = 'publish'", [": --read-only", "--policy publish contradicts it"]),
        ("policy = 'publish'\numask = '022'", [": --uid, --gid, --umask", "--policy publish"]),
        ("store = '/x'", ["store", "--store", "KCACHEFS_STORE"]),
        ("max_size = '5GiB'\nmax-size = '6GiB'", ["max-size", "twice"]),
        ("max_size =", ["not valid TOML"]),
        pytest.param(f"max_files = {'9' * 5000}", ["not valid TOML", "digits"], id="a huge number"),
        pytest.param(f"max_files = {'[' * 5000}", ["not valid TOML", "brackets"], id="brackets without end"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_makes_no_sense_in_a_file_is_one_line_that_names_it(scene: Scene, text: str, words: list[str]) -> None:
    path = write_user_file(scene, text)
    scene.run("mount", scene.mountpoint).refused_with(2, str(path), *words)
    assert scene.is_over()


def test_floors_of_a_file_above_the_quota_of_the_command_line_are_refused(scene: Scene) -> None:
    write_user_file(scene, "[floor]\ntriton = '2GiB'\n")
    scene.run("mount", scene.mountpoint, "--max-size", "1GiB").refused_with(2, "--floor", "2.0 GiB", "above --max-size")
    assert scene.is_over()


@as_root
def test_a_file_that_somebody_else_can_write_is_not_used(scene: Scene) -> None:
    path = write_user_file(scene, "max_size = '5GiB'")
    os.chown(path, OTHER.uid, OTHER.gid)
    scene.run("mount", scene.mountpoint).refused_with(6, str(path), "another user")
    os.chown(path, 0, 0)
    path.chmod(0o666)
    scene.run("mount", scene.mountpoint).refused_with(6, str(path), "anybody can write it", "chmod go-w")
    path.chmod(0o664)
    assert config(scene)["max_size"][0] == 5 << 30, "the group is ours alone"
    os.chown(path, 0, OTHER.gid)
    refused = f"group {OTHER.gid} can write it"
    scene.run("mount", scene.mountpoint).refused_with(6, str(path), refused, f"chmod g-w {path}")
    path.chmod(0o644)
    assert config(scene)["max_size"][0] == 5 << 30


@as_root
def test_a_file_in_a_folder_that_somebody_else_can_write_is_not_used(scene: Scene) -> None:
    path = write_user_file(scene, "max_size = '5GiB'")
    folder = path.parent
    os.chown(folder, OTHER.uid, OTHER.gid)
    scene.run("mount", scene.mountpoint).refused_with(6, f"{path}: its folder {folder} belongs to another user")
    os.chown(folder, 0, OTHER.gid)
    for mode in (0o777, 0o775):
        folder.chmod(mode)
        scene.run("mount", scene.mountpoint).refused_with(6, f"can write its folder {folder}", f"-w {folder}")
    folder.chmod(0o1777)
    assert config(scene)["max_size"][0] == 5 << 30, "nobody replaces a file of root's there"
    elsewhere = scene.folder / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    path.rename(elsewhere / "config.toml")
    path.symlink_to(elsewhere / "config.toml")
    assert config(scene)["max_size"][0] == 5 << 30
    os.chown(elsewhere, OTHER.uid, OTHER.gid)
    scene.run("mount", scene.mountpoint).refused_with(6, f"{path}: its folder {elsewhere} belongs to another user")


def test_a_file_that_is_none_is_refused_at_once(scene: Scene) -> None:
    path = write_user_file(scene, "")
    path.unlink()
    os.mkfifo(path)
    scene.run("config").refused_with(2, f"{path}: is not an ordinary file; remove it")
    path.unlink()
    path.mkdir()
    scene.run("config").refused_with(2, f"{path}: is a folder; remove it")


def test_what_an_editor_puts_in_front_is_no_mistake(scene: Scene) -> None:
    write_user_file(scene, "\ufeffmax_size = '5GiB'\r\n")
    assert config(scene)["max_size"][0] == 5 << 30


def test_what_a_store_keeps_and_makes_no_sense_is_named(scene: Scene) -> None:
    scene.mount()
    scene.umount()
    kept = scene.store / kept_settings.NAME
    kept.write_text('{"max_size": "-5"}')
    scene.run("mount", scene.mountpoint).refused_with(2, f"{kept}: ", "-5", "remove the file")
    kept.unlink()
    kept.mkdir()
    scene.run("mount", scene.mountpoint).refused_with(3, f"{kept}: is damaged", "remove it")


# --- which one decides ------------------------------------------------------------------------------------------------


def test_the_command_line_beats_the_store_beats_the_users_file_beats_the_systems(scene: Scene) -> None:
    system = write_system_file(scene, "max_size = '2GiB'\nmax-files = 222\ngrace = 22\nmin_free = '2MiB'\n")
    user = write_user_file(scene, "max_size = '3GiB'\nmax_files = 333\ngrace = 33\n")
    kept = scene.store / kept_settings.NAME
    scene.mount()
    scene.must("set", scene.mountpoint, "--max-size", "4GiB", "--max-files", "444")
    scene.umount()
    before = config(scene)
    assert before["max_size"] == (4 << 30, str(kept))
    scene.mount("--max-size", "5GiB")
    assert quota(scene) == 5 << 30
    holds = config(scene)
    assert holds["max_size"] == (5 << 30, "command line")
    assert holds["max_files"] == (444, str(kept))
    assert holds["grace"] == (33.0, str(user))
    assert holds["min_free"] == (2 << 20, str(system))
    assert holds["engine"] == ("direct", "default")
    scene.umount()
    scene.mount()
    assert quota(scene) == 4 << 30, "a command line holds for its mount only"
    assert "max_files         444" in scene.must("config")


def test_whoever_names_a_policy_names_all_that_goes_with_it(scene: Scene) -> None:
    write_user_file(scene, "policy = 'private'\nbase = true\nwriters = ['uid:0']\n")
    assert config(scene)["policy"][0] == "private"
    scene.mount("--policy", "publish")
    holds = config(scene)
    assert (holds["policy"], holds["base"][0], holds["writers"][0]) == (("publish", "command line"), False, [])


def test_a_mount_of_run_goes_by_the_files_too(scene: Scene) -> None:
    write_user_file(scene, "max_size = '3GiB'\n")
    show = 'stat -f -c "%b %S" "$KCACHEFS_MOUNT"'
    outcome = scene.run("run", "-q", "--", "sh", "-c", show)
    blocks, size = map(int, outcome.out.split())
    assert blocks * size == 3 << 30


# --- a live mount -----------------------------------------------------------------------------------------------------


def fill(folder: Path, count: int, size: int) -> None:
    for number in range(count):
        entry = folder / f"KEY{number:04}"
        entry.mkdir()
        (entry / "kernel.cubin").write_bytes(os.urandom(size))


def test_a_smaller_quota_evicts_at_once_and_without_a_remount(scene: Scene) -> None:
    folder = scene.mount("--min-free", "1MiB")
    fill(folder, 32, 256 << 10)
    scene.must("stats", "--json")
    with open(folder / "KEY0000" / "kernel.cubin", "rb") as held:
        content = held.read()
        shown = scene.must("set", scene.mountpoint, "--max-size", "4MiB", "--grace", "0")
        assert "max_size  4MiB  kcachefs set" in shown
        assert quota(scene) == 4 << 20
        until(lambda: len(list(folder.iterdir())) < 20, "entries were evicted")
        held.seek(0)
        assert held.read() == content, "what is open stays"
    until(lambda: json.loads(scene.must("stats", "--json"))["store"]["used_bytes"] <= 4 << 20, "the quota holds")


def test_a_quota_that_leaves_no_room_for_entries_is_warned_of(scene: Scene) -> None:
    scene.mount()
    scene.umount()
    with scene.open_store() as store:
        for number in range(1, 10_001):
            store.history.tombstones.put(number, os.urandom(29))
            store.history.events.put(number, os.urandom(300))
        assert store.history.allocated_bytes() > 2 << 20
    scene.mount()
    scene.must("set", scene.mountpoint, "--max-size", "20MiB")
    outcome = scene.run("set", scene.mountpoint, "--max-size", "2MiB")
    assert (outcome.code, outcome.out) == (0, "max_size  2MiB  kcachefs set\n")
    assert outcome.err.startswith("kcachefs: --max-size 2.0 MiB: leaves little or no room for entries, because history")
    assert outcome.err.count("\n") == 1


@as_root
def test_the_quota_of_each_user_begins_changes_and_ends_while_mounted(scene: Scene) -> None:
    folder = scene.mount("--max-size", "1GiB")
    in_child(lambda: fill(folder, 4, 1 << 20), OTHER)
    scene.must("set", scene.mountpoint, "--max-size-per-uid", "64MiB")
    assert in_child(lambda: quota(scene), OTHER) == 64 << 20
    assert in_child(lambda: used(scene), OTHER) >= 4 << 20, "what was there before counts"
    scene.must("set", scene.mountpoint, "--max-size-per-uid", "2MiB", "--grace", "0")
    until(lambda: in_child(lambda: used(scene), OTHER) <= 2 << 20, "the user's entries went")
    scene.must("set", scene.mountpoint, "--max-size-per-uid", "0")
    assert in_child(lambda: quota(scene), OTHER) == 1 << 30
    in_child(lambda: (folder / "more").write_bytes(os.urandom(4 << 20)), OTHER)
    assert [scene.status()[0][name] for name in ("reloads", "restarts")] == [2, 0]


def test_without_a_worker_that_hands_over_a_quota_of_each_user_needs_a_new_mount(scene: Scene) -> None:
    scene.mount("--engine", "pyfuse3")
    refused = scene.run("set", scene.mountpoint, "--max-size-per-uid", "1GiB", "--max-size", "5GiB")
    refused.refused_with(2, "--max-size-per-uid", "unmount")
    assert quota(scene) == 20 << 30


@as_root
def test_a_user_at_the_quota_writes_again_as_soon_as_it_is_raised(scene: Scene) -> None:
    folder = scene.mount("--max-size-per-uid", "2MiB", "--max-size", "1GiB", "--min-free", "1MiB")
    (full, tell_full), (raised, tell_raised) = os.pipe(), os.pipe()

    def grow(file: BinaryIO, count: int) -> None:
        for _ in range(count):
            file.write(os.urandom(1 << 19))
            os.fsync(file.fileno())

    def grow_beyond() -> None:
        (folder / "KEY").mkdir()
        with (folder / "KEY" / "kernel.cubin").open("wb") as file:
            with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):
                grow(file, 32)
            os.write(tell_full, b"x")
            assert os.read(raised, 1)
            grow(file, 6)

    with Child(grow_beyond, OTHER) as child:
        until(lambda: child.is_ready(0) or select.select([full], [], [], 0)[0], "it is refused")
        scene.must("set", scene.mountpoint, "--max-size-per-uid", "16MiB")
        os.write(tell_raised, b"x")
        child.result()


def test_what_was_set_survives_the_worker_a_reload_and_the_mount(scene: Scene) -> None:
    scene.mount("--max-size", "9GiB", "--log-level", "error")
    scene.must("set", scene.mountpoint, "--max-size", "3GiB", "--floor", "triton=1GiB", "--log-level", "debug")
    scene.must("set", scene.mountpoint, "--floor", "inductor=512MiB", "--floor", "triton=none")
    [state] = scene.status()
    os.kill(state["worker_pid"], signal.SIGKILL)
    until(lambda: scene.status()[0]["restarts"] == 1, "another worker serves")
    assert quota(scene) == 3 << 30
    assert config(scene)["floor"] == ({"inductor": 512 << 20}, "kcachefs set")
    assert config(scene)["log_level"][0] == "debug"
    scene.must("reload", scene.mountpoint)
    assert quota(scene) == 3 << 30
    scene.umount()
    scene.mount()
    kept = str(scene.store / kept_settings.NAME)
    assert config(scene)["max_size"] == (3 << 30, kept)
    assert config(scene)["floor"] == ({"inductor": 512 << 20}, kept)


def test_a_killed_daemon_leaves_nothing_to_a_later_mount_but_what_the_store_keeps(scene: Scene) -> None:
    scene.mount()
    scene.must("set", scene.mountpoint, "--max-size", "3GiB")
    for pid in scene.daemons():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not scene.daemons(), "the daemon is gone")
    scene.mount("--max-size", "5GiB")
    [state] = scene.status()
    os.kill(state["worker_pid"], signal.SIGKILL)
    until(lambda: scene.status()[0]["restarts"] == 1, "another worker serves")
    assert quota(scene) == 5 << 30


def test_what_is_forgotten_is_not_kept(scene: Scene) -> None:
    scene.mount()
    scene.must("set", scene.mountpoint, "--max-size", "3GiB")
    scene.must("set", scene.mountpoint, "--forget")
    assert quota(scene) == 3 << 30
    scene.umount()
    scene.mount()
    assert config(scene)["max_size"] == (20 << 30, "default")


def test_names_of_a_newer_version_are_no_obstacle_and_damage_is_named(scene: Scene) -> None:
    scene.mount()
    scene.umount()
    kept = scene.store / kept_settings.NAME
    kept.write_text('{"max_size": 4294967296, "of_tomorrow": [1]}')
    assert config(scene)["max_size"] == (4 << 30, str(kept))
    kept.write_text('{"max_size": ')
    scene.run("mount", scene.mountpoint).refused_with(3, str(kept), "damaged", "remove it")


def test_what_cannot_be_set_is_one_line_and_changes_nothing(scene: Scene) -> None:
    scene.mount("--max-size", "2GiB")
    place = str(scene.mountpoint)
    scene.run("set", place).refused_with(2, "nothing to set", "--max-size")
    scene.run("set", place, "--max-size", "10").refused_with(2, "--max-size 10", "too small")
    scene.run("set", place, "--floor", "triton=3GiB").refused_with(2, "--floor", "above --max-size")
    scene.run("set", place, "--max-size", "9GiB", "--grace", "nan").refused_with(2, "--grace nan")
    scene.run("set", place, "--policy", "private").refused_with(2, "--policy")
    scene.run("set", scene.folder, "--max-size", "9GiB").refused_with(4, "not one of your kcachefs mounts")
    with pytest.raises(DaemonError, match="--engine: cannot be changed while mounted"):
        control.ask(next(scene.runtime.glob("*.sock")), "set", {"options": {"engine": "direct"}})
    assert quota(scene) == 2 << 30
    assert kept_settings.read(scene.store) == {}


@as_root
def test_what_cannot_be_kept_is_not_set(scene: Scene) -> None:
    with tmpfs(scene.folder, "disk") as disk:
        scene.mount("--store", disk.path / "store", "--max-size", "10MiB", "--min-free", "1MiB")
        kept = 10
        for megabytes in range(9, 0, -1):
            disk.fill()
            done = scene.run("set", str(scene.mountpoint), "--max-size", f"{megabytes}MiB")
            if done.code:
                break
            kept = megabytes  # the daemon has given room back since
        done.refused_with(5, "the disk is full")
        assert quota(scene) == kept << 20
        scene.umount()


@as_root
def test_somebody_else_may_not_set_anything(scene: Scene) -> None:
    scene.mount()
    their = scene.folder / "theirs"
    their.mkdir(mode=0o700)
    os.chown(their, OTHER.uid, OTHER.gid)
    environment = {**scene.environment, "KCACHEFS_RUNTIME_DIR": str(their)}

    def set_it() -> tuple[int, str]:
        from kcachefs.cli.set import change
        from kcachefs.errors import MountError

        os.environ.update(environment)
        try:
            change(scene.mountpoint, {"max_size": "5GiB"})
        except MountError as error:
            return error.exit_code, str(error)
        return 0, ""

    code, message = in_child(set_it, OTHER)
    assert (code, "only its owner may set anything there" in message) == (6, True), message
    assert quota(scene) == 20 << 30


# --- mount -o remount -------------------------------------------------------------------------------------------------


def test_a_remount_changes_limits_and_refuses_what_cannot_change(scene: Scene) -> None:
    scene.mount()
    place = (str(scene.store), str(scene.mountpoint), "-o")
    scene.must(*place, "remount,rw,max_size=5GiB,floor=triton=1GiB,engine=direct", command=HELPER)
    assert quota(scene) == 5 << 30
    assert config(scene)["floor"][0] == {"triton": 1 << 30}
    scene.run(*place, "remount,policy=private", command=HELPER).refused_with(1, "option policy", "unmount")
    scene.run(*place, "remount,ro", command=HELPER).refused_with(1, "option read_only", "unmount")
    scene.run(*place, "remount,max_size=10", command=HELPER).refused_with(1, "too small")
    assert quota(scene) == 5 << 30
    scene.umount()
    scene.run(*place, "remount,max_size=6GiB", command=HELPER).refused_with(32, "not one of your kcachefs mounts")


@as_root
def test_mount_8_remounts_as_for_any_filesystem(scene: Scene) -> None:
    scene.mountpoint.mkdir()
    table = scene.folder / "fstab"
    table.write_text(f"{scene.store} {scene.mountpoint} kcachefs noauto,max_size=2GiB,floor=triton=1GiB 0 0\n")
    with installed_helper():
        mount = ["mount", "-T", str(table), str(scene.mountpoint)]
        subprocess.run(mount, env=scene.environment, check=True)
        assert quota(scene) == 2 << 30
        subprocess.run([*mount, "-o", "remount,max_size=3GiB"], env=scene.environment, check=True)
        assert quota(scene) == 3 << 30
        assert config(scene)["max_size"] == (3 << 30, "kcachefs set")
    scene.umount()
