"""`kcachefs doctor` on machines that really have the problems it reports."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from kcachefs.daemon import registry
from kcachefs.doctor import host, places, present_mounts
from kcachefs.engines.mounting import mounted_at
from kcachefs.frameworks import headers
from kcachefs.store.places import HEADER
from tests.disks import ext4, need_root
from tests.engines.mounting import Mount, kill
from tests.frameworks.commands import KCACHEFS, PATIENCE, kcachefs
from tests.waiting import until

pytestmark = pytest.mark.mount
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount such things")


def findings(*arguments: str | Path) -> tuple[int, list[dict[str, str]]]:
    done = kcachefs("doctor", "--json", *arguments, check=False)
    told: list[dict[str, str]] = json.loads(done.stdout)["findings"]
    return done.returncode, told


@contextmanager
def mounted(*arguments: str | Path) -> Iterator[None]:
    subprocess.run(["mount", *map(str, arguments)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(arguments[-1])], check=True)


def about(told: list[dict[str, str]], path: Path) -> list[dict[str, str]]:
    return [one for one in told if str(path) in one["message"]]


def test_every_complaint_has_its_remedy(mount: Mount) -> None:
    _, told = findings()
    assert {"/dev/fuse", "fusermount3", "user_allow_other", "kernel", "store", "torch", "triton"} <= {
        one["subject"] for one in told
    }
    assert all(one["remedy"] for one in told if one["level"] != "ok")
    assert [one["level"] for one in about(told, mount.mountpoint)] == ["ok"]
    lines = kcachefs("doctor", check=False).stdout.splitlines()
    assert any(line.startswith("✓") for line in lines)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        assert line.startswith(("!", "✗")) == following.startswith("    → ")


def test_a_dead_mount_is_found(mount: Mount) -> None:
    mount.sigkill()
    code, told = findings()
    [dead] = about(told, mount.mountpoint)
    assert code == 1
    assert "does not answer" in dead["message"]
    assert f"kcachefs mount {mount.mountpoint}" in dead["remedy"]
    mount.start()
    code, told = findings()
    assert [one["level"] for one in about(told, mount.mountpoint)] == ["ok"]


def test_a_dead_mount_with_torchs_link_into_it_is_reported_and_mended(mount: Mount) -> None:
    mount.sigkill()
    place = headers.header_folder()
    assert headers.link(mount.mountpoint), "as a daemon leaves it that is killed together with its guard"
    code, told = findings()
    assert code == 1
    assert {one["level"] for one in about(told, mount.mountpoint)} == {"problem"}
    done = kcachefs("doctor", "--fix", check=False)
    assert f"fixed: {mount.mountpoint} does not answer" in done.stderr
    assert not place.is_symlink()
    _, told = findings()
    assert about(told, mount.mountpoint) == []
    mount.start()


def test_a_mount_that_does_not_outlive_its_daemon_is_noted(base: Path) -> None:
    with Mount(base / "mount", base / "store", "pyfuse3") as mount:
        _, told = findings()
        [found] = about(told, mount.mountpoint)
        assert found["level"] == "note"
        assert "--engine direct" in found["remedy"]


@as_root
def test_a_mount_that_forbids_execution_is_found(mount: Mount) -> None:
    subprocess.run(["mount", "-o", "remount,bind,noexec", str(mount.mountpoint)], check=True)
    code, told = findings()
    [found] = about(told, mount.mountpoint)
    assert (code, found["level"]) == (1, "problem")
    assert "noexec" in found["message"]


@as_root
def test_a_mount_seen_at_another_path_than_it_was_filled_at_is_found(mount: Mount, base: Path) -> None:
    kernel = mount.mountpoint / "triton" / "KEY"
    kernel.mkdir()
    (kernel / "__grp__add.json").write_text(json.dumps({"child_paths": {"add.cubin": f"{kernel}/add.cubin"}}))
    (mount.mountpoint / "triton" / "BAD").mkdir()
    (mount.mountpoint / "triton" / "BAD" / "__grp__bad.json").write_text("[" * 100_000)
    (base / "container").mkdir()
    with mounted("--bind", mount.mountpoint, base / "container"):
        code, told = findings()
        [found] = about(told, base / "container")
        assert code == 1
        assert str(mount.mountpoint) in found["message"]
        assert str(mount.mountpoint) in found["remedy"]
        assert {one["level"] for one in told if one["message"].startswith(f"{mount.mountpoint} ")} == {"ok"}


@as_root
def test_a_store_or_a_cache_in_memory_is_noticed(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "memory").mkdir()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(base / "memory" / "triton"))
    with mounted("-t", "tmpfs", "none", base / "memory"):
        _, told = findings("--store", base / "memory" / "store" / "not yet made")
        found = about(told, base / "memory")
        assert {one["subject"] for one in found} == {"store", "Triton"}
        assert all("tmpfs" in one["message"] and one["level"] == "note" for one in found)


def test_a_store_inside_a_mount_is_refused(mount: Mount) -> None:
    code, told = findings("--store", mount.mountpoint / "store")
    assert code == 1
    assert any("inside a kcachefs mount" in one["message"] for one in told)


def test_a_store_on_a_network_is_refused() -> None:
    for kind in ("nfs4", "lustre"):
        assert places.judge_store(Path("/home/me/store"), kind).level == "problem"
    assert places.judge_store(Path("/home/me/store"), "overlay").level == "note"


def test_a_link_that_leads_nowhere_is_found(base: Path) -> None:
    place = headers.header_folder()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(base / "gone" / "precompiled_headers")
    try:
        code, told = findings()
        [found] = about(told, place)
        assert code == 1
        assert found["remedy"] == f"rm {place}"
    finally:
        place.unlink()


@pytest.mark.parametrize(
    ("release", "level"), [("4.18.0-477.el8", "problem"), ("5.15.0-91-generic", "ok"), ("6.9.1", "ok"), ("7.0", "ok")]
)
def test_a_kernel_is_new_enough_or_not(release: str, level: str) -> None:
    [found] = host.kernel(release)
    assert found.level == level


def test_who_may_see_a_mount(base: Path) -> None:
    configuration = base / "fuse.conf"
    assert [one.level for one in host.sharing_with_others(configuration)] == ["note"]
    configuration.write_text("# user_allow_other\n")
    assert [one.level for one in host.sharing_with_others(configuration)] == ["note"]
    configuration.write_text("mount_max = 1000\nuser_allow_other\n")
    assert [one.level for one in host.sharing_with_others(configuration)] == ["ok"]


def test_a_disk_with_less_free_than_the_mount_is_to_leave_is_found(base: Path) -> None:
    with Mount(base / "mount", base / "store", "direct") as mount:
        assert [one for one in findings()[1] if one["subject"] == "disk"] == []
        log = next(Path(os.environ["KCACHEFS_LOG_DIR"]).glob(f"{registry.name_of(str(mount.mountpoint))}.log"))
        kcachefs("set", mount.mountpoint, "--min-free", "1000TiB")
        code, told = findings()
        [short] = about([one for one in told if one["subject"] == "disk"], base / "store")
        assert (code, short["level"]) == (1, "problem")
        assert "less than --min-free 1000.0 TiB" in short["message"]
        assert "lower --min-free" in short["remedy"]
        until(lambda: "less than --min-free 1000.0 TiB" in log.read_text(), "the log says so")
        kcachefs("set", mount.mountpoint, "--min-free", "1MiB")
        until(lambda: "free again" in log.read_text(), "the log says that it is over")
        assert log.read_text().count("less than --min-free") == 1


def test_a_configuration_that_no_mount_could_be_made_with_is_found(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "config.toml").write_text("max-sise = '5GiB'")
    monkeypatch.setenv("KCACHEFS_SYSTEM_CONFIG", str(base / "config.toml"))
    code, told = findings("--store", base / "store")
    [wrong] = [one for one in told if one["subject"] == "configuration"]
    assert (code, wrong["level"]) == (1, "problem")
    assert str(base / "config.toml") in wrong["message"]
    assert "max_size" in wrong["remedy"]
    (base / "config.toml").write_text("min_free = '1000TiB'")
    _, told = findings("--store", base / "store")
    [short] = [one for one in told if one["subject"] == "disk"]
    assert str(base / "store") in short["message"]


@need_root
def test_a_store_that_is_gone_or_on_a_dead_disk_is_found(base: Path) -> None:
    def trouble(mount: Mount) -> str:
        [found] = about([one for one in findings()[1] if one["subject"] == "mount"], mount.mountpoint)
        assert (found["level"], bool(found["remedy"])) == ("problem", True)
        return found["message"]

    with ext4(base, megabytes=48) as disk, Mount(base / "mount", disk.path / "store", "direct") as mount:
        log = next(Path(os.environ["KCACHEFS_LOG_DIR"]).glob(f"{registry.name_of(str(mount.mountpoint))}.log"))
        mount.store.rename(disk.path / "away")
        assert trouble(mount).endswith(f"its store {mount.store} is gone")
        refused = kcachefs("set", mount.mountpoint, "--max-size", "1GiB", check=False)
        assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)
        assert "the store of this mount is gone" in refused.stderr
        until(lambda: "eviction failed" in log.read_text(), "the log says so")
        (disk.path / "away").rename(mount.store)
        disk.die()
        assert "cannot be read: Input/output error" in trouble(mount)
        kill(*mount.daemon())
    assert "Traceback" not in log.read_text()
    said = f"eviction failed and will be tried again: {mount.store}: the store of this mount is gone"
    assert log.read_text().count(said) == 1


def test_a_store_that_never_answers_keeps_nobody_waiting(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(present_mounts, "ANSWER_SECONDS", 0.1)
    with Mount(base / "mount", base / "store", "direct") as mount:
        header, away = mount.store / HEADER, base / "away"
        header.rename(away)
        os.mkfifo(header)  # whose reader waits for a writer
        try:
            found = mounted_at(mount.mountpoint)
            assert found is not None
            [told] = present_mounts.mounts([found])
            assert told.message.endswith(f"its store {mount.store} does not answer")
            assert (told.level, bool(told.remedy)) == ("problem", True)
        finally:
            os.close(os.open(header, os.O_RDWR))
            away.replace(header)


def test_silent_stores_are_all_asked_at_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(present_mounts, "ANSWER_SECONDS", PATIENCE)

    def has_reader(fifo: Path) -> bool:
        with suppress(OSError):
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
            return True
        return False

    with ExitStack() as stack:
        both = [stack.enter_context(Mount(base / f"mount{n}", base / f"store{n}", "direct")) for n in range(2)]
        headers = [mount.store / HEADER for mount in both]
        for header in headers:
            header.rename(header.with_name("away"))
            os.mkfifo(header)  # whose reader waits for a writer
            stack.callback(header.with_name("away").replace, header)
        table = [found for mount in both if (found := mounted_at(mount.mountpoint)) is not None]
        asking = threading.Thread(target=lambda: list(present_mounts.mounts(table)))
        asking.start()
        for header in reversed(headers):
            until(partial(has_reader, header), f"{header} is asked for")
        asking.join(PATIENCE)
        assert not asking.is_alive()


@as_root
def test_a_container_without_the_device_is_told_the_same_by_run_and_by_doctor(base: Path) -> None:
    devices = (
        'mount -t tmpfs t "$1" && cp -a /dev/null /dev/urandom "$1" && mount --move "$1" /dev && shift && exec "$@"'
    )
    (base / "dev").mkdir()
    inside = ["unshare", "-m", "--propagation", "private", "sh", "-c", devices, "sh", str(base / "dev")]
    _told_alike(base, inside, "/dev/fuse", "--device /dev/fuse --cap-add SYS_ADMIN")


@as_root
def test_who_may_gain_no_privileges_is_told_the_same_by_run_and_by_doctor(base: Path) -> None:
    base.chmod(0o777)
    inside = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]
    _told_alike(base, inside, "fusermount3", "allowPrivilegeEscalation: true")


def _told_alike(base: Path, inside: list[str], subject: str, remedy: str) -> None:
    names = ("HOME", "XDG_CONFIG_HOME", "KCACHEFS_SYSTEM_CONFIG", "KCACHEFS_RUNTIME_DIR", "KCACHEFS_LOG_DIR")
    own = {name: str(base / name) for name in names}
    environ = {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"}

    def said(*arguments: str) -> str:
        command = [*inside, *KCACHEFS, *arguments]
        done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout + done.stderr

    [found] = [one for one in json.loads(said("doctor", "--json"))["findings"] if one["subject"] == subject]
    assert found["level"] == "problem"
    assert remedy in found["remedy"]
    told = said("run", "--store", str(base / "store"), "--", "true")
    assert f"{subject} {found['message']}; {found['remedy']}" in told
