"""Stores made through a real mount, and what the mount shows of them: one at rest, one copied in the middle of use.

Between them they have records of every table and files of every kind of content.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

from kcachefs import ContentStore
from kcachefs.store import Store
from kcachefs.store.history_records import (
    EventRecord,
    MakingRecord,
    ProfileRecord,
    RunRecord,
    SampleRecord,
    SampleRowRecord,
    TombstoneRecord,
)
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.journal import Changes, decode_records, segment_numbers, segment_path
from kcachefs.store.listings import Listing
from kcachefs.store.records import name_key, names_of, names_prefix, unpack_name
from tests.cli.scene import Scene, scene
from tests.store.kill import stop
from tests.waiting import until

USER, GROUP = 1234, 2345
SEGMENT_HEADER = 24
"""Bytes of a journal segment without records."""
HELD = b"held by a ContentStore " * 50
KEPT = b"to be synced and then written" * 10
_CHOSEN = random.Random(14)
RAW = _CHOSEN.randbytes(600 << 10)
"""Does not compress, has several frames, and is large enough for a volume of its own."""
TEXT = b"".join(b"%d: a line of generated code\n" % _CHOSEN.randrange(1 << 40) for _ in range(15000))
"""Compresses, and has several frames. Twice as much is too much for a slot."""


@dataclass
class Seen:
    """What a mount shows of a path."""

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    atime: int
    mtime: int
    ctime: int
    content: bytes
    """A file's bytes, a link's target, the names in a directory one after the other."""


@dataclass
class Shown:
    """What a mount shows of a store, and what was done to it."""

    store: Path
    paths: dict[bytes, Seen]
    entries: list[dict[str, Any]]
    statistics: dict[str, Any]
    held: tuple[bytes, ...] = ()
    flags: dict[bytes, set[str]] = field(default_factory=dict)
    """The flags that a path's inode must have, by the path."""
    kept: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """The bytes and the mtime that a path's file had when it was synced, if it was written since."""
    temporary: bytes = b""
    orphans: list[int] = field(default_factory=list)
    last_changed: int = 0
    """The inode that the last change of a name returned."""


LEARNED, LEARNED_FROM = 32768, 123_456_789
"""The number of a dictionary, and the bytes that the store is said to have held when it was made."""

LISTED, LISTED_CHANGED = b"triton/KEY", -123_456_789
"""A folder whose listing is kept, and the time at which it is said to have been changed last."""


@contextmanager
def stores() -> Iterator[tuple[Shown, Shown]]:
    """The store at rest, and a copy of it in use."""
    with scene() as place:
        at_rest = _fill(place)
        copy = place.folder / "at rest"
        shutil.copytree(place.store, copy)
        at_rest.store = copy
        in_use = _use(place)
        yield at_rest, in_use


def _fill(place: Scene) -> Shown:
    place.mount()
    place.must("stats", "--reset")
    root = place.mountpoint
    entry = root / "triton" / "KEY"
    entry.mkdir()
    (entry / "kernel.json").write_bytes(b'{"name": "kernel"}' * 20)
    (entry / "kernel.cubin").write_bytes(RAW)
    (entry / "kernel.ttir").write_bytes(TEXT)
    (entry / "empty").touch()
    (entry / os.fsdecode(b"n\xffme")).write_bytes(b"a name that is no UTF-8")
    (entry / "folder").mkdir(mode=0o750)
    (entry / "folder" / "mutable").write_bytes(b"to be written again" * 10)
    (entry / "folder" / "synced").write_bytes(b"to be written and synced" * 10)
    (entry / "folder" / "kept").write_bytes(KEPT)
    (entry / "folder" / "large").write_bytes(TEXT * 2)
    os.link(entry / "kernel.json", entry / "folder" / "second name")
    os.symlink("../kernel.json", entry / "folder" / "link")
    os.mkfifo(entry / "fifo", 0o640)
    os.chown(entry / "kernel.json", USER, GROUP)
    os.utime(entry / "kernel.json", ns=(10**18 + 1, 10**18 + 2_000_000_001))
    for name in ("TWIN", "GONE", "PINNED"):
        (root / "triton" / name).mkdir()
        (root / "triton" / name / "kernel.ttir").write_bytes(TEXT if name == "TWIN" else name.encode() * 100)
    (root / "cute_dsl" / "stem.o").write_bytes(b"object" * 100)
    (root / "cute_dsl" / "stem.json").write_bytes(b"{}" * 100)
    (root / "deep_gemm" / "cache").mkdir()
    (root / "deep_gemm" / "cache" / "kernel.x").mkdir()
    (root / "deep_gemm" / "cache" / "kernel.x" / "kernel.cubin").write_bytes(b"deep" * 100)
    os.chmod(root / "deep_gemm" / "cache", 0o1777)
    _as_user(root, "mkdir deep_gemm/cache/theirs && seq 300 > deep_gemm/cache/theirs/kernel.cubin")
    _adopt(place)
    _hit(place, entry)
    place.must("evict", "triton/GONE")
    place.must("pin", "triton/PINNED")
    paths = _look(root)
    place.umount()
    shown = Shown(place.store, paths, *_ask(place))
    with ContentStore(place.store) as store:
        shown.held = (store.put(HELD),)
    _remember_more(place.store)
    shown.flags = {b"triton/OLD": {"ADOPTED"}, b"triton/KEY/kernel.cubin": set()}
    return shown


