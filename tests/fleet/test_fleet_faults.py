"""A fleet that fails: buckets that hang, trickle, refuse or lie, and processes that are killed."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.bucket_server import BucketServer
from kcachefs.errors import UsageError
from kcachefs.fleet.object_storage import PATIENT
from kcachefs.mounts.settings import mount_settings
from tests.disks import tmpfs
from tests.engines.callers import OTHER, in_child
from tests.engines.mounting import Mount, kill
from tests.fleet.caches import key
from tests.fleet.mounts import Fleet, agent_of, fleet_of, log_of, wait_for_index
from tests.forked_daemons import constants
from tests.frameworks.commands import kcachefs
from tests.frameworks.conftest import ENGINES
from tests.pids import limited
from tests.waiting import PATIENCE, until, until_gone

pytestmark = pytest.mark.mount
every_engine = pytest.mark.parametrize("engine", ENGINES)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def server(fleet: Fleet) -> Iterator[BucketServer]:
    with BucketServer(fleet.bucket).running() as server:
        yield server


def kernel(mount: Mount, number: int = 0) -> Path:
    return mount.mountpoint / "triton" / f"KEY{number}" / "add.ptx"


@pytest.mark.parametrize("behaviour", ["hang", "trickle", "refuse"])
def test_a_bucket_that_fails_is_asked_once(fleet: Fleet, server: BucketServer, behaviour: str) -> None:
    with fleet.node("two", url=server.url) as two:
        wait_for_index(two)
        server.behaviour = behaviour
        assert not kernel(two).exists()
        for number in (0, 1, 2):
            assert not kernel(two, number).parent.exists()
        assert len(server.packs_asked) == 1
        numbers = until(lambda: (found := fleet_of(two))["state"] == "closed" and found)  # reports are a moment old
        assert (numbers["given_up"], numbers["hits"]) == (1, 0)
        assert numbers["why"]
        kernel(two).parent.mkdir()
        kernel(two).write_bytes(b"compiled here")
        assert kernel(two).read_bytes() == b"compiled here"


@pytest.mark.parametrize("behaviour", ["hang", "trickle"])
def test_nobody_waits_for_long_for_what_is_fetched_ahead(empty_fleet: Fleet, tmp_path: Path, behaviour: str) -> None:
    packs = []
    for name in ("ASKED", "AHEAD"):
        (tmp_path / name / "triton" / name).mkdir(parents=True)
        (tmp_path / name / "triton" / name / "add.cubin").write_bytes(os.urandom(100_000))
        packs.append(empty_fleet.push(tmp_path / name, run="0" * 16, compile_ms=1000))
    with BucketServer(empty_fleet.bucket).running() as server, empty_fleet.node("two", url=server.url) as two:
        wait_for_index(two)
        server.behaviour, server.well_behaved = behaviour, {f"{packs[0]}.kcp"}
        assert (two.mountpoint / "triton" / "ASKED").exists()
        until(lambda: len(server.packs_asked) == 2, "the other one is fetched ahead")
        assert not (two.mountpoint / "triton" / "AHEAD").exists()
        why = until(lambda: fleet_of(two)["why"], "the bucket is said to have failed")
        limit = re.search(r"(?:no answer within|would take longer than|had not arrived after) ([\d.]+) s$", why)
        without = {"hang": PATIENT.first_byte, "trickle": PATIENT.overall}[behaviour]
        assert limit is not None, why
        assert float(limit[1]) < without, "what is fetched without a deadline takes that long"


def test_a_pack_that_is_not_worth_its_time_leaves_the_others_alone(empty_fleet: Fleet, tmp_path: Path) -> None:
    packs = {}
    for name, size in (("LARGE", 4 << 20), ("SMALL", 1000)):
        (tmp_path / name / "triton" / name).mkdir(parents=True)
        (tmp_path / name / "triton" / name / "add.cubin").write_bytes(os.urandom(size))
        packs[name] = empty_fleet.push(tmp_path / name, run=f"{size:016x}", compile_ms=500)
    with BucketServer(empty_fleet.bucket).running() as server, empty_fleet.node("two", url=server.url) as two:
        wait_for_index(two)
        server.behaviour, server.well_behaved = "slow", {f"{packs['SMALL']}.kcp"}
        assert not (two.mountpoint / "triton" / "LARGE").exists()
        assert (two.mountpoint / "triton" / "SMALL").exists()
        assert "is not worth waiting for" in log_of(two)
        assert fleet_of(two)["state"] == "ready"
        assert not (two.mountpoint / "triton" / "LARGE" / "add.cubin").exists()
        assert len(server.packs_asked) == 2, "it is not asked for again"


def test_a_bucket_that_is_not_there_changes_nothing(fleet: Fleet) -> None:
    with fleet.node("two", url="s3://bucket?endpoint=http://127.0.0.1:9") as two:
        assert not kernel(two).exists()
        until(lambda: fleet_of(two)["why"], "the agent has noticed")
        assert not kernel(two, 1).exists()
        assert fleet_of(two)["index_age"] == -1


def test_the_status_says_that_the_folder_is_not_there_until_it_is(fleet: Fleet) -> None:
    away = fleet.folder / "away"
    fleet.bucket.rename(away)
    with fleet.node("two") as two:
        until(lambda: fleet_of(two)["why"], "the agent has noticed")
        why = f"offline ({fleet.url}: there is no such folder; mount the disk that it is on, or make it with: mkdir -p "
        until(lambda: f"fleet     {why}{fleet.bucket}): no index yet" in kcachefs("status").stdout)
        away.rename(fleet.bucket)
        wait_for_index(two)
        assert kernel(two).exists()
        until(lambda: fleet_of(two)["hits"] == 1)
        words = kcachefs("status").stdout
        assert "fleet     ready: 1 pack, index " in words
        assert "; 1 hit, " in words


@every_engine
def test_a_slow_bucket_is_waited_for_while_others_are_served(fleet: Fleet, server: BucketServer, engine: str) -> None:
    server.seconds = 0.1
    with fleet.node("two", engine, url=server.url) as two:
        wait_for_index(two)
        (two.mountpoint / "jax").joinpath("other").write_bytes(b"served meanwhile")
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(kernel(two).read_bytes()))
        reader.start()
        until(lambda: server.packs_asked)
        assert (two.mountpoint / "jax" / "other").read_bytes() == b"served meanwhile"
        reader.join(PATIENCE)
        assert found[0].startswith(b"ptx of 0")


def test_a_pack_that_was_changed_is_never_used(fleet: Fleet, server: BucketServer) -> None:
    (pack,) = fleet.packs()
    raw = bytearray(pack.read_bytes())
    raw[len(raw) // 2] ^= 1
    pack.write_bytes(raw)
    with fleet.node("two", url=server.url) as two:
        wait_for_index(two)
        for number in (0, 1, 2):
            assert not kernel(two, number).exists()
        assert len(server.packs_asked) == 1
        assert fleet_of(two)["state"] == "ready"
        assert "is not used any more" in log_of(two)


def test_who_is_not_trusted_is_ignored(fleet: Fleet, tmp_path: Path) -> None:
    fleet.secret, fleet.public = key(tmp_path, "another")
    with fleet.node("two") as two:
        until(lambda: fleet_of(two)["index_age"] >= 0, "the index is loaded")
        assert not kernel(two).exists()
        assert fleet_of(two)["index_keys"] == 0
        assert "which is not trusted" in log_of(two)


def test_an_expired_pack_is_a_miss(fleet: Fleet, server: BucketServer) -> None:
    with fleet.node("two", url=server.url) as two:
        wait_for_index(two)
        fleet.packs()[0].unlink()
        assert not kernel(two).exists()
        assert not kernel(two, 1).exists()
        assert len(server.packs_asked) == 1
        assert fleet_of(two)["state"] == "ready"


@as_root
def test_a_full_disk_is_told_in_one_line(empty_fleet: Fleet, tmp_path: Path) -> None:
    large = tmp_path / "caches" / "triton" / "KEY0"
    large.mkdir(parents=True)
    (large / "add.ptx").write_bytes(os.urandom(2 << 20))
    empty_fleet.push(tmp_path / "caches", run="0" * 16, compile_ms=60_000)
    (empty_fleet.folder / "two").mkdir()
    with (
        tmpfs(empty_fleet.folder / "two", "store") as disk,
        empty_fleet.node("two", "direct", "--min-free", "0") as two,
    ):
        wait_for_index(two)
        disk.fill(leave=1 << 20)
        assert not kernel(two).exists()
        (line,) = [line for line in log_of(two).splitlines() if "could not be fetched" in line]
        assert "the disk is full" in line
        assert "Traceback" not in log_of(two)
        disk.make_room()


# --- processes that are killed ----------------------------------------------------------------------------------------


def test_another_agent_takes_the_place_of_one_that_was_killed(fleet: Fleet) -> None:
    with fleet.node("two") as two:
        wait_for_index(two)
        first = agent_of(two)
        for thread in Path(f"/proc/{first}/task").iterdir():
            assert "NoNewPrivs:\t1" in (thread / "status").read_text()
        os.kill(first, signal.SIGKILL)
        until_gone(first)
        until(lambda: agent_of(two) not in (0, first), "another agent runs")
        # Reports are a moment old: the new agent may not be there yet when they say so.
        until(lambda: kernel(two).exists(), "the new agent fetches")


def test_another_agent_takes_the_place_of_one_that_hangs(fleet: Fleet) -> None:
    with fleet.node("two") as two:
        wait_for_index(two)
        first = agent_of(two)
        os.kill(first, signal.SIGSTOP)
        assert not kernel(two).exists(), "nobody waits for it for long"
        until_gone(first)
        until(lambda: agent_of(two) not in (0, first), "another agent runs")
        until(lambda: kernel(two, 1).exists(), "the new agent fetches")
        assert "the fleet's agent hangs; it is replaced" in log_of(two)


def test_a_lookup_that_waits_survives_its_worker(fleet: Fleet, server: BucketServer) -> None:
    server.seconds = 0.3
    with fleet.node("two", url=server.url) as two:
        wait_for_index(two)
        found: list[bool] = []
        reader = threading.Thread(target=lambda: found.append(kernel(two).exists()))
        reader.start()
        until(lambda: server.packs_asked)
        kill(two.daemon()[1])
        reader.join(PATIENCE)
        wait_for_index(two)
        assert found[0] or kernel(two, 1).exists()
        assert kernel(two, 2).exists()


def test_a_fleet_goes_on_without_a_supervisor(fleet: Fleet) -> None:
    with fleet.node("two") as two:
        wait_for_index(two)
        agent = agent_of(two)
        kill(two.daemon()[0])
        assert kernel(two).exists()
        two.umount()
        until_gone(agent)


def test_whoever_is_killed_while_it_waits_is_let_go(fleet: Fleet, server: BucketServer) -> None:
    server.seconds = 0.5  # so that a first byte may take several seconds
    with fleet.node("two", url=server.url) as two:
        wait_for_index(two)
        server.behaviour = "hang"
        program = "import os, sys; os.stat(sys.argv[1])"
        waiting = subprocess.Popen([sys.executable, "-S", "-c", program, str(kernel(two))])
        until(lambda: server.packs_asked)
        waiting.kill()
        assert waiting.wait(PATIENCE) == -signal.SIGKILL
        assert fleet_of(two)["given_up"] == 0, "the fetch still goes on"


# --- policies ---------------------------------------------------------------------------------------------------------


def written_by_another(path: Path) -> str:
    """`written`, or the name of the errno with which writing a file is refused."""

    def write() -> str:
        try:
            path.write_bytes(b"mine")
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "written"

    return in_child(write, OTHER)


@as_root
@pytest.mark.parametrize(
    "options",
    [("--policy", "shared"), ("--policy", "publish"), ("--policy", "read-only"), ("--policy", "private", "--base")],
    ids=lambda options: options[1],
)
def test_others_read_what_arrives_and_cannot_change_it(fleet: Fleet, options: tuple[str, ...]) -> None:
    writers = ("--writers", "uid:0") if options[1] in ("private", "read-only") else ()
    with fleet.node("two", "direct", *options, *writers) as two:
        wait_for_index(two)
        assert in_child(kernel(two).read_bytes, OTHER).startswith(b"ptx of 0")
        for path in (kernel(two), kernel(two).with_name("more.ptx")):
            assert written_by_another(path) in ("EACCES", "EPERM", "EROFS")
        beside = two.mountpoint / "inductor" / "ab" / "cnew.py"
        assert written_by_another(beside) == ("written" if options[1] != "read-only" else "EROFS")


def test_a_supervisor_that_may_start_no_thread_to_hear_of_the_agent_tries_again(empty_fleet: Fleet) -> None:
    with constants({"kcachefs.daemon.supervisor.STANDBY_SECONDS": 0.0}), empty_fleet.node("one") as node:
        supervisor, worker = node.daemon()
        until(lambda: fleet_of(node)["state"] != "offline")
        until(lambda: len(re.findall(r"daemon\.worker", children_of(supervisor))) == 2)
        with limited(supervisor) as limit:
            limit.set(limit.count - 1)  # two threads end with the worker, and the one that relays begins again
            kill(worker)
            until(lambda: "could not take over, trying another: " in log_of(node))
            limit.lift()
            os.statvfs(node.mountpoint)
        until(lambda: node.daemon()[1] != worker)
        assert node.daemon()[0] == supervisor


def children_of(pid: int) -> str:
    """The command lines of its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return "".join(Path(f"/proc/{one}/cmdline").read_text() for one in children if Path(f"/proc/{one}").exists())


def test_options_that_make_no_sense_together_are_refused(fleet: Fleet) -> None:
    place, base = fleet.folder / "mount", {"fleet": fleet.url, "trust": [fleet.public]}
    for more, word in (
        ({"policy": "private"}, "--base"),
        ({"policy": "read-only", "fleet_mode": "publish"}, "read-only"),
        ({"fleet_mode": "publish", "fleet_key": str(fleet.folder / "none")}, "keygen"),
        ({"fleet": "http://bucket"}, "s3://"),
        ({"fleet_scope": "a/b"}, "scope"),
        ({"trust": ["nonsense"]}, "--trust"),
    ):
        with pytest.raises(UsageError, match=word):
            mount_settings(place, fleet.folder / "store", {**base, **more})
    with pytest.raises(UsageError, match="--fleet"):
        mount_settings(place, fleet.folder / "store", {"trust": [fleet.public]})
    with pytest.raises(UsageError, match="nobody is trusted"):
        mount_settings(place, fleet.folder / "store", {"fleet": fleet.url})
