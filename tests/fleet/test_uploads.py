"""What an agent does with offers that it cannot publish, and what a mount tells of it."""

from __future__ import annotations

import os
import queue
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.bucket_server import BucketServer
from kcachefs.errors import FleetError
from kcachefs.fleet import parcels, signing
from kcachefs.fleet.agent_protocol import Offer, Taken
from kcachefs.fleet.bucket import Bucket
from kcachefs.fleet.object_storage import Storage, open_storage
from kcachefs.fleet.parcels import ParcelEntry, ParcelFile
from kcachefs.fleet.uploads import Uploads
from kcachefs.live.watching import Watch
from tests.fleet.caches import fill
from tests.fleet.mounts import CREDENTIALS, Fleet, fleet_of, wait_for_agent
from tests.fleet.nodes import SCOPE, bucket_folder, secret_in
from tests.fleet.servers import Server, environment, free_ports, storage
from tests.frameworks.commands import kcachefs
from tests.waiting import PATIENCE, until

CONTENT = os.urandom(2 << 20)


class Publishing:
    """The uploads of an agent, by themselves."""

    def __init__(self, folder: Path, store: Storage, secret: Path) -> None:
        signer = signing.Signer(secret)
        self.faults: list[FleetError] = []
        self._answers: queue.SimpleQueue[Taken] = queue.SimpleQueue()
        self._uploads = Uploads(Bucket(store, SCOPE, {signer.public}, folder), signer, self.faults.append)
        self._uploads._publisher.claims._settle = 0.0
        self._uploads.start(self._answers.put)

    def offer(self) -> Taken:
        """What becomes of an offer of one entry."""
        entry = ParcelEntry("triton", ("KEY",), "", (ParcelFile("add.cubin", 0o644, 1, 0, len(CONTENT)),))
        self._uploads.add(Offer("batch", "0" * 16, 1000), parcels.make([entry], [CONTENT]))
        return self._answers.get(timeout=PATIENCE)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # the index may still be mapped


def test_what_no_pack_could_be_made_of_for_want_of_room_is_offered_again(tmp_path: Path) -> None:
    store = open_storage(bucket_folder(tmp_path))
    with small_disk(tmp_path / "disk") as disk:
        publishing = Publishing(disk / "fleet", store, secret_in(tmp_path))
        told = publishing.offer()
        assert (told.is_done, told.is_fault, "the disk is full" in told.why) == (False, True, True), told
        assert publishing.faults == [], "the bucket has done nothing wrong"
        subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
        assert publishing.offer() == Taken("batch", True)
    assert list((tmp_path / "bucket").rglob("*.kcp"))


def test_a_bucket_that_is_not_reached_is_left_alone_by_readers_too(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with environment(CREDENTIALS):
        store = open_storage(f"s3://bucket?endpoint=http://127.0.0.1:{port}")
    publishing = Publishing(tmp_path / "fleet", store, secret_in(tmp_path))
    told = publishing.offer()
    assert (told.is_done, told.is_fault) == (False, True)
    assert [str(one) for one in publishing.faults] == [told.why]


def test_a_bucket_that_refuses_writes_is_still_read(tmp_path: Path, server: Server) -> None:
    publishing = Publishing(tmp_path / "fleet", storage(server, server.fresh(), reader=True), secret_in(tmp_path))
    told = publishing.offer()
    assert (told.is_done, told.is_fault, "refuses these credentials" in told.why) == (False, True, True), told
    assert publishing.faults == []


def test_a_bucket_without_room_is_still_read(tmp_path: Path) -> None:
    with BucketServer(tmp_path / "bucket").running() as full, environment(CREDENTIALS):
        publishing = Publishing(tmp_path / "fleet", open_storage(full.url), secret_in(tmp_path))
        told = publishing.offer()
    assert (told.is_done, told.is_fault, "507 Insufficient Storage" in told.why) == (False, True, True), told
    assert publishing.faults == []


@pytest.mark.mount
def test_the_status_says_why_nothing_is_published(
    empty_fleet: Fleet, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, publishes = server.fresh(), ("--fleet-mode", "publish", "--fleet-key", str(empty_fleet.secret))
    for name, value in server.reader.items():
        monkeypatch.setenv(name, value)
    with empty_fleet.node("one", "direct", *publishes, url=url) as one:
        wait_for_agent(one)
        fill(one.mountpoint)
    with empty_fleet.node("one", "direct", *publishes, url=url) as one:
        # A request that took too long makes it offline for a moment.
        numbers = until(
            lambda: (found := fleet_of(one))["publish_why"] and found["state"] == "ready" and found,
            "what waited was offered",
        )
        assert numbers["why"] == ""
        assert "refuses these credentials" in numbers["publish_why"]
        words = kcachefs("status").stdout
        assert f"6 entries wait to be published ({numbers['publish_why']})" in words
        [concern] = [each for each in Watch.of(one.mountpoint).glance().headline.concerns if each.kind == "fleet"]
        assert concern.words == f"Nothing is published to the fleet, and 6 entries wait: {numbers['publish_why']}."
    for name, value in server.writer.items():
        monkeypatch.setenv(name, value)
    with empty_fleet.node("one", "direct", *publishes, url=url) as one:
        until(lambda: not fleet_of(one)["queue"], "everything is published")
        assert fleet_of(one)["publish_why"] == ""
        until(lambda: not Watch.of(one.mountpoint).glance().headline.concerns, "all is well")