def _remember_more(path: Path) -> None:
    """One more record of each kind of the past, in which no two fields are equal."""
    with Store(path) as store:
        samples = [random.Random(number % 40).randbytes(2000) for number in range(1000)]
        assert store.dictionaries.learn(samples, LEARNED_FROM) == LEARNED
        _keep_listing(store)
        store.history.runs.append(RunRecord(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, b"argv").pack())
        store.history.profiles.append(ProfileRecord(b"0123456789abcdef", 1, b"\2\0\0\0\0\0\0\0").pack())
        store.history.events.append(EventRecord(1, 2, 3, 4, b"pathdetail").pack())
        store.history.tombstones.append(TombstoneRecord(b"0123456789abcdef", 1, 2, 3).pack())
        rows = [SampleRowRecord(*range(1, 10)), SampleRowRecord(*range(11, 20))]
        for ring in store.history.samples.values():
            ring.put(7, SampleRecord(1, 2, rows).pack())
        key = store.catalog.keys(b"d")[0]
        raw = store.catalog.get(key)
        assert raw is not None
        began = MakingRecord.unpack(raw).began
        with store.transaction() as txn:
            txn.put(key, MakingRecord(began, 2, 3, 4, 5, 6, 2, MakingRecord.REMADE).pack())


def _keep_listing(store: Store) -> None:
    folder, parent = ROOT_INO, ROOT_INO
    for name in LISTED.split(b"/"):
        raw = store.catalog.get(name_key(folder, name))
        assert raw is not None
        folder, parent = unpack_name(raw)[0], folder
    names = names_of(store.catalog.scan(names_prefix(folder)))
    store.listings.put(Listing.of(folder, parent, LISTED_CHANGED, names))


def _use(place: Scene) -> Shown:
    place.mount()
    folder = place.mountpoint / "triton" / "KEY" / "folder"
    (folder / "mutable").write_bytes(b"written again")
    with open(folder / "large", "ab") as large:
        large.write(b"and its end")
    with open(folder / "synced", "ab") as synced:
        synced.write(b"and its end")
        synced.flush()
        os.fsync(synced.fileno())
    synced_at = os.stat(folder / "kept").st_mtime_ns
    with open(folder / "kept", "ab") as kept:
        os.fsync(kept.fileno())
        kept.write(b"and its end")
    (folder.parent / "removed").write_bytes(b"open, and without a name")
    temporary = place.mountpoint / "triton" / "tmp.pid_1_abc"
    temporary.mkdir()
    with open(folder.parent / "removed", "rb") as removed:
        orphan = os.fstat(removed.fileno()).st_ino
        os.unlink(folder.parent / "removed")
        (place.mountpoint / "helion" / "link").symlink_to("somewhere")
        paths = _look(place.mountpoint)
        shown = Shown(place.folder / "in use", paths, *_ask(place))
        _copy_with_unfolded_changes(place, shown)
    shown.held, shown.temporary, shown.orphans = (blake3(HELD).digest(),), b"triton/tmp.pid_1_abc", [orphan]
    shown.kept = {b"triton/KEY/folder/kept": (KEPT, synced_at)}
    shown.flags = {
        b"triton/KEY/folder/mutable": {"MUTABLE"},
        b"triton/KEY/folder/large": {"MUTABLE"},
        b"triton/KEY/folder/synced": {"SYNCED"},
        b"triton/KEY/folder/kept": {"MUTABLE", "SYNCED"},
        b"triton/tmp.pid_1_abc": {"FRESH"},
    }
    place.umount()
    return shown


