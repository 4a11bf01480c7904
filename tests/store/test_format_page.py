"""docs/format.md is true: a reader that knows nothing else reads real stores, and fails when the page is changed."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kcachefs.store import (
    dictionaries,
    entry_records,
    frames,
    history_files,
    history_records,
    inode_numbers,
    journal,
    listings,
    object_records,
    records,
    slots,
)
from tests.disks import need_root
from tests.store.format_reader import Fields, Page, StoreReader
from tests.store.mounted_stores import LEARNED, LEARNED_FROM, LISTED, LISTED_CHANGED, Shown, stores

TEXT = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


@pytest.fixture(scope="module")
def shown() -> Iterator[tuple[Shown, Shown]]:
    with stores() as made:
        yield made


# --- a store is what the page says ------------------------------------------------------------------------------------


def check(page: Page, shown: Shown) -> StoreReader:
    """Everything in a store, read by the page, is what the mount showed."""
    reader = StoreReader(page, shown.store)
    check_dictionaries(reader)
    check_listing(reader)
    check_unsealed(reader, shown)
    check_entries(reader, shown)
    check_statistics(reader, shown)
    check_meta(reader, shown)
    check_history(reader, shown)
    # The dear ones, which read all bytes, come last: a wrong page is often refused before.
    check_files(reader, shown)
    check_objects(reader, shown)
    return reader


def check_dictionaries(reader: StoreReader) -> None:
    head, learned = reader.dictionary(LEARNED)
    assert head["plain"] == LEARNED_FROM
    assert zstandard.ZstdCompressionDict(learned).dict_id() == LEARNED


def check_listing(reader: StoreReader) -> None:
    tree = reader.tree()
    folder, inode = tree[LISTED]
    head, records = reader.listing(folder)
    expected = {b".": (folder, 1), b"..": (tree[LISTED.rpartition(b"/")[0]][0], 2)}
    for key, value in reader.table("n"):
        if key["parent"] == folder:
            expected[key["name"]] = (value["ino"], key["cookie"])
    assert len(expected) > 5
    assert {name: (record["ino"], record["cookie"]) for name, record in records} == expected
    assert [record["type"] for _, record in records[:2]] == [4, 4]
    for name, record in records[2:]:
        assert record["type"] == tree[LISTED + b"/" + name][1]["mode"] >> 12
    assert (head["records"], head["changed"]) == (inode["size"] + 2, LISTED_CHANGED)


def check_files(reader: StoreReader, shown: Shown) -> None:
    tree = reader.tree()
    assert tree.keys() == shown.paths.keys()
    names_in: dict[bytes, list[bytes]] = {}
    for path in filter(None, tree):
        names_in.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
    for path, (ino, inode) in tree.items():
        seen = shown.paths[path]
        assert (ino, inode["rdev"]) == (seen.ino, 0), path
        for name in ("mode", "nlink", "uid", "gid", "atime"):
            assert inode[name] == getattr(seen, name), (path, name)
        if _is(reader, inode, "SPOOL"):
            assert (shown.store / (reader.page.paths["spool"] % inode["spool"])).stat().st_size == seen.size, path
        else:  # a spool file's own times may be newer, and the copy's are not its own
            assert (inode["mtime"], inode["ctime"]) == (seen.mtime, seen.ctime), path
            assert inode["size"] == seen.size or stat.S_ISDIR(inode["mode"]), path
        if stat.S_ISREG(inode["mode"]):
            assert reader.read(inode) == seen.content, path
        elif stat.S_ISLNK(inode["mode"]):
            assert inode["target"] == seen.content, path
        elif stat.S_ISDIR(inode["mode"]):
            names = sorted(names_in.get(path, []))
            assert (b"/".join(names), len(names)) == (seen.content, inode["size"]), path
            assert inode["target"] == os.path.basename(path), path
        if path and (seen.nlink == 1 or stat.S_ISDIR(inode["mode"])):
            assert inode["parent"] == tree[os.path.dirname(path)][0], path
    bits = reader.page.flags["inode"]
    for path, flags in shown.flags.items():
        assert tree[path][1]["flags"] == sum(bits[name] for name in flags), path
    kept = {path: reader.read_kept(inode) for path, (_, inode) in tree.items()}
    assert {path: found for path, found in kept.items() if found is not None} == shown.kept


def check_objects(reader: StoreReader, shown: Shown) -> None:
    wanted = Counter(inode["digest"] for inode in reader.by_number("i").values() if any(inode["digest"]))
    objects = {key["digest"]: value for key, value in reader.table("o")}
    assert objects.keys() == {*wanted, *shown.held}
    live: Counter[int] = Counter()
    for digest, record in objects.items():
        held = digest in shown.held
        assert record["refs"] == wanted[digest] + held
        assert record["flags"] == held * reader.page.flags["object"]["HELD"]
        assert len(reader.read_object(digest)) == record["plain"]
        live[record["volume"]] += record["length"]
    volumes = {key["number"]: value for key, value in reader.table("v")}
    active = reader.meta()["mactive"]["number"]
    for number, volume in volumes.items():
        assert volume["live"] == live[number]
        assert volume["live"] <= volume["size"] <= reader.volume_size(number)
        assert volume["flags"] == (0 if number == active else reader.page.flags["volume"]["CLOSED"])
    ((_, totals),) = reader.table("t")
    assert totals == {
        "objects": len(objects),
        "plain": sum(record["plain"] for record in objects.values()),
        "referenced": sum(record["plain"] * record["refs"] for record in objects.values()),
        "live": live.total(),
        "volumes": sum(volume["size"] for volume in volumes.values()),
    }


def check_unsealed(reader: StoreReader, shown: Shown) -> None:
    inodes = reader.by_number("i")
    for letter, content in (("s", "SPOOL"), ("a", "SLOT")):
        recorded = {number: value["number"] for number, value in reader.by_number(letter).items()}
        assert recorded == {inode["spool"]: ino for ino, inode in inodes.items() if _is(reader, inode, content)}
    assert sorted(reader.by_number("x")) == shown.orphans
    tree = reader.tree()
    temporary = reader.by_number("w")
    assert set(temporary) == ({tree[shown.temporary][0]} if shown.temporary else set())
    for ino, value in temporary.items():
        assert value["process"] == os.getpid()
        assert abs(value["time"] - inodes[ino]["ctime"]) < 3600 * 10**9


def check_entries(reader: StoreReader, shown: Shown) -> None:
    paths = {ino: path for path, (ino, _) in reader.tree().items()}
    entries = reader.by_number("e")
    pinned = reader.page.flags["entry"]["PINNED"]
    told = [
        (
            *(number, os.path.join(paths[entry["folder"]], entry["name"]), paths[entry["namespace"]]),
            *(entry[name] for name in ("files", "plain", "stored", "hits", "uid")),
            *(entry["created"] / 1e9, entry["used"] / 1e9, entry["flags"] == pinned),
        )
        for number, entry in entries.items()
        if entry["used"]
    ]
    assert sorted(told) == sorted(
        (
            *(info["entry"], info["path"].encode(), info["namespace"].encode()),
            *(info[name] for name in ("files", "plain_bytes", "stored_bytes", "hits", "uid")),
            *(info["created"], info["used"], info["pinned"]),
        )
        for info in shown.entries
    )
    order = [(key["namespace"], key["used"], value["number"]) for key, value in reader.table("l")]
    assert sorted(order) == sorted(
        (entry["namespace"], entry["used"], number)
        for number, entry in entries.items()
        if entry["used"] and not entry["flags"] & pinned
    )
    groups = {(key["folder"], key["name"]): value["number"] for key, value in reader.table("g")}
    base = reader.page.number("group_base")
    assert groups == {(entry["folder"], entry["name"]): number for number, entry in entries.items() if number >= base}
    sealed = Counter(inode["entry"] for inode in reader.by_number("i").values() if _is(reader, inode, "OBJECT"))
    assert {number: entry["files"] for number, entry in entries.items()} == {n: sealed[n] for n in entries}


def check_statistics(reader: StoreReader, shown: Shown) -> None:
    names = {ino: path.decode() for path, (ino, _) in reader.tree().items() if path.count(b"/") == 0}
    rows = {number: row for number, row in reader.by_number("c").items() if any(row.values())}
    assert {names[number]: _as_shown(row) for number, row in rows.items()} == {
        label: {name: told[name] for name in _as_shown(next(iter(rows.values())))}
        for label, told in shown.statistics["namespaces"].items()
    }
    shares: dict[tuple[int, int], Fields] = {(k["uid"], k["namespace"]): value for k, value in reader.table("u")}
    entries = [entry for entry in reader.by_number("e").values() if entry["used"]]
    made = Counter((entry["uid"], entry["namespace"]) for entry in entries)
    assert {account: row["entries"] for account, row in shares.items()} == {a: made[a] for a in shares}
    for name in ("files", "plain", "stored", "hits", "misses", "served"):
        assert sum(row[name] for row in shares.values()) == sum(row[name] for row in rows.values()), name


def check_meta(reader: StoreReader, shown: Shown) -> None:
    meta, highest = reader.meta(), {letter: max(reader.by_number(letter), default=0) for letter in "is"}
    assert meta["mino"]["number"] > highest["i"]
    assert meta.get("mspool", {"number": 1})["number"] > highest["s"]
    assert meta["mvolume"]["number"] > max(key["number"] for key, _ in reader.table("v"))
    if shown.last_changed:
        assert meta["manswered"]["ino"] == shown.last_changed
        assert meta["manswered"]["request"] > 0


RINGS: dict[str, Any] = {
    "runs": history_records.RunRecord,
    "profiles": history_records.ProfileRecord,
    "events": history_records.EventRecord,
    "tombstones": history_records.TombstoneRecord,
    "samples.10": history_records.SampleRecord,
    "samples.300": history_records.SampleRecord,
    "samples.3600": history_records.SampleRecord,
}


def check_history(reader: StoreReader, shown: Shown) -> None:
    """What the page reads of the past is what the code reads of it, and that is not all zeros or all the same."""
    entries = reader.by_number("e")
    makings = reader.by_number("d")
    assert makings.keys() == {number for number, entry in entries.items() if entry["used"]}
    for number, fields in makings.items():
        raw = reader.records[b"d" + number.to_bytes(8, "big")]
        assert fields == dataclasses.asdict(history_records.MakingRecord.unpack(raw))
        inode = reader.by_number("i").get(number)
        assert inode is None or fields["began"] == inode["atime"]
    for name, known in _past(shown.store).items():
        told = reader.ring(name)
        assert told == known
        # Of profiles there is no real one: the process that runs the tests may have no name, and started long ago.
        real = 0 if name == "profiles" else 1
        assert len(told) > real, "there is a real record and one in which no two fields are equal"


@cache
def _past(store: Path) -> dict[str, dict[int, Fields]]:
    """What the code reads of the past in a store that nobody changes: for each ring its records by their numbers."""
    files = history_files.HistoryFiles(store)
    try:
        return {
            ring.path.name: {
                number: dataclasses.asdict(RINGS[ring.path.name].unpack(raw)) for number, raw in ring.records()
            }
            for ring in files.rings()
        }
    finally:
        files.close()


def _is(reader: StoreReader, inode: Fields, content: str) -> bool:
    return bool(inode["content"] == reader.page.content[content])


def _as_shown(row: Fields) -> dict[str, Any]:
    """A namespace's record under the names that `kcachefs stats` uses."""
    renamed = {"plain": "plain_bytes", "stored": "stored_bytes", "served": "bytes_served"}
    return {renamed.get(name, name): value for name, value in row.items() if name != "used"} | {
        "last_used": row["used"] / 1e9
    }


