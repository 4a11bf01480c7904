"""What a mount offers to publish, with the test in the place of the agent."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcachefs.core import Filesystem, fresh_entries
from kcachefs.core.arrivals import ArrivingEntry, ArrivingFile
from kcachefs.core.caller import Caller
from kcachefs.core.remote import Found
from kcachefs.fleet import agent_protocol as protocol
from kcachefs.fleet import key_index, offers
from kcachefs.fleet.agent_protocol import Alive, IndexReady, Offer, Refresh, Taken, Used
from kcachefs.fleet.client import REFRESH_SECONDS, FleetClient
from kcachefs.fleet.deliveries import entry_key
from kcachefs.fleet.offers import Offers
from kcachefs.fleet.options import FleetOptions
from kcachefs.fleet.parcels import OpenParcel, ParcelEntry
from tests.core.older_layouts import KERNELS, older_layouts
from tests.core.trees import find, opened, user, write
from tests.waiting import PATIENCE, until


class Agent:
    """The other end of a worker's channel, and the worker's side of it."""

    def __init__(self) -> None:
        self._supervisor, self._agents = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.client = FleetClient(self._agents, lambda: 0)

    def start(self, fs: Filesystem, folder: Path, uids: tuple[int, ...] = ()) -> None:
        self.offers = Offers(
            fs, self.client, FleetOptions(url="file:///none", mode="publish", writer_uids=uids), folder
        )
        self.channel, worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(PATIENCE)
        self.client.start(fs)
        socket.send_fds(self._supervisor, [b"agent"], [worker.fileno()])
        worker.close()
        until(lambda: self.client.is_connected)

    def offered(self) -> tuple[Offer, dict[str, bytes]]:
        """The next offer, and the files in it."""
        message, fd = protocol.receive_from_worker(self.channel)
        assert isinstance(message, Offer), message
        parcel = OpenParcel(fd)
        os.close(fd)
        return message, {
            "/".join((entry.namespace, *entry.path, file.name)): parcel.content(file)
            for entry in parcel.entries
            for file in entry.files
        }

    def take(self, offer: Offer, *, is_done: bool, why: str = "", is_fault: bool = False) -> None:
        protocol.send(self.channel, Taken(offer.batch, is_done, why, is_fault))
        until(lambda: not self.client.taken.empty())
        self.offers._hear()

    def close(self) -> None:
        self.client.close()
        self.channel.close()
        self._supervisor.close()
        ours = {"kcachefs-fleet", "kcachefs-import"}
        until(lambda: not ours & {thread.name for thread in threading.enumerate()}, "its threads have ended")
        self._agents.close()


@pytest.fixture
def in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything rests at once."""
    monkeypatch.setattr(offers, "QUIET_SECONDS", 0.0)


@contextmanager
def agent(fs: Filesystem, folder: Path, uids: tuple[int, ...] = (), made: Agent | None = None) -> Iterator[Agent]:
    """`made`: the one whose client the filesystem asks already."""
    folder.mkdir(exist_ok=True)
    made = made or Agent()
    made.start(fs, folder, uids)
    try:
        yield made
    finally:
        made.close()


def test_what_older_layouts_had_as_one_entry_is_offered_in_parts(tmp_path: Path, in_no_time: None) -> None:
    kernels = {KERNELS["sglang/jit/sm90a"].format(name): name.encode() for name in "ab"}
    older, newer = kernels
    with older_layouts(), opened(tmp_path / "store") as fs:
        write(fs, older, kernels[older])
        fs.settle()
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        write(fs, newer, kernels[newer])
        fs.settle()
        played.offers.turn()
        assert played.offered()[1] == kernels


