"""Entries that come from elsewhere: whole, at the old end of the order of use, beside what is here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcachefs.core import Filesystem
from kcachefs.core.arrivals import PIECE_FILES, ArrivingEntry, ArrivingFile
from kcachefs.core.caller import Caller
from kcachefs.core.kernel import Kernel
from kcachefs.core.limits import Limits
from kcachefs.core.remote import Delivery, Found, Place
from kcachefs.core.report import FleetNumbers
from kcachefs.errors import NoSpace
from kcachefs.store.records import Inode
from tests.core.trees import READER, exists, find, nothing_acknowledged, opened, write
from tests.disks import Disk, need_root


def tree(name: bytes, files: int = 3, size: int = 100) -> ArrivingEntry:
    names = [(b"deep", b"er", b"first.o"), *((b"%d.ptx" % number,) for number in range(1, files))]
    made = [ArrivingFile(one, 0o666, 5 * 10**9, b"%s of %s" % (one[-1], name) * size) for one in names]
    return ArrivingEntry(b"triton", (name,), b"", made)


def group(stem: bytes) -> ArrivingEntry:
    files = [ArrivingFile((stem + suffix,), 0o644, 10**9, stem + suffix) for suffix in (b".py", b".so", b".empty")]
    return ArrivingEntry(b"inductor", (b"ab",), stem, [*files[:2], files[2]._replace(content=b"")])


def bring(fs: Filesystem, entry: ArrivingEntry, *, is_asked: bool = True) -> bool:
    return fs.arrivals.bring(entry, is_asked=is_asked, was_missed=lambda place: False)


@pytest.mark.parametrize("files", [3, 2 * PIECE_FILES + 1])
def test_a_folder_arrives_whole_and_counts_as_adopted(tmp_path: Path, files: int) -> None:
    with opened(tmp_path / "store") as fs:
        assert bring(fs, tree(b"KEY", files))
        node = fs.nodes.get(find(fs, "triton/KEY/1.ptx"))
        assert (node.mode & 0o777, node.mtime, node.uid) == (0o644, 5 * 10**9, 0)
        assert node.flags & Inode.ADOPTED
        assert fs.read(find(fs, "triton/KEY/deep/er/first.o"), 0, 20) == b"first.o of KEYfirst."
        numbers = fs.statistics().total
        assert (numbers.entries, numbers.files, numbers.misses) == (1, files, 0)
        assert not bring(fs, tree(b"KEY", files)), "it is here already"
        assert len(fs.tree.listing(find(fs, "triton"), 2, 10)) == 1


@pytest.mark.parametrize(("made", "here"), [(0o600, 0o644), (0o700, 0o755), (0o666, 0o644), (0o640, 0o644)])
def test_everybody_reads_what_arrives_whatever_its_makers_umask(tmp_path: Path, made: int, here: int) -> None:
    with opened(tmp_path / "store") as fs:
        files = [ArrivingFile((b"add.cubin",), made, 1, b"kernel")]
        assert bring(fs, ArrivingEntry(b"triton", (b"KEY",), b"", files))
        assert fs.nodes.get(find(fs, "triton/KEY/add.cubin")).mode & 0o777 == here


def test_a_group_arrives_whole_or_not_at_all(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        write(fs, "inductor/ab/cabc.py", b"our own")
        assert not bring(fs, group(b"cabc")), "its files belong together, and one of them is our own"
        assert bring(fs, group(b"cdef"))
        assert fs.read(find(fs, "inductor/ab/cabc.py"), 0, 20) == b"our own"
        assert not exists(fs, "inductor/ab/cabc.so")
        write(fs, "inductor/ab/cxyz.log", b"of a name that does not arrive")
        assert not bring(fs, group(b"cxyz"))
        assert fs.attributes(find(fs, "inductor/ab/cdef.empty")).size == 0
        assert not bring(fs, group(b"cdef"))


def test_what_nobody_asked_for_is_the_first_to_go(tmp_path: Path) -> None:
    with opened(tmp_path / "store", Limits(grace=0.0)) as fs:
        write(fs, "triton/OLD/add.cubin", b"old")
        fs.settle()
        bring(fs, tree(b"ASKED"))
        for name in (b"ONE", b"TWO"):
            bring(fs, tree(name), is_asked=False)
        fs.settle()
        order = fs.evictor.order.oldest(9, 0.0, {})
        record = fs.table.get
        assert [found.name for entry in order if (found := record(entry))] == [b"TWO", b"ONE", b"OLD", b"ASKED"]


def test_what_nobody_asked_for_pushes_nothing_out(tmp_path: Path) -> None:
    with opened(tmp_path / "store", Limits(max_size=1 << 20)) as fs:
        assert fs.arrivals.has_room(is_asked=False)
        write(fs, "triton/OLD/add.cubin", bytes(range(256)) * 4096)
        assert not fs.arrivals.has_room(is_asked=False)
        assert fs.arrivals.has_room(is_asked=True)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        for entry in (tree(b"KEY"), tree(b"KEY", 2 * PIECE_FILES)):
            with nothing_acknowledged(fs):
                bring(fs, entry)
            assert not exists(fs, "triton/KEY")
        assert bring(fs, tree(b"KEY"))


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        write(fs, "inductor/ab", b"a file")
        assert not bring(fs, group(b"cabc"))
        assert not bring(fs, tree(b"KEY")._replace(namespace=b"none"))
        assert not exists(fs, "none")


class _Kernel(Kernel):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.gone: list[bytes] = []

    def name_gone(self, parent: int, name: bytes, shown: int) -> None:
        self.gone.append(name)


class _Remote:
    """Has nothing, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[Place] = []

    def find(self, place: Place, caller: Caller) -> Delivery | Found:
        self.asked.append(place)
        return Found.HERE if place[-1] == b"fxgraph" else Found.NOWHERE

    def report(self) -> FleetNumbers:
        return FleetNumbers()