@need_root
def test_a_store_at_rest_is_read_by_the_page_alone(shown: tuple[Shown, Shown]) -> None:
    reader = check(Page(TEXT), shown[0])
    assert reader.replayed == 0, "a clean close leaves no journal"
    assert reader.header["boot"] == ""


@need_root
def test_a_store_in_use_is_read_by_the_page_alone(shown: tuple[Shown, Shown]) -> None:
    reader = check(Page(TEXT), shown[1])
    assert reader.replayed > 0, "LMDB had everything, so this proves nothing about the journal"
    assert reader.header["boot"] != ""


@need_root
def test_between_them_the_stores_have_records_of_every_table(shown: tuple[Shown, Shown]) -> None:
    page = Page(TEXT)
    readers = [StoreReader(page, one.store) for one in shown]
    assert {key[:1].decode() for reader in readers for key in reader.records} == set(page.tables)
    assert {key for reader in readers for key in reader.meta()} == set(page.meta) - PRIVATE
    inodes = [inode for reader in readers for inode in reader.by_number("i").values()]
    assert {inode["content"] for inode in inodes} == set(page.content.values())


# --- a page that says something else is refused -----------------------------------------------------------------------


def _swapped_fields() -> Iterator[tuple[str, str]]:
    """The page with two neighbouring fields of a layout in the other order, for each pair."""
    row = re.compile(r"^\| \d+ \| (\d+) \| (`[a-z0-9]+` \| `[a-z_]+` \|)", re.M)
    for one, two in zip(found := list(row.finditer(TEXT)), found[1:], strict=False):
        if TEXT[one.end() : two.start()].count("\n") == 1:
            start = re.match(r"\| (\d+) ", one[0])
            assert start is not None
            first = f"| {start[1]} | {two[1]} | {two[2]} |\n"
            second = f"| {int(start[1]) + int(two[1])} | {one[1]} | {one[2]} |"
            heading = TEXT[: one.start()].rsplit("### Layout: ", 1)[1].split("\n")[0]
            name = f"{heading}: {one[2].split('`')[3]} and {two[2].split('`')[3]}"
            yield name, TEXT[: one.start()] + first + second + TEXT[TEXT.index("\n", two.end()) :]


