"""A store that somebody else made or changed on purpose: a clear refusal, never a loop, a crash or a full memory."""

from __future__ import annotations

import os
import random
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from blake3 import blake3

from kcachefs.errors import KcachefsError, ObjectDamaged, StoreAccessError, StoreError
from kcachefs.store import Store
from kcachefs.store.folded import FoldedRecords
from kcachefs.store.frame_reader import FrameReader
from kcachefs.store.frames import FRAME_SIZE, TRAILER, Codec, decode_tail, encode_tail
from kcachefs.store.fsck import run
from kcachefs.store.object_records import ObjectRecord
from kcachefs.store.places import FOLDERS
from kcachefs.store.volumes import Volumes
from tests.cli.scene import scene
from tests.store import tree
from tests.store.repairs import OPTIONS
from tests.store.test_salvage import leaf_pages
from tests.waiting import PATIENCE

STRANGER = 54321
PAGE = 4096
LAST_PAGE = 16 + 24 + 2 * 48
"""Where a meta page of LMDB has the number of the last page."""


def make(path: Path, files: int = 400) -> Path:
    with Store(path, OPTIONS) as store:
        tree.make_root(store)
        for number in range(files):
            tree.create(store, b"file-%d" % number, b"kernel %d " % number * 50)
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a store away")
@pytest.mark.parametrize("part", [".", "catalog", "volumes"])
def test_a_store_of_somebody_else_is_refused_and_left_alone(tmp_path: Path, part: str) -> None:
    path = make(tmp_path / "store", 1)
    os.chown(path / part, STRANGER, STRANGER)
    before = {one: one.stat().st_mtime_ns for one in path.rglob("*")}
    with pytest.raises(StoreAccessError, match=f"belongs to user {STRANGER}"):
        Store(path, OPTIONS)
    with pytest.raises(StoreAccessError, match=f"belongs to user {STRANGER}"):
        run(path, repair=True)
    assert {one: one.stat().st_mtime_ns for one in path.rglob("*")} == before


def test_every_open_closes_the_store_to_others(tmp_path: Path) -> None:
    path = make(tmp_path / "store", 1)
    for folder in (".", *FOLDERS):
        (path / folder).chmod(0o777)
    Store(path, OPTIONS).close()
    modes = {folder: stat.S_IMODE((path / folder).stat().st_mode) for folder in (".", *FOLDERS)}
    assert modes == dict.fromkeys(modes, 0o700)


def test_a_frame_cannot_decode_to_more_than_a_frame() -> None:
    """Half a kilobyte of zeros that would take 64 MiB."""
    plain = bytes(64 << 20)
    with pytest.raises(ObjectDamaged, match="longer than a frame can be"):
        Codec().decode_frame(zstandard.compress(plain), len(plain))


@pytest.mark.parametrize("plain", [0, FRAME_SIZE, 3 * FRAME_SIZE, 1 << 60])
def test_a_table_whose_frames_do_not_add_up_is_damaged(plain: int) -> None:
    digest = blake3(b"").digest()
    rows = [(100, bytes(16)), (100, bytes(16))]
    with pytest.raises(ObjectDamaged):
        decode_tail(encode_tail(digest, plain, rows), digest, 200 + 2 * 20 + TRAILER.size)


@pytest.mark.parametrize(
    "record",
    [
        ObjectRecord(1, 0, 1 << 50, 100, 1, 1),
        ObjectRecord(1, 0, 1 << 50, 1 << 50, (1 << 32) - 1, 1),
        ObjectRecord(1, 1 << 50, 200, 100, 1, 1),
        ObjectRecord(1, 0, 10, 100, 1, 1),
    ],
    ids=["length", "frames", "offset", "short"],
)
def test_absurd_numbers_in_a_record_are_damage(tmp_path: Path, record: ObjectRecord) -> None:
    (tmp_path / "00000001.vol").write_bytes(bytes(1000))
    volumes = Volumes(tmp_path, tmp_path)
    with pytest.raises(ObjectDamaged):
        FrameReader(volumes, Codec()).read(bytes(32), record, 0)
    volumes.close()


