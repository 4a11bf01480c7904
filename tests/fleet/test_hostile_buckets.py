"""Buckets in which somebody wrote who should not: nothing of theirs is used, and the rest still is."""

from __future__ import annotations

import io
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from blake3 import blake3

from benchmarks.bucket_server import BucketServer
from kcachefs.errors import FleetMissing, FleetUnreachable, PackError, PackUntrusted, UsageError
from kcachefs.fleet import bans as bans_module
from kcachefs.fleet import bucket as bucket_module
from kcachefs.fleet import pack_records, packfile, snapshots
from kcachefs.fleet.bans import Bans
from kcachefs.fleet.bucket import Bucket, open_bucket
from kcachefs.fleet.bucket_layout import Layout, day_of, scopes_in
from kcachefs.fleet.key_index import FOLDER, KeyIndex, key_of_entry, key_of_folder
from kcachefs.fleet.manifest import Frame, Manifest, PackedEntry, PackedFile
from kcachefs.fleet.object_storage import PATIENT, Got, Patience, Storage
from kcachefs.fleet.pack_records import PackRecord, PackReference
from kcachefs.fleet.publishing import Publisher
from kcachefs.fleet.signing import Signer
from tests.fleet.caches import fill, key, packed
from tests.fleet.mounts import CREDENTIALS
from tests.fleet.nodes import SCOPE, Node, bucket_folder, secret_in
from tests.waiting import until

LAYOUT = Layout(SCOPE)
TODAY = day_of(time.time())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node that published one pack."""
    fill(tmp_path / "caches", size=100)
    node = Node(tmp_path / "node", bucket_folder(tmp_path), secret_in(tmp_path))
    node.publish(tmp_path / "caches")
    return node


def reader(node: Node, tmp_path: Path) -> Node:
    """Another node that knows nothing yet."""
    return Node(tmp_path / "reader", node.storage, tmp_path / "key")


def stored(tmp_path: Path, kind: str) -> Path:
    (path,) = (path for path in (tmp_path / "bucket" / LAYOUT.root / kind).rglob("*") if path.is_file())
    return path


# --- packs ------------------------------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda raw: raw[:-1],
    "empty": lambda raw: b"",
    "longer": lambda raw: raw + b"x",
    "a bit": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "its header": lambda raw: raw[:20] + b"\xff" + raw[21:],
    "unsigned": lambda raw: raw[:56] + bytes(96) + raw[152:],
    "other bytes": lambda raw: os.urandom(len(raw)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_pack_that_was_changed_is_refused_and_banned(
    node: Node, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    other = reader(node, tmp_path)
    (reference,) = other.index.packs
    path = stored(tmp_path, "packs")
    raw = path.read_bytes()
    path.write_bytes(change(raw))
    with pytest.raises(PackError):
        other.bucket.fetch_pack(reference)
    path.write_bytes(raw)
    assert reference in other.bucket.bans
    assert other.index.packs == [], "it left the index"
    again = Bucket(other.storage, SCOPE, other.bucket.trusted, other.bucket.folder)
    assert reference in again.bans, "a restart forgets nothing"
    assert again.load_index().packs == 0
    assert sorted(os.listdir(other.bucket.folder)) == ["bans.json", "index"]


def test_days_that_somebody_made_up_hide_nothing(node: Node, tmp_path: Path) -> None:
    """More of them than are looked at, all later than today, and more records than one request lists."""
    records = tmp_path / "bucket" / LAYOUT.root / "records"
    for number in range(1100):
        folder = records / f"29{number // 300:02}-{number % 300 // 25 + 1:02}-{number % 25 + 1:02}"
        folder.mkdir()
        (folder / f"{number:032x}").write_bytes(b"made up")
    other = reader(node, tmp_path)
    assert {TODAY, day_of(time.time())} & other.bucket.reader.days(), "it may be past midnight"
    assert len(other.index.packs) == 1
    assert len(other.index.packs) == 1, "also when only what is new is read"


def test_snapshots_that_somebody_made_up_go_after_good_ones_in_the_end(node: Node, tmp_path: Path) -> None:
    good = LAYOUT.snapshot("until", "2026-01-01", 0, "0" * 16)
    node.storage.put(good, snapshots.encode([], node.signer, LAYOUT, "until", "2026-01-01"))
    for number in range(6):
        node.storage.put(LAYOUT.snapshot("until", f"29{number:02}-01-01", 99, f"{number:016x}"), b"made up")
    other = reader(node, tmp_path)
    for _ in range(2):
        other.bucket.reader.survey()
    assert good in [one.key for one in other.bucket.reader.existing_snapshots().until]


class Watched:
    """A storage that counts the bytes of snapshots that arrive, and in which threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.bytes = 0
        self.threads: set[threading.Thread] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def get(self, key: str, *, limit: int, patience: Patience = PATIENT) -> Got:
        got = self._storage.get(key, limit=limit, patience=patience)
        self._saw(key, got.content)
        return got

    def stream(self, key: str, *, limit: int, patience: Patience = PATIENT) -> Iterator[bytes]:
        for chunk in self._storage.stream(key, limit=limit, patience=patience):
            self._saw(key, chunk)
            yield chunk

    def _saw(self, key: str, content: bytes) -> None:
        if key.startswith(LAYOUT.snapshots):
            self.bytes += len(content)
            self.threads.add(threading.current_thread())