def _other_numbers() -> Iterator[tuple[str, str]]:
    """The page with another value of a constant, a flag or a kind of content, for each of them."""
    for found in re.finditer(r"^\| `([A-Za-z_]+)` \| (\d+|`[A-Za-z0-9]{4,8}`) \|", TEXT, re.M):
        other = f"{int(found[2]) * 2 + 1}" if found[2].isdigit() else "`other`"
        yield found[1], TEXT[: found.start(2)] + other + TEXT[found.end(2) :]


PRIVATE = {"mprivate"}
"""What only a private mount leaves in a store: its own test reads it."""
NEVER_THERE = {"DAMAGED", "DOOMED", "LEAVING", "PACKED", "PUBLISHED", "REMADE", "before_key", *PRIVATE}
"""Flags that nothing in these stores has, and what only a fold that was cut off leaves: the codecs' own numbers are
compared below."""


@need_root
def test_no_field_of_a_layout_can_be_elsewhere(shown: tuple[Shown, Shown]) -> None:
    pages = dict(_swapped_fields())
    assert len(pages) > 50
    assert [name for name, text in pages.items() if _passes(text, shown)] == []


@need_root
def test_no_number_of_the_page_can_be_another(shown: tuple[Shown, Shown]) -> None:
    pages = dict(_other_numbers())
    assert {"frame_size", "slot_size", "deleted", "trailer_magic", "root", "HELD", "SLOT"} <= set(pages)
    assert {name for name, text in pages.items() if _passes(text, shown)} == NEVER_THERE


