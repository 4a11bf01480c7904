"""A disk that cannot read some of its sectors (EIO): what lies there is damaged, and everything else goes on."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from kcachefs.core import Filesystem
from kcachefs.core.limits import Limits
from kcachefs.store import Options, Store, fsck
from kcachefs.store.compaction import volume_records
from kcachefs.store.object_records import VolumeRecord
from tests.core.trees import ROOT, find, write
from tests.engines.callers import in_child
from tests.store.objects import put

OPTIONS = Options(background=False, volume_size=64 << 10)


class Sectors:
    """Places in files that cannot be read, by the end of the file's path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bad: dict[str, int] = {}
        pread, read_bytes = os.pread, Path.read_bytes

        def refuse(path: str, start: int, end: int) -> None:
            for name, place in self.bad.items():
                if path.endswith(name) and start <= place < end:
                    raise OSError(errno.EIO, "Input/output error", path)

        def pread_or_fail(fd: int, length: int, offset: int) -> bytes:
            refuse(os.readlink(f"/proc/self/fd/{fd}"), offset, offset + length)
            return pread(fd, length, offset)

        def read_or_fail(path: Path) -> bytes:
            refuse(str(path), 0, 1 << 62)
            return read_bytes(path)

        monkeypatch.setattr(os, "pread", pread_or_fail)
        monkeypatch.setattr(Path, "read_bytes", read_or_fail)


@pytest.fixture
def sectors(monkeypatch: pytest.MonkeyPatch) -> Sectors:
    return Sectors(monkeypatch)


def volume(number: int) -> str:
    return f"/{number:08x}.vol"


def test_the_evictor_goes_on_past_them(tmp_path: Path, sectors: Sectors, caplog: pytest.LogCaptureFixture) -> None:
    """It rewrites a volume of which little is in use, and with that the file that cannot be read."""
    with Store(tmp_path / "store", Options(background=False, volume_size=1 << 20)) as store:
        fs = Filesystem(store)
        fs.evictor.certain_seconds = 0.0
        for number in range(24):
            write(fs, f"triton/key{number}/a.cubin", os.urandom(300_000))
            fs.settle()
        places = {}
        for number in range(24):
            record = fs.store.objects.record(fs.nodes.get(find(fs, f"triton/key{number}/a.cubin")).digest)
            assert record is not None
            places[number] = record
        first = [number for number, record in places.items() if record.volume == places[0].volume]
        for number in first[1:]:
            fs.unlink(ROOT, find(fs, f"triton/key{number}"), b"a.cubin")
        fs.store.fold()
        sectors.bad[volume(places[0].volume)] = places[0].offset + 100
        fs.set_limits(Limits(max_size=5 << 20, grace=0.0, min_free=0))
        while fs.evictor.turn():
            pass
        assert fs.room.used_bytes() <= 5 << 20
        assert "cannot be read at" in caplog.text


def test_repacking_goes_on_past_them(tmp_path: Path, sectors: Sectors) -> None:
    with Store(tmp_path / "store", OPTIONS) as store:
        digests = [put(store, os.urandom(20) + bytes(9000) + os.urandom(3000)) for _ in range(60)]
        store.fold()
        record = store.objects.record(digests[0])
        assert record is not None
        sectors.bad[volume(record.volume)] = record.offset + 10
        for _ in store.repack(0.0):
            pass
        packed = [number for number, row in volume_records(store.catalog) if row.flags & VolumeRecord.PACKED]
        assert packed
        moved = [store.objects.record(digest) for digest in digests[1:]]
        assert all(row is not None and row.volume in packed for row in moved)


def test_a_store_opens_after_a_power_cut_though_some_cannot_be_read(
    tmp_path: Path, sectors: Sectors, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"

    def die() -> None:
        store = Store(path, OPTIONS)
        for _ in range(5):
            put(store, os.urandom(5000))
        os._exit(0)

    with pytest.raises(ChildProcessError):
        in_child(die)
    header = path / "kcachefs.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "boot": "another"}))
    sectors.bad[".vol"] = 5100
    with Store(path, OPTIONS) as store:
        intact = [store.objects.verify(digest[1:]) for digest in store.catalog.keys(b"o")]
    assert sorted(intact) == [False, True, True, True, True]
    assert all(finding.repaired for finding in fsck.run(path, repair=True).findings)
    assert fsck.run(path).findings == []


def test_fsck_sets_a_dictionary_aside_that_cannot_be_read(tmp_path: Path, sectors: Sectors) -> None:
    path = tmp_path / "store"
    with Store(path, OPTIONS) as store:
        samples = [b"%d common to all of them" % number * 100 for number in range(1000)]
        number = store.dictionaries.learn(samples, 1 << 20)
        assert number
    sectors.bad[".dict"] = 0
    assert [finding.check for finding in fsck.run(path).findings] == ["dictionary"]
    assert [finding.repaired for finding in fsck.run(path, repair=True).findings] == [True]
    assert fsck.run(path).findings == []