def _as_user(folder: Path, command: str) -> None:
    subprocess.run(["sh", "-c", command], cwd=folder, user=USER, group=GROUP, extra_groups=[], check=True)


def _adopt(place: Scene) -> None:
    old = place.folder / "old" / "OLD"
    old.mkdir(parents=True)
    (old / "kernel.cubin").write_bytes(b"adopted" * 100)
    assert place.run("adopt", old.parent, "--as", "triton", "--mount", place.mountpoint).code == 0


def _hit(place: Scene, entry: Path) -> None:
    def is_counted() -> bool:
        subprocess.run(["cat", entry / "kernel.json"], stdout=subprocess.DEVNULL, check=True)
        return bool(_ask(place)[1]["total"]["hits"])

    until(is_counted)


def _look(root: Path) -> dict[bytes, Seen]:
    """Everything in a mount but its own `.kcachefs`."""
    paths = {b"": _seen(os.fsencode(root))}
    for folder, folders, files in os.walk(os.fsencode(root)):
        folders[:] = [name for name in folders if name != b".kcachefs"]
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            paths[os.path.relpath(path, os.fsencode(root))] = _seen(path)
    return paths


def _seen(path: bytes) -> Seen:
    kind, content = stat.S_IFMT(os.lstat(path).st_mode), b""
    if kind == stat.S_IFREG:
        content = Path(os.fsdecode(path)).read_bytes()
    elif kind == stat.S_IFLNK:
        content = os.readlink(path)
    elif kind == stat.S_IFDIR:
        content = b"/".join(sorted(name for name in os.listdir(path) if name != b".kcachefs"))
    s = os.lstat(path)
    times = (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)
    return Seen(s.st_ino, s.st_mode, s.st_nlink, s.st_uid, s.st_gid, s.st_size, *times, content)


def _ask(place: Scene) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The entries and the statistics, of the mount or of the store at rest."""
    where = ("--mount", place.mountpoint) if place.mounted() else ("--store", place.store)
    statistics = json.loads(place.must("stats", *where, "--json"))
    return json.loads(place.must("ls", *where, "--json")), statistics


def _copy_with_unfolded_changes(place: Scene, shown: Shown) -> None:
    """Copy the store while its daemon stands still and the journal has what LMDB does not have yet: a deletion, too."""
    link = place.mountpoint / "helion" / "link"  # looking at what is in no sealed entry is no use of one
    for number in itertools.count():
        renamed = b"helion/renamed %d" % number  # and not removed: nobody knows when the kernel forgets what is removed
        link.rename(place.mountpoint / os.fsdecode(renamed))
        link.symlink_to("nowhere")
        shown.last_changed = link.lstat().st_ino
        for path in (b"helion", b"helion/link", renamed):
            shown.paths[path] = _seen(os.fsencode(place.mountpoint) + b"/" + path)
        with ExitStack() as going_on:
            for pid in place.daemons():
                stop(pid)
                going_on.callback(os.kill, pid, signal.SIGCONT)
            shutil.rmtree(shown.store, ignore_errors=True)
            shutil.copytree(place.store, shown.store)
        if any(None in changes.values() for changes in _changes(shown.store / "journal")):
            return


def _changes(journal: Path) -> Iterator[Changes]:
    for number in segment_numbers(journal):
        yield from decode_records(number, segment_path(journal, number).read_bytes(), SEGMENT_HEADER)
