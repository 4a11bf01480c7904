"""Publishing into a bucket: many nodes at once, killed ones, days, snapshots, and what is renewed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kcachefs.errors import FleetRefused, FleetUnreachable, UsageError
from kcachefs.fleet import packfile, publishing, snapshots
from kcachefs.fleet.bucket_layout import Layout, day_before, day_of
from kcachefs.fleet.index_loading import RecordReader
from kcachefs.fleet.key_index import FOLDER, KeyIndex, key_of_entry
from kcachefs.fleet.object_storage import Storage, Stored, open_storage
from kcachefs.fleet.publishing import Published, Publisher
from kcachefs.fleet.renewing import renew
from kcachefs.fleet.signing import Signer
from kcachefs.fleet.snapshotting import make_due
from tests.fleet.caches import ENTRIES, fill, key
from tests.fleet.nodes import SCOPE, Node, bucket_folder, secret_in
from tests.fleet.servers import Rclone, Server, storage
from tests.frameworks.commands import kcachefs
from tests.waiting import PATIENCE

LAYOUT = Layout(SCOPE)
NODES = 64


def objects(root: Path, kind: str) -> list[str]:
    """The objects of one kind in a bucket that is a folder."""
    below = root / LAYOUT.root / kind
    return sorted(str(path.relative_to(below)) for path in below.rglob("*") if path.is_file())


def at_once(nodes: list[Node], caches: Path) -> list[Published]:
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(lambda node: node.publish(caches), nodes))


def test_of_64_nodes_that_compiled_the_same_one_publishes_it(tmp_path: Path, server: Server) -> None:
    url, secret = server.fresh(), secret_in(tmp_path)
    fill(tmp_path / "caches", size=100)
    shared = storage(server, url)
    nodes = [Node(tmp_path / f"{number}", shared, secret) for number in range(NODES)]
    done = at_once(nodes, tmp_path / "caches")
    assert sum(len(one.packs) for one in done) == len(list(shared.objects(LAYOUT.packs))) == 1
    assert sum(bool(one.waiting) for one in done) + sum(one.present == ENTRIES for one in done) == NODES - 1
    again = at_once(nodes, tmp_path / "caches")
    assert {(len(one.packs), one.present, len(one.waiting)) for one in again} == {(0, ENTRIES, 0)}


def test_where_conditions_are_ignored_about_one_publishes_and_all_is_right(tmp_path: Path) -> None:
    fill(tmp_path / "caches", size=100)
    with Rclone(tmp_path / "server") as rclone:
        shared, secret = storage(rclone.server, rclone.server.fresh()), secret_in(tmp_path)
        nodes = [Node(tmp_path / f"{number}", shared, secret, settle=0.5) for number in range(16)]

        def publish(node: Node) -> None:
            with contextlib.suppress(FleetUnreachable):  # this server may fail who reads what another replaces
                node.publish(tmp_path / "caches")

        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(publish, nodes))
        nodes[0].claims._patience = 0.0
        publish(nodes[0])
        assert len(list(shared.objects(LAYOUT.packs))) < len(nodes) / 2, "far fewer than all"
        index = nodes[0].index
        assert index.find(key_of_entry(b"triton", (b"KEY0",))) == 0
        nodes[0].bucket.fetch_pack(index.packs[0]).unlink()


def test_a_server_that_restarts_is_unreachable_and_then_there_again(tmp_path: Path) -> None:
    fill(tmp_path / "caches", size=100)
    with Rclone(tmp_path / "server") as rclone:
        node = Node(tmp_path / "node", storage(rclone.server, rclone.server.fresh()), secret_in(tmp_path))
        node.publish(tmp_path / "caches")
        before = node.index.packs
        rclone.stop()
        with pytest.raises(FleetUnreachable):
            node.bucket.load_index()
        with pytest.raises(FleetUnreachable):
            node.bucket.fetch_pack(before[0])
        assert before[0] not in node.bucket.bans, "a network that fails says nothing about the pack"
        rclone.start()
        assert node.index.packs == before
        node.bucket.fetch_pack(before[0]).unlink()


def test_a_reader_loads_and_fetches_with_a_readers_credentials_and_cannot_publish(
    tmp_path: Path, server: Server
) -> None:
    url, secret = server.fresh(), secret_in(tmp_path)
    fill(tmp_path / "caches", size=100)
    Node(tmp_path / "one", storage(server, url), secret).publish(tmp_path / "caches")
    reader = Node(tmp_path / "two", storage(server, url, reader=True), secret)
    reader.bucket.fetch_pack(reader.index.packs[0]).unlink()
    fill(tmp_path / "more", kernels=9, size=100)
    with pytest.raises(FleetRefused):
        reader.publish(tmp_path / "more")


# --- between any two writes -------------------------------------------------------------------------------------------


def publish_and_die(url: str, folder: Path, secret: Path, caches: Path, writes: int) -> int:
    """Publish in a process that is killed after so many writes; returns how it ended."""
    arguments = [url, str(folder), str(secret), str(caches), str(writes)]
    command = [sys.executable, "-m", "tests.fleet.dying_publisher", *arguments]
    return subprocess.run(command, cwd=Path(__file__).parents[2], timeout=PATIENCE).returncode


def test_killed_between_any_two_writes_it_leaves_nothing_that_others_stumble_over(tmp_path: Path) -> None:
    fill(tmp_path / "caches", size=100)
    secret, ends = secret_in(tmp_path), []
    for writes in range(4):
        (tmp_path / f"{writes}").mkdir()
        url = bucket_folder(tmp_path / f"{writes}")
        ends.append(publish_and_die(url, tmp_path / f"{writes}" / "one", secret, tmp_path / "caches", writes))
        two = Node(tmp_path / f"{writes}" / "two", url, secret, patience=0.0)
        assert two.publish(tmp_path / "caches").waiting == []
        for reference in two.index.packs:
            two.bucket.fetch_pack(reference).unlink()
        again = two.publish(tmp_path / "caches")
        assert (again.packs, again.present) == ([], ENTRIES)
    assert ends == [-signal.SIGKILL] * 3 + [0], "there are three writes: a claim, a pack and a record"


def test_claims_of_long_ago_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher lives as long as its mount, and claims something new with every pack."""
    monkeypatch.setattr("kcachefs.fleet.claims._REMEMBERED", 8)
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    one, two = (Node(tmp_path / name, url, secret).claims for name in ("one", "two"))
    for number in range(20):
        assert one.take(str(number)) is not None
        assert two.take(str(number)) is None
    assert len(one._mine) <= 8
    assert len(two._seen) <= 8