def _passes(text: str, shown: tuple[Shown, Shown]) -> bool:
    try:
        page = Page(text)
        for one in shown:
            check(page, one)
    except Exception:
        return False
    return True


# --- the page and the code --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "record"),
    [
        ("object", object_records.ObjectRecord),
        ("volume", object_records.VolumeRecord),
        ("totals", object_records.Totals),
        ("inode", records.Inode),
        ("entry", entry_records.EntryRecord),
        ("namespace", entry_records.NamespaceRecord),
        ("making", history_records.MakingRecord),
        ("run", history_records.RunRecord),
        ("profile", history_records.ProfileRecord),
        ("event", history_records.EventRecord),
        ("tombstone", history_records.TombstoneRecord),
        ("sample_row", history_records.SampleRowRecord),
    ],
)
def test_records_have_the_fields_and_flags_of_the_page(layout: str, record: Any) -> None:
    page = Page(TEXT)
    fields = page.layouts[layout].fields
    assert [field.name for field in fields] == [field.name for field in dataclasses.fields(record)]
    codes = {"u8": "B", "u32le": "I", "u64le": "Q", "i64le": "q"}
    form = "<" + "".join(codes.get(f.type, f"{f.size}s") for f in fields if f.size is not None)
    assert struct.Struct(form).format == record.CODEC.format
    flags = {name: value for name, value in vars(record).items() if name.isupper() and isinstance(value, int)}
    assert page.flags.get(layout, {}) == flags


def test_constants_are_those_of_the_page() -> None:
    page = Page(TEXT)
    assert page.content == {name: value for name, value in vars(records.Content).items() if name.isupper()}
    assert page.constants == {
        "format": records.FORMAT,
        "frame_size": frames.FRAME_SIZE,
        "slot_size": slots.SLOT_SIZE,
        "segment_magic": journal._MAGIC,
        "segment_version": journal._VERSION,
        "before_key": journal._BEFORE,
        "deleted": journal._DELETED,
        "trailer_magic": frames._MAGIC,
        "dictionary_magic": dictionaries._MAGIC,
        "listing_magic": listings._MAGIC,
        "root": inode_numbers.ROOT_INO,
        "group_base": inode_numbers.GROUP_BASE,
    }


def test_the_rings_are_those_of_the_page() -> None:
    rings = history_files.HistoryFiles(Path("nowhere")).rings()
    assert {ring.path.name: (ring.slots, ring.size) for ring in rings} == {
        name: (slots, size) for name, (_, slots, size) in Page(TEXT).rings.items()
    }


def test_every_layout_of_the_page_is_used_and_every_used_one_is_there() -> None:
    page = Page(TEXT)
    used = {name for pair in page.tables.values() for name in pair} | set(page.meta.values())
    used |= {"segment_header", "journal_record", "change", "frame_row", "trailer", "ring_record", "sample_row"}
    used |= {"dictionary_head", "listing_head", "listing_record"}
    used |= {body for body, _, _ in page.rings.values()}
    used = {name for name in used if not name.startswith("see ")}
    assert set(page.layouts) == used
