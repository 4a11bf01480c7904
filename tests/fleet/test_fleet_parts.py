"""The parts of a mount's fleet by themselves: parcels, the breaker, deliveries, and how long compiling took."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kcachefs.daemon.agent_preparation import Preparation
from kcachefs.daemon.bucket_folder import BucketFolder
from kcachefs.daemon.fleet_agent import Agent
from kcachefs.errors import FleetTooSlow, PackError
from kcachefs.fleet import agent_protocol, parcels
from kcachefs.fleet.agent_protocol import Parcel
from kcachefs.fleet.breaker import FIRST_SECONDS, LONGEST_SECONDS, Breaker
from kcachefs.fleet.client import UNREADABLE_SECONDS, FleetClient
from kcachefs.fleet.deliveries import Deliveries, entry_key, is_parting
from kcachefs.fleet.object_storage import open_storage
from kcachefs.fleet.offers import compile_ms
from kcachefs.fleet.pack_records import PackReference
from kcachefs.fleet.parcels import OpenParcel, ParcelEntry, ParcelFile
from kcachefs.fleet.timed_storage import TimedStorage
from tests.waiting import PATIENCE, until

ONE = ParcelEntry("triton", ("ONE",), "", (ParcelFile("a.ptx", 0o644, 1, 0, 3), ParcelFile("b.ptx", 0o644, 1, 3, 2)))
TWO = ParcelEntry("inductor", ("ab",), "cabc", (ParcelFile("cabc.py", 0o644, 1, 3, 2),))


def reference(pack: str = "a") -> PackReference:
    return PackReference(
        day="2026-11-16", pack=32 * pack, size=1, plain=1, run="run", compile_ms=1000, signer=bytes(32)
    )


def parcel(*entries: ParcelEntry) -> OpenParcel:
    fd = parcels.make(entries, [b"one", b"tw"])
    try:
        return OpenParcel(fd)
    finally:
        os.close(fd)


def test_a_parcel_comes_as_it_was_sent() -> None:
    opened = parcel(ONE, TWO)
    assert opened.entries == [ONE, TWO]
    assert [opened.content(file) for file in (*ONE.files, *TWO.files)] == [b"one", b"tw", b"tw"]


def test_a_parcel_that_can_be_changed_or_lies_is_refused() -> None:
    fd = os.memfd_create("test")
    try:
        os.write(fd, bytes(64))
        with pytest.raises(PackError, match="changed"):
            OpenParcel(fd)
    finally:
        os.close(fd)
    outside = ParcelEntry("triton", ("X",), "", (ParcelFile("a", 0o644, 1, 4, 2),))
    with pytest.raises(PackError, match="outside"):
        parcel(outside)


def test_what_a_pack_does_not_hold_is_not_waited_for_again() -> None:
    deliveries = Deliveries()
    lost, _ = deliveries.wait_for(reference("b"), 7, 1)
    deliveries.lose(reference("b"))
    lost.wait()
    assert not deliveries.is_absent(reference("b"), 7), "nobody has seen what that one holds"
    lookup, is_new = deliveries.wait_for(reference(), 7, 1)
    assert is_new
    deliveries.arrive(reference(), parcel(ONE, TWO), is_last=True, only_asked=True)
    lookup.wait()
    assert deliveries.is_absent(reference(), 7)
    assert not deliveries.is_absent(reference(), entry_key(ONE))
    assert not deliveries.is_absent(reference("b"), 7)


def test_a_pack_of_which_a_parcel_cannot_be_opened_is_asked_for_again() -> None:
    """As when too many files are open: the descriptor does not come, or cannot be mapped."""
    supervisor, agents = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    null, whole = os.open(os.devnull, os.O_RDONLY), parcels.make([ONE], [b"one", b"tw"])
    try:
        client = FleetClient(agents, lambda: 0)
        for lost, fd in ((reference("a"), -1), (reference("b"), null)):
            lookup, _ = client._deliveries.wait_for(lost, 7, 1)
            with pytest.raises((PackError, OSError)):
                client._hear(Parcel(lost, is_last=True), fd)
            lookup.wait()
            assert not client._deliveries.silent(), "the agent did nothing wrong"
            assert not client._deliveries.is_absent(lost, 7), "nobody has seen what it holds"
            assert 0 < client._not_before[lost.place] - time.monotonic() <= UNREADABLE_SECONDS
        client._hear(Parcel(reference("a"), is_last=True), whole)
        assert (client.numbers.given_up, client.numbers.packs) == (2, 0), "it is still not here as a whole"
        client._not_before.clear()
        client._hear(Parcel(reference("a"), is_last=True), whole)
        assert client.numbers.packs == 1
    finally:
        os.close(null)
        os.close(whole)
        supervisor.close()
        agents.close()


def test_time_in_the_queue_counts(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    storage, trusted = TimedStorage(open_storage(url)), frozenset({bytes(32)})
    prepared = Preparation(storage, "tests", trusted, tmp_path / "agent", None, [], BucketFolder(url))
    agent = Agent(tmp_path, prepared)
    whole, late = agent._patience(reference(), 0.0), agent._patience(reference(), 0.4)
    assert whole.budget == pytest.approx(0.5)
    assert late.budget == pytest.approx(0.1)
    assert late.first_byte <= 0.1
    with pytest.raises(FleetTooSlow, match="waited"):
        agent._patience(reference(), 0.6)


def test_a_breaker_stays_open_longer_each_time() -> None:
    now = 0.0
    breaker = Breaker(lambda: now)
    assert not breaker.open_for
    for times in range(1100):  # a week
        assert breaker.failed("down")
        assert not breaker.failed("what was asked before counts once")
        assert breaker.open_for == pytest.approx(min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(times, 20)))
        now += breaker.open_for
    breaker.succeeded(now)
    assert (breaker.open_for, breaker.why) == (0.0, "")
    assert breaker.failed("again")
    assert breaker.open_for == FIRST_SECONDS


def test_what_began_before_a_failure_does_not_close_a_breaker() -> None:
    now = 100.0
    breaker = Breaker(lambda: now)
    assert breaker.failed("down")
    breaker.succeeded(99.0)
    assert (breaker.open_for, breaker.why) == (FIRST_SECONDS, "down")
    breaker.succeeded(101.0)
    assert (breaker.open_for, breaker.why) == (0.0, "")


def test_what_somebody_waits_for_comes_first() -> None:
    deliveries = Deliveries()
    first, is_new = deliveries.wait_for(reference(), entry_key(TWO), 0)
    assert is_new
    _, is_new = deliveries.wait_for(reference(), entry_key(TWO), 0)
    assert not is_new, "one request is enough"
    deliveries.arrive(reference(), parcel(ONE, TWO), is_last=True, only_asked=False)
    found = deliveries.next_arrived(1.0)
    assert found is not None
    assert (found[0].entry, found[1]) == (TWO, True)
    assert len(deliveries.imported(found[0])) == 2
    first.wait()
    found = deliveries.next_arrived(1.0)
    assert found is not None
    assert (found[0].entry, found[1]) == (ONE, False)
    deliveries.imported(found[0])
    assert len(deliveries) == 0
    assert deliveries.next_arrived(0.01) is None


def test_of_a_pack_that_was_here_only_what_is_asked_for_comes_in_again() -> None:
    deliveries = Deliveries()
    deliveries.wait_for(reference(), entry_key(ONE), 0)
    deliveries.arrive(reference(), parcel(ONE, TWO), is_last=True, only_asked=True)
    found = deliveries.next_arrived(1.0)
    assert found is not None
    assert found[0].entry == ONE
    deliveries.imported(found[0])
    assert deliveries.next_arrived(0.01) is None


def test_nobody_waits_for_what_is_lost_or_was_never_in_its_pack() -> None:
    deliveries = Deliveries()
    lost, _ = deliveries.wait_for(reference(), 1, 0)
    deliveries.lose(reference())
    lost.wait()
    absent, _ = deliveries.wait_for(reference("b"), 2, 0)
    deliveries.arrive(reference("b"), parcel(), is_last=True, only_asked=False)
    absent.wait()
    assert len(deliveries) == 0


def test_nobody_waits_for_an_agent_that_says_nothing() -> None:
    deliveries = Deliveries()
    lookup, _ = deliveries.wait_for(reference(), 1, 0)
    lookup.wait()
    assert deliveries.silent()
    assert not deliveries.silent()


def test_a_signal_that_ends_a_process_lets_its_lookup_go() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not is_parting(process.pid)
        process.kill()
    lookup, _ = Deliveries().wait_for(reference(), 1, process.pid)
    lookup.interrupt()
    lookup.wait()
    assert lookup.is_abandoned


def test_pauses_are_not_taken_for_compiling() -> None:
    second = 10**9
    assert compile_ms([]) == 0
    assert compile_ms([5 * second, 3 * second, 4 * second]) == 2000
    assert compile_ms([0, 3600 * second, 3601 * second]) == 11000


def test_a_worker_hears_why_an_agent_cannot_work_also_if_it_has_asked_for_something_before() -> None:
    supervisor, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker, agent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with supervisor, control, ThreadPoolExecutor(1) as pool:
        with worker, agent:
            assert agent_protocol.send(worker, agent_protocol.Refresh())
            socket.send_fds(supervisor, [b"worker"], [agent.fileno()])
            agent.close()
            telling = pool.submit(agent_protocol.tell_failure, control, "there is no such folder")
            until(lambda: telling.done() or not _unread(worker), "the agent is done, or waits for the worker")
            said, _ = agent_protocol.receive_from_agent(worker)
            assert isinstance(said, agent_protocol.Alive)
            assert said.why == "there is no such folder"
            assert agent_protocol.receive_from_agent(worker)[0] is None
        telling.result(PATIENCE)


def _unread(end: socket.socket) -> int:
    """Bytes that were sent from there and that the other end has not read."""
    return int.from_bytes(fcntl.ioctl(end, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