def test_a_claim_of_a_dead_node_is_taken_over_after_a_while_and_not_before(tmp_path: Path) -> None:
    fill(tmp_path / "caches", size=100)
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    publish_and_die(url, tmp_path / "dead", secret, tmp_path / "caches", 1)
    patient = Node(tmp_path / "patient", url, secret)
    assert len(patient.publish(tmp_path / "caches").waiting) == ENTRIES
    patient.claims._patience = 0.0
    assert len(patient.publish(tmp_path / "caches").packs) == 1
    claims = [name for name in objects(tmp_path / "bucket", "claims") if not name.startswith("clock-")]
    assert len(claims) == 2, "the new claim stands beside the old one"


@pytest.mark.parametrize("content", [b"", b"x" * 5000], ids=["empty", "too large"])
def test_a_claim_that_is_none_of_ours_gets_old_like_any_other(tmp_path: Path, content: bytes) -> None:
    fill(tmp_path / "caches", size=100)
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    publish_and_die(url, tmp_path / "dead", secret, tmp_path / "caches", 1)
    (name,) = objects(tmp_path / "bucket", "claims")
    claim = tmp_path / "bucket" / LAYOUT.claim(name)
    claim.write_bytes(content)
    node = Node(tmp_path / "node", url, secret)
    assert len(node.publish(tmp_path / "caches").waiting) == ENTRIES
    os.utime(claim, (time.time() - 3600,) * 2)
    assert len(node.publish(tmp_path / "caches").packs) == 1


def test_a_key_that_the_node_does_not_trust_itself_publishes_nothing(tmp_path: Path) -> None:
    secret, (other, _) = secret_in(tmp_path), key(tmp_path, "other")
    node = Node(tmp_path / "one", bucket_folder(tmp_path), secret)
    with pytest.raises(UsageError, match="is not among those that are trusted"):
        Publisher(node.bucket, Signer(other))