def test_the_kernel_is_told_of_names_that_it_took_for_missing(tmp_path: Path) -> None:
    kernel, remote = _Kernel(), _Remote()
    with opened(tmp_path / "store", kernel=kernel, remote=remote) as fs:
        assert fs.elsewhere is not None
        reader = Caller(0, 0, READER)
        assert fs.elsewhere.missed(reader, find(fs, "triton"), b"KEY") is Found.NOWHERE
        for name in (b"KEY", b"OTHER"):
            fs.arrivals.bring(tree(name), is_asked=True, was_missed=fs.elsewhere.was_missed)
        assert kernel.gone == [b"KEY"]
        for name in (b"NEW", b"NONE"):
            assert fs.elsewhere.missed(reader, find(fs, "triton"), name) is Found.NOWHERE
        fs.elsewhere.look_again(lambda place: place == (b"triton", b"NEW"))
        assert kernel.gone == [b"KEY", b"NEW"]


def test_only_names_that_can_lead_to_an_entry_are_asked_for(tmp_path: Path) -> None:
    remote = _Remote()
    with opened(tmp_path / "store", remote=remote) as fs:
        assert fs.elsewhere is not None
        write(fs, "triton/KEY/add.cubin", b"kernel")
        reader = Caller(0, 0, READER)
        for parent, name in (("triton/KEY", b"more"), ("triton", b"NEW"), ("inductor", b"fxgraph")):
            fs.elsewhere.missed(reader, find(fs, parent), name)
        fs.elsewhere.missed(reader, 1, b"namespace")
        assert remote.asked == [(b"triton", b"NEW"), (b"inductor", b"fxgraph")]
        assert fs.nodes.get(find(fs, "inductor/fxgraph")).mode & 0o7777 == 0o1777


@need_root
def test_an_entry_for_which_there_is_no_room_leaves_nothing_behind(small_disk: Disk) -> None:
    with opened(small_disk.path / "store") as fs:
        files = [ArrivingFile((b"%d" % number,), 0o644, 1, os.urandom(1 << 20)) for number in range(8)]
        before = fs.store.volumes.incoming()
        small_disk.fill(leave=4 << 20)
        with pytest.raises(NoSpace):
            bring(fs, ArrivingEntry(b"triton", (b"KEY",), b"", files))
        assert fs.store.volumes.incoming() == before
        assert not fs.store.volumes.staged
        small_disk.make_room()