@pytest.mark.parametrize("is_copied", [False, True], ids=["zeros", "with the header of a good one"])
def test_large_snapshots_that_somebody_made_up_cost_little_memory(node: Node, tmp_path: Path, is_copied: bool) -> None:
    days = [day_of(time.time() - number * 86400) for number in range(8)]
    head = snapshots.encode([], node.signer, LAYOUT, "day", days[0]) if is_copied else b""
    for number, day in enumerate(days):
        (tmp_path / "bucket" / LAYOUT.records / day).mkdir(parents=True, exist_ok=True)
        (tmp_path / "bucket" / LAYOUT.record(day, f"{number:032x}")).write_bytes(b"made up")
        made_up = tmp_path / "bucket" / LAYOUT.snapshot("day", day, 99_999_999, f"{number:016x}")
        made_up.parent.mkdir(parents=True)
        made_up.write_bytes(head)
        os.truncate(made_up, 1 << 20)
    watched: Any = Watched(node.storage)
    assert len(Node(tmp_path / "reader", watched, tmp_path / "key").index.packs) == 1
    assert watched.threads == {threading.current_thread()}, "one after another"
    if not is_copied:
        assert watched.bytes < 8 * (1 << 20) // 4, "what follows the header is left alone"


def test_a_pack_that_decodes_to_too_much_is_refused_before_it_is_decoded(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = reader(node, tmp_path)
    (reference,) = other.index.packs
    decoded = []
    monkeypatch.setattr(bucket_module, "PLAIN_MAX", 50)
    monkeypatch.setattr(packfile.Pack, "check_frames", lambda self: decoded.append(self))
    with pytest.raises(PackError, match="at most 50 are decoded"):
        other.bucket.fetch_pack(reference)
    assert decoded == []
    assert reference in other.bucket.bans


def put_signed(node: Node, path: Path, tmp_path: Path, **changes: object) -> PackReference:
    """Put a pack into the bucket with a record that the trusted key signed, whatever is in the pack."""
    raw = path.read_bytes()
    record = PackRecord(
        scope=SCOPE,
        pack=blake3(raw).hexdigest()[:32],
        size=len(raw),
        plain=5,
        run="0" * 16,
        compile_ms=0,
        facts={},
        entries=key_of_entry(b"triton", (b"EVIL",)).to_bytes(8, "little"),
        folders=b"",
    )
    record = msgspec.structs.replace(record, **changes)
    signed = pack_records.sign(record, node.signer, TODAY)
    node.storage.put(LAYOUT.pack(signed.day, record.pack), raw)
    node.storage.put(LAYOUT.record(signed.day, record.pack), signed.raw)
    return signed.reference


def test_a_pack_that_nobody_or_a_stranger_signed_is_refused_however_its_record_is_signed(
    node: Node, tmp_path: Path
) -> None:
    stranger, _ = key(tmp_path, "stranger")
    for secret in (None, stranger):
        packed(tmp_path / "caches", tmp_path / "pack.kcp", secret)
        reference = put_signed(node, tmp_path / "pack.kcp", tmp_path)
        with pytest.raises(PackUntrusted):
            node.bucket.fetch_pack(reference)
        assert reference in node.bucket.bans


def forged(out: Path, signer: Signer, name: str, *, plain: bytes = b"cubin", claimed: int | None = None) -> Path:
    """A pack that the trusted key signed, but that says what no cache says."""
    compressed = zstandard.ZstdCompressor().compress(plain)
    file = PackedFile(name, 0o644, 0, 5, 0, blake3(plain[:5]).hexdigest())
    entry = PackedEntry(namespace="triton", path=["EVIL"], files=[file])
    frame = Frame(
        stored=len(compressed), plain=claimed or len(plain), digest=blake3(compressed).hexdigest(), entries=[entry]
    )
    packfile.write(out, Manifest(facts={}, frames=[frame]), io.BytesIO(compressed), signer)
    return out


def test_traversal_and_bombs_are_refused_also_from_a_trusted_key(node: Node, tmp_path: Path) -> None:
    made = [
        forged(tmp_path / "traversal.kcp", node.signer, "../../../etc/passwd"),
        forged(tmp_path / "absolute.kcp", node.signer, "/etc/passwd"),
        forged(tmp_path / "bomb.kcp", node.signer, "kernel.cubin", plain=bytes(1 << 20), claimed=5),
    ]
    for path in made:
        reference = put_signed(node, path, tmp_path)
        with pytest.raises(PackError):
            node.bucket.fetch_pack(reference)
        assert reference in node.bucket.bans
    good = forged(tmp_path / "good.kcp", node.signer, "kernel.cubin")
    node.bucket.fetch_pack(put_signed(node, good, tmp_path)).unlink()


def test_no_more_is_fetched_than_the_record_says(node: Node, tmp_path: Path) -> None:
    (reference,) = reader(node, tmp_path).index.packs
    with open(stored(tmp_path, "packs"), "ab") as file:
        file.truncate(1 << 30)
    before = set(threading.enumerate())
    with pytest.raises(PackError, match="at most"):
        node.bucket.fetch_pack(reference)
    until(lambda: set(threading.enumerate()) <= before, "nobody receives what was refused")


def test_a_pack_that_expired_is_a_miss_and_leaves_the_index(node: Node, tmp_path: Path) -> None:
    other = reader(node, tmp_path)
    (reference,) = other.index.packs
    stored(tmp_path, "packs").unlink()
    with pytest.raises(FleetMissing):
        other.bucket.fetch_pack(reference)
    assert other.index.packs == []
    assert other.publish(tmp_path / "caches").packs == [], "the claim of the first publisher stands for a while"
    other.claims._patience = 0.0
    assert len(other.publish(tmp_path / "caches").packs) == 1, "and then it is published again"
    other.bucket.fetch_pack(other.index.packs[0]).unlink()


def test_a_portal_in_the_place_of_the_bucket_bans_no_pack(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with BucketServer(tmp_path / "bucket").running() as server:
        other = Node(tmp_path / "reader", server.url, tmp_path / "key")
        (reference,) = other.index.packs
        for page in (reference, msgspec.structs.replace(reference, size=5)):  # less than it should be, and more
            server.behaviour = "portal"
            with pytest.raises(FleetUnreachable, match="a web page answers in the bucket's place"):
                other.bucket.fetch_pack(page)
            server.behaviour = ""
        assert len(other.bucket.bans) == 0
        assert other.index.packs == [reference]
        other.bucket.fetch_pack(reference).unlink()


@pytest.mark.parametrize("pack", [b'{"status": "try again"}', None], ids=["other bytes", "gone"])
def test_a_pack_is_banned_only_by_whoever_has_its_record(node: Node, tmp_path: Path, pack: bytes | None) -> None:
    other = reader(node, tmp_path)
    (reference,) = other.index.packs
    kept = {path: path.read_bytes() for path in (stored(tmp_path, "packs"), stored(tmp_path, "records"))}
    for path in kept:
        path.write_bytes(pack or b"not here")
    if pack is None:
        stored(tmp_path, "packs").unlink()
    with pytest.raises(FleetMissing if pack is None else FleetUnreachable):
        other.bucket.fetch_pack(reference)
    for path, raw in kept.items():
        path.write_bytes(raw)
    other.bucket.fetch_pack(reference).unlink()
    assert other.index.packs == [reference]


def test_a_bucket_that_was_away_for_a_while_is_used_again(node: Node, tmp_path: Path) -> None:
    other = reader(node, tmp_path)
    (reference,) = other.index.packs
    (tmp_path / "bucket").rename(tmp_path / "away")
    (tmp_path / "bucket").mkdir()
    with pytest.raises(FleetMissing):
        other.bucket.fetch_pack(reference)
    (tmp_path / "bucket").rmdir()
    (tmp_path / "away").rename(tmp_path / "bucket")
    assert other.index.packs == [reference]
    other.bucket.fetch_pack(reference).unlink()


def test_a_bucket_that_is_emptied_under_a_node_is_published_into_again(node: Node, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "bucket")
    (tmp_path / "bucket").mkdir()
    before = KeyIndex.open(node.bucket.index_path)
    assert before is not None
    with pytest.raises(FleetMissing):
        node.bucket.fetch_pack(before.packs[0])
    assert (node.index.packs, len(node.index)) == ([], 0)
    assert len(node.publish(tmp_path / "caches").packs) == 1
    assert len(reader(node, tmp_path).index.packs) == 1


# --- records ----------------------------------------------------------------------------------------------------------

RECORD_CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda raw: raw[:-1],
    "empty": lambda raw: b"",
    "longer": lambda raw: raw + b"x",
    "a bit": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "another signature": lambda raw: raw[:48] + bytes(64) + raw[112:],
    "no key": lambda raw: raw[:16] + bytes(32) + raw[48:],
    "a length of 4 GiB": lambda raw: raw[:8] + b"\xff" * 4 + raw[12:],
    "garbage": lambda raw: b"garbage" * 100,
}


@pytest.mark.parametrize("change", RECORD_CHANGES.values(), ids=RECORD_CHANGES)
def test_a_record_that_was_changed_is_ignored_and_the_others_are_not(
    node: Node, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    path = stored(tmp_path, "records")
    raw = path.read_bytes()
    fill(tmp_path / "more", kernels=9, size=50)
    node.publish(tmp_path / "more")
    path.write_bytes(change(raw))
    (found,) = reader(node, tmp_path).index.packs
    assert found.pack != path.name


def test_a_record_of_a_stranger_of_another_scope_or_for_another_pack_is_ignored(node: Node, tmp_path: Path) -> None:
    stranger, _ = key(tmp_path, "stranger")
    both = frozenset({node.signer.public, Signer(stranger).public})
    Node(tmp_path / "stranger node", node.storage, stranger, patience=0.0).publish(tmp_path / "caches")
    packed(tmp_path / "caches", tmp_path / "pack.kcp", tmp_path / "key")
    put_signed(node, tmp_path / "pack.kcp", tmp_path, scope="x86_64-cuda80")
    raw = next(iter(node.storage.objects(LAYOUT.records)))
    node.storage.put(LAYOUT.record(TODAY, "f" * 32), node.storage.get(raw.key, limit=1 << 20).content)
    (found,) = reader(node, tmp_path).index.packs
    assert found.signer == node.signer.public
    trusting = Node(tmp_path / "trusting", node.storage, tmp_path / "key", both)
    assert len(trusting.index.packs) == 2
    shrunk = reader(node, tmp_path)
    assert len(shrunk.index.packs) == 1
    grown = Bucket(node.storage, SCOPE, both, shrunk.bucket.folder)
    assert grown.load_index().packs == 2, "whoever is trusted from now on is found, however old it is"
    less = Bucket(node.storage, SCOPE, {node.signer.public}, trusting.bucket.folder)
    assert less.load_index().packs == 1, "whoever is not trusted any more leaves the index"


@pytest.mark.parametrize(
    "changes",
    [{"size": 1 << 40}, {"size": 0}, {"pack": "../../x"}, {"pack": "F" * 32}, {"run": "x"}, {"entries": b"123"}],
    ids=repr,
)
def test_a_record_that_makes_no_sense_is_refused_also_from_a_trusted_key(
    node: Node, changes: dict[str, object]
) -> None:
    fields = {"scope": SCOPE, "pack": "0" * 32, "size": 1, "plain": 1, "run": "0" * 16, "compile_ms": 0, "facts": {}}
    record = PackRecord(**{**fields, "entries": bytes(8), "folders": b"", **changes})  # type: ignore[arg-type]
    raw = pack_records.sign(record, node.signer, TODAY).raw
    with pytest.raises(PackError):
        pack_records.read(raw, TODAY, SCOPE, node.bucket.trusted)


def test_objects_that_do_not_belong_there_are_passed_over(node: Node, tmp_path: Path) -> None:
    for name in (
        "records/x",
        "records/2026-13-99/" + "0" * 32,
        "../no scope/x",
        f"records/{TODAY}/x",
        "snapshots/day/x/y",
    ):
        path = tmp_path / "bucket" / LAYOUT.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"garbage")
    assert len(reader(node, tmp_path).index.packs) == 1
    assert scopes_in(node.storage) == [SCOPE]


# --- what is local ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"KCINDEX1" + b"\xff" * 56])
def test_a_damaged_index_is_loaded_anew(node: Node, content: bytes) -> None:
    node.bucket.index_path.write_bytes(content)
    assert KeyIndex.open(node.bucket.index_path) is None
    assert len(node.index.packs) == 1


def some_packs(count: int) -> list[PackReference]:
    return [
        PackReference(day=TODAY, pack=f"{number:032x}", size=1, plain=1, run="", compile_ms=1, signer=bytes(32))
        for number in range(count)
    ]


def test_packs_are_banned_by_many_threads_and_none_is_forgotten(tmp_path: Path) -> None:
    bans, packs = Bans(tmp_path / "bans.json"), some_packs(400)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: bans.add(one, "changed"), packs))
    assert all(one in Bans(tmp_path / "bans.json") for one in packs)
    assert os.listdir(tmp_path) == ["bans.json"]