def test_what_is_compiled_is_offered_once_and_not_used_by_that(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        write(fs, "triton/KEY/add.cubin", b"kernel")
        write(fs, "inductor/ab/cabc.py", b"code")
        write(fs, "inductor/ab/cabc.so", b"library")
        write(fs, "triton/tmp.pid_1_2/add.cubin", b"unfinished")
        fs.settle()
        before = fs.statistics().total
        played.offers.turn()
        offer, files = played.offered()
        assert files == {
            "triton/KEY/add.cubin": b"kernel",
            "inductor/ab/cabc.py": b"code",
            "inductor/ab/cabc.so": b"library",
        }
        played.offers.turn()  # one at a time
        played.take(offer, is_done=True)
        played.offers.turn()
        assert json.loads((tmp_path / "fleet" / "queue.json").read_bytes()) == []
        assert played.client.numbers.queue == 0
        fs.uses.flush()
        after = fs.statistics().total
        assert (after.hits, after.last_used) == (before.hits, before.last_used)


def test_what_came_from_elsewhere_or_from_strangers_is_not_offered(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet", (1000,)) as played:
        arriving = ArrivingEntry(b"triton", (b"CAME",), b"", [ArrivingFile((b"a.ptx",), 0o644, 1, b"came")])
        assert fs.arrivals.bring(arriving, is_asked=True, was_missed=lambda place: False)
        write(fs, "triton/ROOTS/add.cubin", b"root's")
        write(fs, "triton/OURS/add.cubin", b"ours", user(1000))
        fs.settle()
        played.offers.turn()
        assert played.offered()[1] == {"triton/OURS/add.cubin": b"ours"}


def test_an_offer_that_failed_is_made_again_later_and_by_the_next_worker(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs:
        with agent(fs, tmp_path / "fleet") as played:
            write(fs, "triton/KEY/add.cubin", b"kernel")
            fs.settle()
            played.offers.turn()
            first, _ = played.offered()
            played.take(first, is_done=False)
            assert not played.offers._offer_next(time.monotonic())
            assert played.offers._offer_next(time.monotonic() + offers.RETRY_SECONDS + 1)
            assert played.offered()[0] == first
        with agent(fs, tmp_path / "fleet") as played:
            played.offers.turn()
            assert played.offered()[0] == first


def test_after_a_fault_nothing_else_is_offered_for_a_while(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        under_way, now = offer_and_queue_two(fs, played), time.monotonic()
        played.take(under_way, is_done=False, why="refused", is_fault=True)
        assert not played.offers._offer_next(now), "the other batch would fare no better"
        played.offers.turn()
        numbers = played.client.report()
        assert (numbers.queue, numbers.publish_why, numbers.state) == (3, "refused", "ready")
        assert played.offers._offer_next(time.monotonic() + offers.RETRY_SECONDS + 1)
        played.take(played.offered()[0], is_done=True)
        assert played.client.report().publish_why == ""


def test_a_batch_that_always_fails_does_not_keep_the_others_back(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        bad = offer_and_queue_two(fs, played)
        played.take(bad, is_done=False, is_fault=True)
        assert played.offers._offer_next(time.monotonic() + offers.RETRY_SECONDS + 1)
        other, files = played.offered()
        assert files == {"cupy/kernel.cubin": b"whole", "cupy/other.cubin": b"whole too"}
        played.take(other, is_done=False, is_fault=True)
        assert played.offers._offer_next(time.monotonic() + offers.RETRY_SECONDS + 1)
        assert played.offered()[0] == bad, "the one that failed longest ago"


def test_at_the_end_everything_is_offered_once_more_after_a_fault(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        bad = offer_and_queue_two(fs, played)
        played.take(bad, is_done=False, is_fault=True)
        ending = threading.Thread(target=played.offers.finish, args=(PATIENCE,))
        ending.start()
        other, files = played.offered()
        assert files == {"cupy/kernel.cubin": b"whole", "cupy/other.cubin": b"whole too"}, "what failed comes last"
        protocol.send(played.channel, Taken(other.batch, True))
        assert played.offered()[0] == bad
        protocol.send(played.channel, Taken(bad.batch, False, "refused", True))
        ending.join(PATIENCE)
        assert not ending.is_alive(), "it has failed again"


def test_while_the_bucket_is_left_alone_nothing_is_offered_but_at_the_end(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        write(fs, "triton/KEY/add.cubin", b"kernel")
        fs.settle()
        protocol.send(played.channel, Alive(1000.0, "down", 0, 0, 0))
        until(lambda: played.client.is_closed)
        played.offers.turn()
        assert played.client.report().queue == 1
        assert not played.offers._offered
        played.offers.finish(0.1)
        assert played.offered()[1] == {"triton/KEY/add.cubin": b"kernel"}


def test_how_long_an_offer_waits_has_a_limit_however_often_it_failed(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        write(fs, "triton/KEY/add.cubin", b"kernel")
        fs.settle()
        played.offers.turn()
        offer, _ = played.offered()
        played.offers._queue[0].tries = 5000
        played.take(offer, is_done=False)
        assert not played.offers._offer_next(time.monotonic() + offers.RETRY_MOST_SECONDS / 2)
        assert played.offers._offer_next(time.monotonic() + offers.RETRY_MOST_SECONDS + 1)


def test_the_queue_is_bounded(tmp_path: Path, in_no_time: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "QUEUE_MAX", 3)
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        for number in range(5):
            write(fs, f"triton/KEY{number}/add.cubin", b"kernel %d" % number)
        fs.settle()
        played.offers.turn()
        assert len(played.offered()[1]) == 3


def test_what_was_evicted_meanwhile_is_forgotten(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        write(fs, "triton/KEY/add.cubin", b"kernel")
        fs.settle()
        played.offers._enqueue(fs.fresh.all())
        fs.unlink(Caller(0, 0), fs.tree.find(fs.tree.find(1, b"triton") or 0, b"KEY") or 0, b"add.cubin")
        played.offers.turn()
        assert json.loads((tmp_path / "fleet" / "queue.json").read_bytes()) == []


@pytest.mark.parametrize("age", [2 * REFRESH_SECONDS, -86400.0], ids=["old", "of the future"])
def test_a_miss_has_an_old_index_refreshed(tmp_path: Path, age: float) -> None:
    """Or one that was loaded while the clock was ahead: nobody knows how old that is."""
    played = Agent()
    with opened(tmp_path / "store", remote=played.client) as fs, agent(fs, tmp_path / "fleet", made=played):
        assert fs.elsewhere is not None
        index = tmp_path / "fleet" / "index"
        key_index.write(index, [], loaded=time.time() - age)
        protocol.send(played.channel, IndexReady(str(index)))
        until(lambda: played.client.report().index_age >= max(0.0, age))
        triton = fs.tree.find(1, b"triton") or 0
        assert fs.elsewhere.missed(Caller(0, 0, 1), triton, b"KEY") is Found.NOWHERE
        message, _ = protocol.receive_from_worker(played.channel)
        assert message == Refresh()


def test_the_agent_is_told_what_was_used(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        arriving = ArrivingEntry(b"triton", (b"CAME",), b"", [ArrivingFile((b"a.ptx",), 0o644, 1, b"came")])
        fs.arrivals.bring(arriving, is_asked=True, was_missed=lambda place: False)
        fs.settle()
        played.offers._tell_used()
        message, _ = protocol.receive_from_worker(played.channel)
        assert message == Used([entry_key(ParcelEntry("triton", ("CAME",), "", ()))])


def test_what_others_wrote_there_meanwhile_is_not_offered(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet", (1000,)) as played:
        write(fs, "triton/FIRST/add.cubin", b"first", user(1000))
        fs.settle()
        played.offers.turn()
        under_way, _ = played.offered()
        write(fs, "cupy/kernel.cubin", b"ours", user(1000))
        write(fs, "cupy/other.cubin", b"ours too", user(1000))
        fs.settle()
        played.offers.turn()  # these wait in the queue
        write(fs, "cupy/kernel.so", b"a stranger's", user(2000))
        fs.settle()
        played.take(under_way, is_done=True)
        played.offers.turn()
        assert played.offered()[1] == {"cupy/other.cubin": b"ours too"}


def offer_and_queue_two(fs: Filesystem, played: Agent) -> Offer:
    """One entry is on its way, and `kernel` and `other` wait in the queue behind it."""
    write(fs, "triton/FIRST/add.cubin", b"first")
    fs.settle()
    played.offers.turn()
    under_way, _ = played.offered()
    write(fs, "cupy/kernel.cubin", b"whole")
    write(fs, "cupy/other.cubin", b"whole too")
    fs.settle()
    played.offers.turn()
    return under_way


def test_what_is_being_written_is_not_offered(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        under_way = offer_and_queue_two(fs, played)
        ino, _ = fs.create(user(0), find(fs, "cupy"), b"kernel.so", 0o644)
        fs.write(ino, 0, b"hal")
        played.take(under_way, is_done=True)
        played.offers.turn()
        assert played.offered()[1] == {"cupy/other.cubin": b"whole too"}
        fs.forget(ino, 1)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_cannot_be_handed_over_is_offered_later(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        write(fs, "triton/KEY/add.cubin", b"kernel")
        fs.settle()
        with no_descriptor_left():
            played.offers.turn()
        numbers = played.client.report()
        assert (numbers.queue, numbers.state) == (1, "ready")
        assert numbers.publish_why.endswith("cannot hand over what was compiled: Too many open files")
        assert not played.offers._offer_next(time.monotonic()), "as after any fault"
        assert played.offers._offer_next(time.monotonic() + offers.RETRY_SECONDS + 1)
        offer, files = played.offered()
        assert files == {"triton/KEY/add.cubin": b"kernel"}
        played.take(offer, is_done=True)
        assert (played.client.report().publish_why, played.offers._queue) == ("", [])


class Clock:
    """The clocks, which a test puts forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def time_ns(self) -> int:
        return time.time_ns() + round(self.ahead * 1e9)


def test_a_library_that_is_about_to_be_written_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A linker makes its file empty and takes its time; what rests meanwhile is the source alone."""
    clock = Clock()
    for module in (offers, fresh_entries):
        monkeypatch.setattr(module, "time", clock)
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        write(fs, "inductor/ab/cabc.main.cpp", b"code")
        fs.settle()
        clock.ahead += offers.QUIET_SECONDS
        played.offers.turn()
        assert json.loads((tmp_path / "fleet" / "queue.json").read_bytes()) == [], "without its library"
        write(fs, "inductor/ab/cabc.py", b"loader")
        write(fs, "cupy/kernel.cubin", b"kernel")
        fs.settle()
        played.offers._rest_seconds = 1000.0
        fs.create(user(0), find(fs, "cupy"), b"kernel.json", 0o644)
        ino, _ = fs.create(user(0), find(fs, "inductor/ab"), b"cabc.main.so", 0o755)
        clock.ahead += offers.QUIET_SECONDS
        played.offers.turn()
        assert len(fs.fresh) == 2, "both wait"
        assert played.client.numbers.queue == 2
        fs.write(ino, 0, b"library")
        fs.settle()
        played.offers._rest_seconds = 0.0
        clock.ahead += offers.QUIET_SECONDS
        played.offers.turn()
        assert played.offered()[1] == {
            "cupy/kernel.cubin": b"kernel",
            "cupy/kernel.json": b"",
            "inductor/ab/cabc.main.cpp": b"code",
            "inductor/ab/cabc.main.so": b"library",
            "inductor/ab/cabc.py": b"loader",
        }


def test_an_empty_file_that_came_while_it_waited_is_waited_for(tmp_path: Path, in_no_time: None) -> None:
    with opened(tmp_path / "store") as fs, agent(fs, tmp_path / "fleet") as played:
        under_way = offer_and_queue_two(fs, played)
        fs.create(user(0), find(fs, "cupy"), b"kernel.so", 0o644)
        played.offers._rest_seconds = 1000.0
        played.take(under_way, is_done=True)
        played.offers.turn()
        played_first, files = played.offered()
        assert files == {"cupy/other.cubin": b"whole too"}
        played.take(played_first, is_done=False)
        played.offers._not_before[played_first.batch] = 0.0
        played.offers.turn()
        played_first, files = played.offered()
        assert files == {"cupy/other.cubin": b"whole too"}
        assert played.client.numbers.queue == 2, "each is in the queue once"
        played.take(played_first, is_done=True)
        played.offers._rest_seconds = 0.0
        played.offers._not_before.clear()
        played.offers.turn()
        assert played.offered()[1] == {"cupy/kernel.cubin": b"whole", "cupy/kernel.so": b""}