def test_a_pack_that_is_too_large_counts_none_of_its_entries_as_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    fill(tmp_path / "caches", size=100)
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "PACK_MAX", 10)
        done = Node(tmp_path / "one", url, secret).publish(tmp_path / "caches")
    assert (done.packs, done.entered) == ([], 0)
    shutil.rmtree(tmp_path / "bucket" / LAYOUT.claims)
    done = Node(tmp_path / "two", url, secret).publish(tmp_path / "caches")
    assert (len(done.packs), done.entered) == (1, ENTRIES)


# --- days and snapshots -----------------------------------------------------------------------------------------------


class Counting:
    """A storage that counts requests, and may have another clock."""

    def __init__(self, storage: Storage, ahead: float = 0.0) -> None:
        self._storage = storage
        self.asked: list[str] = []
        self._ahead = ahead

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._storage, name)
        if callable(found):
            self.asked.append(name)
        return found

    def get(self, key: str, **options: Any) -> Any:
        self.asked.append("get")
        got = self._storage.get(key, **options)
        return got._replace(modified=got.modified + self._ahead)

    def head(self, key: str) -> Stored:
        found = self._storage.head(key)
        return found._replace(modified=found.modified + self._ahead)


DAY = 86400.0


def published_on(tmp_path: Path, url: str, secret: Path, days_ago: int, name: str) -> Node:
    """A node that published one entry some days ago, by the clock of the store."""
    caches = tmp_path / f"caches {name}"
    (caches / "triton" / name).mkdir(parents=True)
    (caches / "triton" / name / "kernel.cubin").write_bytes(name.encode() * 50)
    past: Any = Counting(open_storage(url), -days_ago * DAY)
    node = Node(tmp_path / f"node {name}", past, secret)
    assert len(node.publish(caches).packs) == 1
    return node


@pytest.mark.parametrize("page", [1000, 5], ids=["one page of records", "many pages"])
def test_a_new_node_reads_snapshots_instead_of_many_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr("kcachefs.fleet.index_loading.PAGE", page)
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    for number in range(10):
        published_on(tmp_path, url, secret, 5, f"OLD{number}")
    for number in range(10):
        published_on(tmp_path, url, secret, 0, f"NEW{number}")
    kept = objects(tmp_path / "bucket", "snapshots")
    assert {name.rpartition("/")[0] for name in kept} == {
        f"day/{day_of(time.time() - 5 * DAY)}",
        f"day/{day_of(time.time())}",
        f"until/{day_of(time.time() - 2 * DAY)}",
    }
    counting: Any = Counting(open_storage(url))
    fresh = Node(tmp_path / "fresh", counting, secret)
    index = fresh.index
    names = [f"{age}{number}".encode() for age in ("OLD", "NEW") for number in range(10)]
    assert all(index.find(key_of_entry(b"triton", (name,))) not in (None, FOLDER) for name in names)
    assert len(counting.asked) <= 9, counting.asked
    counting.asked.clear()
    assert fresh.bucket.load_index().new == 0
    assert len(counting.asked) <= 4, counting.asked


@pytest.mark.parametrize("ahead", [-40, -2, 2, 40])
def test_a_node_with_a_wrong_clock_finds_what_others_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    for days_ago in (20, 3, 1):
        published_on(tmp_path, url, secret, days_ago, f"AGO{days_ago}")
    reader = Node(tmp_path / "reader", url, secret)
    real = time.time
    monkeypatch.setattr("kcachefs.fleet.index_loading.time.time", lambda: real() + ahead * DAY)
    assert len(reader.index.packs) == 3
    published_on(tmp_path, url, secret, 0, "TODAY")
    index = reader.index
    assert index.find(key_of_entry(b"triton", (b"TODAY",))) == 0
    assert len(index.packs) == 4


def test_a_publisher_with_a_wrong_clock_writes_into_the_day_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "caches", size=100)
    today = day_of(time.time())
    node = Node(tmp_path / "one", bucket_folder(tmp_path), secret_in(tmp_path))
    real = time.time
    monkeypatch.setattr("kcachefs.fleet.index_loading.time.time", lambda: real() + 400 * DAY)
    assert {one.day for one in node.publish(tmp_path / "caches").packs} == {today}