def test_the_oldest_bans_go_when_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bans_module, "_MAX", 16)
    bans, packs = Bans(tmp_path / "bans.json"), some_packs(20)
    for pack in packs:
        bans.add(pack, "changed")
        assert pack in bans
        assert len(bans) <= 16
    assert packs[0] not in bans
    assert Bans(tmp_path / "bans.json").reasons == bans.reasons


def test_damaged_bans_are_no_bans(node: Node) -> None:
    (node.bucket.folder / "bans.json").write_bytes(b"{")
    assert len(Bucket(node.storage, SCOPE, node.bucket.trusted, node.bucket.folder).bans) == 0


def test_a_scope_is_a_name_and_somebody_must_be_trusted(tmp_path: Path) -> None:
    url = bucket_folder(tmp_path)
    for scope in ("", "..", "a/b", "../other", "x" * 65, "a b"):
        with pytest.raises(UsageError, match="is not a scope"):
            open_bucket(url, scope, {bytes(32)}, tmp_path / "node")
    with pytest.raises(UsageError, match="needs a key that is trusted"):
        open_bucket(url, SCOPE, frozenset(), tmp_path / "node")


def test_an_index_that_is_replaced_stays_whole_for_who_has_it_open(node: Node, tmp_path: Path) -> None:
    before = node.index
    fill(tmp_path / "more", kernels=9, size=50)
    Publisher(node.bucket, node.signer, node.claims)
    node.publish(tmp_path / "more")
    assert (len(before.packs), before.find(key_of_entry(b"triton", (b"KEY8",)))) == (1, None)
    assert node.index.find(key_of_entry(b"triton", (b"KEY8",))) is not None