def circle(data: bytearray) -> None:
    """A branch page whose children are all the page itself."""
    for offset in range(2 * PAGE, len(data), PAGE):
        if int.from_bytes(data[offset + 10 : offset + 12], "little") == 1:
            for at in range(16, int.from_bytes(data[offset + 12 : offset + 14], "little"), 2):
                node = offset + int.from_bytes(data[offset + at : offset + at + 2], "little")
                data[node : node + 4] = struct.pack("<I", offset // PAGE)


def one_leaf(data: bytearray) -> None:
    """Branch pages that lead to one leaf again and again."""
    leaf = min(leaf_pages(bytes(data))) // PAGE
    for offset in range(2 * PAGE, len(data), PAGE):
        if int.from_bytes(data[offset + 10 : offset + 12], "little") == 1:
            for at in range(16, int.from_bytes(data[offset + 12 : offset + 14], "little"), 2):
                node = offset + int.from_bytes(data[offset + at : offset + at + 2], "little")
                data[node : node + 4] = struct.pack("<I", leaf)


def endless(data: bytearray) -> None:
    """A meta page that claims more pages than any disk has."""
    for meta in (0, PAGE):
        data[meta + LAST_PAGE : meta + LAST_PAGE + 8] = struct.pack("<Q", 1 << 45)


@pytest.mark.parametrize("how", [circle, one_leaf, endless])
def test_fsck_ends_whatever_the_catalog_looks_like(tmp_path: Path, how: object) -> None:
    path = make(tmp_path / "store")
    catalog = path / "catalog" / "data.mdb"
    data = bytearray(catalog.read_bytes())
    how(data)  # type: ignore[operator]
    assert data != catalog.read_bytes(), "the attack must change something"
    catalog.write_bytes(data)
    for options, codes in (([], {2, 3, 4}), (["--repair"], {1}), ([], {0})):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "kcachefs", "fsck", "--store", path, *options],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode in codes, (options, done.returncode, done.stdout[-500:], done.stderr[-500:])
        assert "Traceback" not in done.stderr
        assert catalog.stat().st_size < 1 << 30


def huge(data: bytearray) -> None:
    """Records that claim to be 4 GiB long, far beyond the end of the file."""
    for offset in leaf_pages(bytes(data)):
        for at in range(16, int.from_bytes(data[offset + 12 : offset + 14], "little"), 2):
            node = offset + int.from_bytes(data[offset + at : offset + at + 2], "little")
            data[node : node + 4] = b"\xf0\xff\xff\xff"


def emptied(data: bytearray) -> None:
    """Leaves that hold nothing but zeros."""
    for offset in leaf_pages(bytes(data)):
        data[offset : offset + PAGE] = bytes(PAGE)


def shuffled(data: bytearray) -> None:
    """Leaves with random bytes in their headers."""
    choose = random.Random(1)
    for offset in leaf_pages(bytes(data)):
        for _ in range(3):
            data[offset + choose.randrange(64)] = choose.randrange(256)


@pytest.mark.mount
@pytest.mark.parametrize("how", [circle, one_leaf, endless, huge, emptied, shuffled])
def test_an_ordinary_open_of_a_damaged_catalog_ends_with_one_line_that_names_fsck(how: object) -> None:
    with scene() as place:
        catalog = make(place.store) / "catalog" / "data.mdb"
        data = bytearray(catalog.read_bytes())
        how(data)  # type: ignore[operator]
        assert data != catalog.read_bytes(), "the attack must change something"
        catalog.write_bytes(data)
        for command in (("ls", "--json"), ("stats",), ("prune", "--unused", "--dry-run"), ("mount", place.mountpoint)):
            outcome = place.run(*command)
            if how is not one_leaf:  # which looks like a store that holds little
                outcome.refused_with(3, "fsck --repair")
            elif command[0] == "mount" and outcome.code == 0:
                [state] = place.status()
                with pytest.raises(OSError, match="Input/output error"):
                    list(place.mountpoint.rglob("*"))
                assert "fsck --repair" in Path(state["log"]).read_text()
                place.umount()
            assert place.is_over()


def test_a_walk_of_a_tree_that_leads_in_a_circle_ends(tmp_path: Path) -> None:
    """Such a tree has each key again and again, as often as branch pages can be nested."""
    path = make(tmp_path / "store")
    catalog = path / "catalog" / "data.mdb"
    data = bytearray(catalog.read_bytes())
    one_leaf(data)
    catalog.write_bytes(data)
    folded = FoldedRecords(path / "catalog", path / "quarantine", 1 << 30)
    with pytest.raises(StoreError, match="out of order"):
        list(folded.walk(b""))
    with pytest.raises(StoreError, match="out of order"):
        folded.rows(folded.snapshot(), b"", b"", 1 << 30, lambda key: False)
    folded.close()


def test_a_catalog_that_claims_absurd_pages_is_not_opened(tmp_path: Path) -> None:
    path = make(tmp_path / "store", 10)
    catalog = path / "catalog" / "data.mdb"
    data = bytearray(catalog.read_bytes())
    endless(data)
    catalog.write_bytes(data)
    with pytest.raises(StoreError, match="fsck") as refusal:
        Store(path, OPTIONS)
    assert isinstance(refusal.value, KcachefsError)
    assert catalog.stat().st_size == len(data)