def test_a_snapshot_that_nobody_trusted_signed_hides_nothing(tmp_path: Path) -> None:
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    node = published_on(tmp_path, url, secret, 5, "OLD")
    stranger, _ = key(tmp_path, "stranger")
    for signer, day in ((Signer(stranger), "2999-01-01"), (Signer(secret), day_of(time.time()))):
        forged = snapshots.encode([], signer, LAYOUT, "until", day)
        node.storage.put(LAYOUT.snapshot("until", "2999-01-01", 99, snapshots.digest(forged)), forged)
    node.storage.put(f"{LAYOUT.snapshots}until/2999-01-02/00000001-{'0' * 16}", b"garbage")
    fresh = Node(tmp_path / "fresh", url, secret)
    assert [one.pack for one in fresh.index.packs] == [one.pack for one in node.index.packs]


def test_a_snapshot_whose_name_lies_hides_nothing(tmp_path: Path) -> None:
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    node, closed = published_on(tmp_path, url, secret, 5, "OLD"), day_before(day_of(time.time()), 2)
    fewer = snapshots.encode([], Signer(secret), LAYOUT, "until", closed)  # as of the moment before it was published
    node.storage.put(LAYOUT.snapshot("until", closed, 99, snapshots.digest(fewer)), fewer)
    fresh = RecordReader(node.storage, LAYOUT, node.bucket.trusted)
    assert fresh._first_good("until", fresh.existing_snapshots().until, frozenset()) == (None, [])
    assert len(Node(tmp_path / "fresh", url, secret).index.packs) == len(node.index.packs) == 1


def test_days_that_cannot_be_reckoned_with_are_no_days() -> None:
    for day in ("0001-01-01", "9999-12-31", "\u0662026-11-16", "2026-02-30"):
        assert LAYOUT.placed(f"{LAYOUT.records}{day}/{'0' * 32}") is None
    assert LAYOUT.placed(f"{LAYOUT.records}2026-11-16/{'0' * 32}") == ("2026-11-16", "0" * 32)


def test_old_packs_leave_the_index(tmp_path: Path) -> None:
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    node = published_on(tmp_path, url, secret, 40, "OLD")
    assert len(node.index.packs) == 1, "nothing newer says that it is old"
    published_on(tmp_path, url, secret, 0, "NEW")
    assert [one.day for one in Node(tmp_path / "fresh", url, secret).index.packs] == [day_of(time.time())]


# --- what is renewed --------------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Node:
    """A node of today, in whose bucket is a pack that is 25 days old."""
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    fill(tmp_path / "caches", size=100)
    past: Any = Counting(open_storage(url), -25 * DAY)
    Node(tmp_path / "past", past, secret).publish(tmp_path / "caches", compile_ms=6000)
    node = Node(tmp_path / "now", url, secret)
    assert [one.day for one in node.index.packs] == [day_before(day_of(time.time()), 25)]
    return node


def keys_of(*names: bytes) -> set[int]:
    return {key_of_entry(b"triton", (name,)) for name in names}


def test_a_pack_of_which_most_is_used_is_copied_to_today(old: Node, tmp_path: Path) -> None:
    publisher = Publisher(old.bucket, old.signer, old.claims)
    used = keys_of(b"KEY0", b"KEY1", b"KEY2")
    renewed = renew(old.bucket, publisher, used)
    assert (len(renewed.copied), renewed.repacked) == (1, [])
    shutil.rmtree(tmp_path / "bucket" / LAYOUT.packs / day_before(day_of(time.time()), 25))
    fresh = Node(tmp_path / "fresh", old.storage, tmp_path / "key")
    found = fresh.index.find_all(used.pop())
    assert found[0].day == day_of(time.time())
    fresh.bucket.fetch_pack(found[0]).unlink()
    assert renew(old.bucket, publisher, used) == ([], []), "it is young again"


