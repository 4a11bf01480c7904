"""docs/fleet.md is true: its picture, limits, formats and request counts are the code's, and its commands work."""

from __future__ import annotations

import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from blake3 import blake3

from kcachefs.cli.fleet import fleet_app
from kcachefs.fleet import bucket, pack_records, publishing, signing, snapshots
from kcachefs.fleet.bucket_layout import OBJECTS, SETTINGS, Layout
from kcachefs.fleet.key_index import key_of_entry, key_of_folder
from kcachefs.fleet.object_storage import Storage, open_storage
from tests.engines.mounting import Mount
from tests.fleet.caches import ENTRIES, fill, shown
from tests.fleet.nodes import SCOPE, Node, bucket_folder, secret_in
from tests.frameworks.commands import kcachefs

TEXT = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()


def test_the_picture_shows_where_things_are() -> None:
    layout = Layout(SCOPE)
    picture = re.findall(r"^```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[0]
    assert all(word in picture for word in (SETTINGS, OBJECTS, f"{SCOPE}/"))
    for key in (
        layout.pack("2026-11-16", "ID"),
        layout.record("2026-11-16", "ID"),
        layout.claim("NAME.0"),
    ):
        assert f" {key.removeprefix(layout.root)} " in picture
    for kind, day in (("day", "2026-11-16"), ("until", "2026-11-14")):
        key = layout.snapshot(kind, day, 1, "0" * 64)
        assert re.fullmatch(rf"{layout.snapshots}{kind}/{day}/\d+-\w+", key)
        assert f" {kind}/{day}/COUNT-HASH " in picture


def test_the_limits_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| (bytes of [^|]+|days that [^|]+) \| (\d+)", TEXT, re.MULTILINE))
    assert [int(value) for value in rows.values()] == [
        pack_records.PACK_MAX >> 20,
        publishing.PACK_BYTES >> 20,
        pack_records.RECORD_MAX >> 20,
        snapshots.SNAPSHOT_MAX >> 20,
        bucket.DAYS,
    ]
    assert f"Once {snapshots.SNAPSHOT_AFTER} records of a day are in no snapshot" in TEXT


def test_the_table_of_commands_names_each_of_them() -> None:
    group: Any = typer.main.get_command(fleet_app)
    assert set(re.findall(r"^\| `kcachefs fleet (\w+)", TEXT, re.MULTILINE)) == set(group.commands)


def test_records_and_hashes_are_as_the_page_says(tmp_path: Path) -> None:
    fill(tmp_path / "caches", size=100)
    node = Node(tmp_path / "node", bucket_folder(tmp_path), secret_in(tmp_path))
    (reference,) = node.publish(tmp_path / "caches").packs
    raw = node.storage.get(Layout(SCOPE).record(reference.day, reference.pack), limit=1 << 20).content
    magic, length, zero, public, signature = struct.unpack("<8sII32s64s", raw[:112])
    assert (magic, length, zero) == (b"KCFLEET1", len(raw) - 112, 0)
    signing.check(public, signature, b"kcachefs fleet 1\n" + raw[112:])
    scope, pack, *_, entries, folders = msgspec.msgpack.decode(raw[112:])
    assert (scope, pack) == (SCOPE, reference.pack)
    for parts, known, keys in (
        ((b"tree", b"triton", b"KEY0"), key_of_entry(b"triton", (b"KEY0",)), entries),
        ((b"group", b"inductor", b"ab", b"cabc"), key_of_entry(b"inductor", (b"ab",), b"cabc"), entries),
        ((b"folder", b"inductor", b"ab"), key_of_folder(b"inductor", (b"ab",)), folders),
    ):
        digest = blake3(b"\0".join(parts)).digest()[:8]
        assert int.from_bytes(digest, "little") == known
        assert digest in {keys[at : at + 8] for at in range(0, len(keys), 8)}


KINDS = {"objects": "listing", "folders": "listing", "put": "write", "copy": "write", "get": "read", "head": "read"}


class Counted:
    """A storage that counts requests as a bill does."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.bill: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        if name in KINDS:
            self.bill[KINDS[name]] += 1
        return getattr(self._storage, name)


def counts(words: str) -> Counter[str]:
    """The numbers in a row of the table of costs."""
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| {words}")).split("|")[2]
    found = re.findall(r"(\d+) (listing|read|write)s?", row)
    return Counter({kind: int(number) for number, kind in found})


def test_the_bill_is_that_of_the_page(tmp_path: Path) -> None:
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    for number in range(snapshots.SNAPSHOT_AFTER + 2):
        caches = tmp_path / f"caches{number}" / "triton" / f"K{number}"
        caches.mkdir(parents=True)
        (caches / "k.cubin").write_bytes(b"x" * number)
        counted: Any = Counted(open_storage(url))
        node = Node(tmp_path / f"node{number}", counted, secret)
        assert node.publish(caches.parents[1]).packs
        first_load = number  # records that a node without an index reads one by one
        bill = Counter(counted.bill)
        bill["read"] -= min(first_load, snapshots.SNAPSHOT_AFTER)
        bill["read"] -= not number  # where nothing is, it looks once more whether that is the bucket
        if number < snapshots.SNAPSHOT_AFTER - 1:
            assert all(bill[kind] <= counts("a pack is published")[kind] for kind in bill), bill
    fresh: Any = Counted(open_storage(url))
    reader = Node(tmp_path / "fresh", fresh, secret)
    assert len(reader.index.packs) == snapshots.SNAPSHOT_AFTER + 2
    fresh.bill["read"] -= 2  # records of today that are in no snapshot
    assert all(fresh.bill[kind] <= counts("a node starts")[kind] for kind in fresh.bill), fresh.bill
    fresh.bill.clear()
    reader.bucket.load_index()
    assert all(fresh.bill[kind] <= counts("it looks again")[kind] for kind in fresh.bill), fresh.bill


@pytest.mark.mount
def test_the_commands_on_the_page_make_a_second_node_warm(mount: Mount, base: Path) -> None:
    lines = [line.partition("#")[0].strip() for line in TEXT.splitlines() if line.startswith("kcachefs fleet ")]
    assert [line.split()[2] for line in lines] == ["keygen", "init", "check", "push", "pull"]
    url, environment = bucket_folder(base), {"XDG_CONFIG_HOME": str(base / "config")}
    fill(mount.mountpoint)
    with Mount(base / "two", base / "store two", "direct") as two:
        for line in lines:
            where = {"push": mount.mountpoint, "pull": two.mountpoint}.get(line.split()[2])
            public = base / "config" / "kcachefs" / "fleet.key.pub"
            words = line.replace("$FLEET", url).replace("kcachefs-ed25519:…", str(public)).split()[1:]
            kcachefs(*words, *(("--mount", where) if where is not None else ()), env=environment)
        assert shown(two.mountpoint) == shown(mount.mountpoint)
        assert len(shown(two.mountpoint)) > ENTRIES