def test_an_index_of_another_bucket_or_scope_is_not_used(node: Node, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    assert len(node.index.packs) == 1
    other = Bucket(node.storage, "x86_64-cuda80", node.bucket.trusted, node.bucket.folder)
    assert other.load_index().packs == 0
    assert node.bucket.load_index().packs == 1
    elsewhere = Node(node.bucket.folder, bucket_folder(tmp_path / "elsewhere"), tmp_path / "key")
    assert elsewhere.index.packs == []


def test_an_index_to_which_nothing_is_added_is_not_written_again(node: Node) -> None:
    loaded, before = node.index.loaded, node.bucket.index_path.stat()
    assert node.index.loaded > loaded
    assert node.bucket.index_path.stat().st_ino == before.st_ino


def test_a_folder_leaves_the_index_with_the_last_pack_below_it(node: Node, tmp_path: Path) -> None:
    folder = key_of_folder(b"inductor", (b"ab",))
    (reference,) = node.index.packs
    (tmp_path / "more" / "inductor" / "ab").mkdir(parents=True)
    (tmp_path / "more" / "inductor" / "ab" / "cxyz.py").write_bytes(b"import torch")
    (other,) = node.publish(tmp_path / "more").packs
    for gone, left in ((reference, FOLDER), (other, None)):
        node.bucket.ban(gone, "for a test")
        assert node.index.find(folder) == left
