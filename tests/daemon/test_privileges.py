"""What the daemon may do, which is little, and who may give it orders: only its owner and root."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from kcachefs import background
from kcachefs.daemon import control, privileges, registry
from kcachefs.daemon.preparation import NICENESS
from kcachefs.errors import DaemonError
from tests.core.policies.mounts import ALICE, as_user, each_engine, mounted, needs_root
from tests.engines.callers import in_child

pytestmark = pytest.mark.mount


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@needs_root
@each_engine
def test_a_worker_of_roots_keeps_the_right_to_its_store_and_no_other(engine: str) -> None:
    with mounted(engine) as mount:
        _, worker = mount.daemon()
        for thread in os.listdir(f"/proc/{worker}/task"):
            status = status_of(int(thread))
            assert status["NoNewPrivs"] == "1"
            for name in ("CapEff", "CapPrm", "CapBnd"):
                assert int(status[name], 16) == privileges.KEPT, (thread, name)
            assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
        assert resource.prlimit(worker, resource.RLIMIT_CORE) == (0, 0)
        (mount.mountpoint / "triton" / "file").write_bytes(b"x")
        mount.remount()
        assert (mount.mountpoint / "triton" / "file").read_bytes() == b"x"


def test_giving_up_privileges_as_a_plain_user_fails_nothing() -> None:
    def drop() -> tuple[str, int]:
        privileges.drop()
        return status_of(os.getpid())["NoNewPrivs"], privileges.held()

    assert as_user(ALICE if os.geteuid() == 0 else None, drop) == ("1", 0)


@pytest.mark.usefixtures("forked")
@needs_root
def test_the_control_socket_answers_to_nobody_else_even_where_its_folder_is_open() -> None:
    with mounted("direct") as mount:
        socket = registry.socket_path(str(mount.mountpoint))
        assert socket.parent.stat().st_mode & 0o777 == 0o700
        assert socket.stat().st_mode & 0o777 == 0o600

        def ask() -> str:
            try:
                control.ask(socket, "evict", {"patterns": ["*"]})
            except DaemonError as error:
                return str(error)
            return "answered"

        above = [folder for folder in socket.parents if folder.stat().st_uid == 0 and not folder.stat().st_mode & 0o001]
        before = {folder: folder.stat().st_mode for folder in above}
        try:
            for folder in above:
                folder.chmod(0o711)
            assert "Permission denied" in in_child(ask, ALICE)
            socket.chmod(0o666)
            assert in_child(ask, ALICE) == "not your mount"
        finally:
            for folder, mode in before.items():
                folder.chmod(mode)


@pytest.mark.usefixtures("forked")
@needs_root
def test_nothing_runs_with_anothers_rights_and_nothing_is_a_device() -> None:
    with mounted("direct") as mount:
        found = next(
            line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(mount.mountpoint) in line
        )
        assert {"nosuid", "nodev"} <= set(found.split(" ")[5].split(","))
        with pytest.raises(PermissionError):
            os.mknod(mount.mountpoint / "device", 0o020666, os.makedev(1, 3))
        for name in ("trusted.overlay.opaque", "user.x"):
            (mount.mountpoint / "triton" / "file").touch()
            with pytest.raises(OSError, match="not supported"):
                os.setxattr(mount.mountpoint / "triton" / "file", name, b"x")


@pytest.mark.usefixtures("forked")
@needs_root
@each_engine
@pytest.mark.parametrize("policy", ["publish", "private", "read-only"])
def test_under_a_policy_setuid_is_not_shown(engine: str, policy: str) -> None:
    writers = ("--writers", f"{ALICE.uid}") if policy == "read-only" else ()
    with mounted(engine, "--policy", policy, *writers) as mount:

        def make() -> int:
            path = mount.mountpoint / "triton" / "KEY"
            path.write_bytes(b"x")
            path.chmod(0o6755)
            return path.stat().st_mode & 0o7777

        assert as_user(ALICE, make) == 0o755


@needs_root
def test_a_worker_gets_processor_time_before_programs_do() -> None:
    with mounted("direct") as mount:
        worker = mount.daemon()[1]
        threads = [int(name) for name in os.listdir(f"/proc/{worker}/task")]
        assert len(threads) > 3
        others = [nice for nice in (os.getpriority(os.PRIO_PROCESS, one) for one in threads) if nice != NICENESS]
        assert set(others) <= {background.NICENESS}
        assert len(others) <= 2, "idle work, and reading ahead"