def test_a_renewed_pack_outlives_the_one_that_it_was_copied_from(old: Node, tmp_path: Path) -> None:
    """In a folder too, where a hard link would be as old as the original."""
    used = keys_of(b"KEY0", b"KEY1", b"KEY2")
    assert renew(old.bucket, Publisher(old.bucket, old.signer, old.claims), used).copied
    day, moment = day_before(day_of(time.time()), 25), time.time() - 31 * DAY
    aged = [path for path in (tmp_path / "bucket" / LAYOUT.root).rglob(f"{day}/*") if path.is_file()]
    for path in aged:
        os.utime(path, (moment, moment))
    kcachefs("fleet", "gc", old.storage.url)
    assert len(aged) == 2
    assert not any(path.exists() for path in aged)
    fresh = Node(tmp_path / "fresh", old.storage, tmp_path / "key")
    (found,) = fresh.index.find_all(used.pop())
    fresh.bucket.fetch_pack(found).unlink()


def test_of_a_pack_of_which_little_is_used_only_that_is_packed_again(old: Node, tmp_path: Path) -> None:
    renewed = renew(old.bucket, Publisher(old.bucket, old.signer, old.claims), keys_of(b"KEY1"))
    assert renewed.copied == []
    (reference,) = renewed.repacked
    assert 0 < reference.compile_ms < 6000
    path = old.bucket.fetch_pack(reference)
    with packfile.opened(path, old.bucket.trusted) as pack:
        assert [entry.label for entry in pack.manifest.entries] == ["triton/KEY1"]
        (kept,) = [bytes(plain) for _, plain in pack.decoded()]
        assert b"@kcachefs@/triton/KEY1/add.cubin" in kept, "paths still move"
    path.unlink()
    index = KeyIndex.open(old.bucket.index_path)
    assert index is not None
    assert index.find_all(*keys_of(b"KEY1"))[0] == reference


class Refusing(Counting):
    """A storage that refuses to copy one object."""

    refused = ""

    def copy(self, key: str, to: str) -> None:
        if key == self.refused:
            raise FleetRefused(f"{key}: may not be copied")
        self._storage.copy(key, to)


def test_a_pack_that_cannot_be_copied_keeps_no_other_from_being_renewed(tmp_path: Path) -> None:
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    for name in ("A", "B", "C"):
        published_on(tmp_path, url, secret, 25, name)
    refusing: Any = Refusing(open_storage(url))
    node = Node(tmp_path / "node", refusing, secret)
    first = node.index.packs[0]
    refusing.refused = LAYOUT.pack(first.day, first.pack)
    with pytest.raises(FleetRefused, match="may not be copied"):
        renew(node.bucket, Publisher(node.bucket, node.signer, node.claims), keys_of(b"A", b"B", b"C"))
    renewed = {one.pack for one in node.index.packs if one.day != first.day}
    assert len(renewed) == 2
    assert first.pack not in renewed


def test_what_is_young_unused_or_unknown_is_not_renewed(old: Node) -> None:
    publisher = Publisher(old.bucket, old.signer, old.claims)
    assert renew(old.bucket, publisher, keys_of(b"UNKNOWN")) == renew(old.bucket, publisher, set()) == ([], [])


def test_of_many_nodes_that_use_it_one_renews_a_pack(old: Node, tmp_path: Path) -> None:
    nodes = [Node(tmp_path / f"{number}", old.storage, tmp_path / "key") for number in range(8)]
    for node in nodes:
        assert node.index.packs
    with ThreadPoolExecutor(len(nodes)) as pool:
        done = list(
            pool.map(
                lambda node: renew(node.bucket, Publisher(node.bucket, node.signer, node.claims), keys_of(b"KEY0")),
                nodes,
            )
        )
    assert sum(len(one.repacked) for one in done) == 1
    assert len(objects(tmp_path / "bucket", "packs")) == 2


def test_snapshots_are_made_once_however_many_publish(tmp_path: Path) -> None:
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    for number in range(snapshots.SNAPSHOT_AFTER):
        published_on(tmp_path, url, secret, 0, f"K{number}")
    (first,) = objects(tmp_path / "bucket", "snapshots")
    assert first.startswith(f"day/{day_of(time.time())}/0000000{snapshots.SNAPSHOT_AFTER}-")
    node = Node(tmp_path / "node", url, secret)
    make_due(node.bucket, node.claims, node.signer, day_of(time.time()))
    assert objects(tmp_path / "bucket", "snapshots") == [first]
    assert os.listdir(node.bucket.folder) == []
