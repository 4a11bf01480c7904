"""Entries in the core: what belongs to an entry, its totals, and when it was used."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.administration import Administration, EntryInfo
from kcachefs.core.report import Numbers
from kcachefs.errors import FsError
from kcachefs.store import Options, Store, fsck
from kcachefs.store.entry_records import group_key
from kcachefs.store.records import Inode
from tests.core.trees import (
    READER,
    ROOT,
    WRITER,
    exists,
    find,
    folder,
    kernel,
    look_up,
    nothing_acknowledged,
    opened,
    rename,
    user,
    write,
)


def entries(fs: Filesystem) -> dict[str, EntryInfo]:
    fs.settle()
    return {info.path: info for info in Administration(fs).ls(names=False)}


def numbers(fs: Filesystem, namespace: str) -> Numbers:
    fs.settle()
    return Administration(fs).stats().namespaces[namespace]


def test_a_kernels_folder_is_one_entry_with_all_its_files(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        kernel(fs, "KEY", size=3000)
        found = entries(fs)
        assert list(found) == ["triton/KEY"]
        assert (found["triton/KEY"].files, found["triton/KEY"].plain_bytes) == (6, 18000)


def test_files_of_one_stem_are_one_entry_and_locks_are_none(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        write(fs, "inductor/ab/cabcdef.py", b"import torch\n")
        write(fs, "inductor/ab/cabcdef.cpp", b"int main() {}\n")
        write(fs, "inductor/ab/cabother.py", b"import os\n")
        write(fs, "inductor/locks/cabcdef.lock", b"")
        found = entries(fs)
        assert sorted(found) == ["inductor/ab/cabcdef", "inductor/ab/cabother"]
        assert found["inductor/ab/cabcdef"].files == 2


def lose_group(fs: Filesystem, path: str, group: bytes) -> None:
    with fs.store.transaction() as txn:
        txn.delete(group_key(find(fs, path), group))


def test_fsck_has_a_group_lead_to_its_entry_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as fs:
        write(fs, "inductor/ab/cabcdef.py", b"import torch\n")
    with Store(path, Options(background=False)) as store:
        lose_group(Filesystem(store, FsOptions()), "inductor/ab", b"cabcdef")
    assert [(one.check, one.problem) for one in fsck.run(path).findings] == [("group", "does not lead to its entry")]
    assert [one.repaired for one in fsck.run(path, repair=True).findings] == [True]
    with opened(path) as fs:
        write(fs, "inductor/ab/cabcdef.cpp", b"int main() {}\n")
        assert [info.files for info in entries(fs).values()] == [2]


def test_fsck_makes_one_of_the_entries_that_a_lost_group_made_two(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as fs:
        write(fs, "inductor/ab/cabcdef.py", b"import torch\n")
    with Store(path, Options(background=False)) as store:
        fs = Filesystem(store, FsOptions())
        lose_group(fs, "inductor/ab", b"cabcdef")
        write(fs, "inductor/ab/cabcdef.cpp", b"int main() {}\n")
        fs.settle()
        assert [info.files for info in Administration(fs).ls()] == [1, 1]
    assert [(one.check, one.problem) for one in fsck.run(path).findings] == [("group", "has two entries")]
    assert all(one.repaired for one in fsck.run(path, repair=True).findings)
    with opened(path) as fs:
        assert [info.files for info in entries(fs).values()] == [2]


def test_an_entry_is_gone_with_its_last_file(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        kernel(fs, "KEY")
        kernel(fs, "OTHER")
        fs.settle()
        for suffix in ("source", "ttir", "llir", "ptx", "cubin", "json"):
            fs.unlink(ROOT, find(fs, "triton/KEY"), f"kernel.{suffix}".encode())
        assert list(entries(fs)) == ["triton/OTHER"]
        assert numbers(fs, "triton").files == 6


def test_a_temporary_file_joins_the_entry_that_it_is_renamed_to(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        write(fs, "inductor/ab/.4711.140001.tmp", b"import torch\n")
        assert fs.temporaries.inodes
        rename(fs, "inductor/ab/.4711.140001.tmp", "inductor/ab/cabcdef.py")
        assert not fs.temporaries.inodes
        assert entries(fs)["inductor/ab/cabcdef"].files == 1


@pytest.mark.parametrize("others", [[], ["cabcdef.so"]], ids=["alone", "with others"])
def test_the_first_file_of_a_group_joins_another_by_a_rename(tmp_path: Path, others: list[str]) -> None:
    with opened(tmp_path / "store") as fs:
        for name in ("cabcdef.py", *others):
            write(fs, f"inductor/ab/{name}", name.encode() * 100)
        fs.settle()
        rename(fs, "inductor/ab/cabcdef.py", "inductor/ab/cabother.py")
        expected = dict.fromkeys(["inductor/ab/cabcdef"] if others else [], 1) | {"inductor/ab/cabother": 1}
        assert {path: info.files for path, info in entries(fs).items()} == expected


def test_a_folder_published_by_a_rename_is_an_entry_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        for name in ("kernel.cu", "kernel.cubin"):
            write(fs, f"deep_gemm/tmp/0a1b2c/{name}", name.encode() * 100)
        fs.settle()
        folder(fs, "deep_gemm/cache")
        rename(fs, "deep_gemm/tmp/0a1b2c", "deep_gemm/cache/kernel.gemm.abcd")
        found = entries(fs)
        assert {path: info.files for path, info in found.items()} == {"deep_gemm/cache/kernel.gemm.abcd": 2}


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_folder_renamed_to_one_that_holds_entries_brings_them(tmp_path: Path, is_sealed: bool) -> None:
    with opened(tmp_path / "store") as fs:
        for name in ("1f.lto", "1f_fatbin.lto", "2e.lto"):
            write(fs, f"warp/1.11.0/lto_p1_t2/{name}", name.encode() * 100)
        write(fs, "inductor/saved/0/KEY/kernel.cubin", b"kernel" * 100)
        if is_sealed:
            fs.settle()
        rename(fs, "warp/1.11.0/lto_p1_t2", "warp/1.11.0/lto")
        rename(fs, "inductor/saved", "inductor/triton")
        found = {path: (info.files, info.plain_bytes) for path, info in entries(fs).items()}
        assert found == {
            "warp/1.11.0/lto/1f": (2, 1900),
            "warp/1.11.0/lto/2e": (1, 600),
            "inductor/triton/0/KEY": (1, 600),
        }


@pytest.mark.parametrize("is_sealed", [True, False])
def test_what_a_renamed_folder_brings_that_is_in_no_entry_is_kept_or_reaped(tmp_path: Path, is_sealed: bool) -> None:
    with opened(tmp_path / "store") as fs:
        for path in ("inductor/saved/cabc.py", "inductor/saved/x.tmp", "inductor/saved/y_CxxBuild/y.o"):
            write(fs, path, b"0123456789")
        for path in ("inductor/saved/x.lock", "ccache/saved/stats", "ccache/saved/1fR"):
            write(fs, path, b"0123456789")
        if is_sealed:
            fs.settle()
        rename(fs, "inductor/saved", "inductor/ab")
        rename(fs, "ccache/saved", "ccache/a")
        unfinished = {find(fs, "inductor/ab/x.tmp"), find(fs, "inductor/ab/y_CxxBuild")}
        assert fs.temporaries.inodes == unfinished
        assert fs.nodes.get(find(fs, "ccache/a/stats")).flags & Inode.PUBLISHED
        lock = find(fs, "inductor/ab/x.lock")
        assert not fs.nodes.get(lock).flags & Inode.PUBLISHED
        assert set(entries(fs)) == {"inductor/ab/cabc", "inductor/ab/y_CxxBuild", "ccache/a/1fR"}
        fs.reaper.seconds = -1.0
        assert fs.reaper.reap() == 2, "their writer does not exist"
        assert [exists(fs, f"inductor/ab/{name}") for name in ("x.tmp", "y_CxxBuild", "x.lock")] == [False, False, True]


def test_a_file_written_again_is_counted_once(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        ino = write(fs, "cupy/abc.cubin", b"one" * 100)
        fs.settle()
        fs.write(ino, 0, b"two" * 200)
        assert fs.sealer.seal(ino)
        [found] = entries(fs).values()
        assert (found.files, found.plain_bytes) == (1, 600)


@pytest.mark.parametrize("path", ["nvrtc/abc.cubin", "triton/KEY/kernel.cubin"])
@pytest.mark.parametrize("is_sealed", [False, True], ids=["unsealed", "sealed"])
def test_an_entry_stays_pinned_when_its_only_file_is_replaced(tmp_path: Path, path: str, is_sealed: bool) -> None:
    above, _, name = path.rpartition("/")
    temporary = f"{above}/tmp.pid_1_x"
    with opened(tmp_path / "store") as fs:
        write(fs, path, b"old" * 100)
        fs.settle()
        look_up(fs, path, READER)
        [old] = Administration(fs).pin([path]).entries
        write(fs, f"{temporary}/{name}", b"newer" * 100)
        if is_sealed:
            fs.settle()
        held = fs.hold(find(fs, temporary))
        rename(fs, f"{temporary}/{name}", path)
        fs.rmdir(ROOT, find(fs, above), b"tmp.pid_1_x")
        fs.forget(held, 1)
        [found] = entries(fs).values()
        assert (found.path, found.pinned, found.hits, found.plain_bytes) == (old, True, 1, 500)
        assert fs.evictor.evict_all([found.entry]) == set()
        Administration(fs).pin([path], pinned=False)
        assert fs.evictor.evict_all([found.entry]) == {found.entry}


def test_a_pin_goes_with_the_name(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        for data in (b"one", b"two"):
            write(fs, "nvrtc/abc.tmp", data)
            rename(fs, "nvrtc/abc.tmp", "nvrtc/abc.cubin")
            fs.settle()
            Administration(fs).pin(["nvrtc/abc*"])
        write(fs, "nvrtc/abc.tmp", b"three")
        rename(fs, "nvrtc/abc.tmp", "nvrtc/abc.cubin")
        fs.unlink(ROOT, find(fs, "nvrtc"), b"abc.cubin")
        assert not list(fs.store.catalog.keys(b"e"))
        write(fs, "nvrtc/abc.cubin", b"another")
        assert [info.pinned for info in entries(fs).values()] == [False]


def test_a_miss_is_an_entry_made_and_a_hit_one_found_by_another_process(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        for key in ("A", "B", "C"):
            kernel(fs, key)
        look_up(fs, "triton/A/kernel.ptx", WRITER)
        assert (numbers(fs, "triton").hits, numbers(fs, "triton").misses) == (0, 3)
        for _ in range(3):
            look_up(fs, "triton/A/kernel.ptx", READER)
            look_up(fs, "triton/B/kernel.ptx", READER)
        look_up(fs, "triton/B/kernel.ptx", READER + 1)
        counted = numbers(fs, "triton")
        assert (counted.hits, counted.misses, counted.hit_rate) == (3, 3, 0.5)
        found = entries(fs)
        assert {path: info.hits for path, info in found.items()} == {"triton/A": 1, "triton/B": 2, "triton/C": 0}
        assert counted.bytes_served == sum(info.hits * info.plain_bytes for info in found.values()) > 0


def test_an_entry_that_is_being_written_is_no_hit(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        ino, _ = fs.create(ROOT, folder(fs, "triton/KEY"), b"kernel.ptx", 0o644)
        fs.write(ino, 0, b"half")
        look_up(fs, "triton/KEY/kernel.ptx", READER)
        fs.forget(ino, 1)
        assert numbers(fs, "triton").hits == 0


def test_statistics_and_order_outlive_the_process(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        for key in ("A", "B", "C"):
            kernel(fs, key)
            fs.settle()
        look_up(fs, "triton/A/kernel.ptx", READER)
    with opened(tmp_path / "store") as fs:
        assert (numbers(fs, "triton").hits, numbers(fs, "triton").misses) == (1, 3)
        assert [info.path for info in Administration(fs).ls(sort="used")] == ["triton/A", "triton/C", "triton/B"]


def test_names_in_ls_are_those_of_kernels(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        write(
            fs,
            "triton/KEY/add_kernel.json",
            b'{"name": "add_kernel", "num_warps": 4, "num_stages": 3, "target": '
            b'{"backend": "cuda", "arch": 90, "warp_size": 32}}',
        )
        write(fs, "triton/KEY/__grp__add_kernel.json", b'{"child_paths": {}}')
        fs.settle()
        [info] = Administration(fs).ls("triton")
        assert "add_kernel" in info.name
        assert "90" in info.name


def test_the_namespaces_of_every_mount_are_protected(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        with pytest.raises(FsError, match="ENOTEMPTY"):
            fs.rmdir(ROOT, 1, b"triton")
        assert exists(fs, "triton")


PLACES = [
    "triton/A",
    "triton/B",
    "inductor/ab",
    "inductor/fxgraph/ab/key",
    "deep_gemm/tmp/u",
    "deep_gemm/cache/k",
    "own/x",
]
NAMES = ["a.py", "a.so", "b.ptx", ".1.2.tmp", "tmp.pid_1_x", "x.lock"]
paths = st.builds(lambda place, name: f"{place}/{name}", st.sampled_from(PLACES), st.sampled_from(NAMES))
steps = st.one_of(
    st.tuples(st.just("write"), paths, st.binary(max_size=50)),
    st.tuples(st.just("rewrite"), paths, st.binary(max_size=50)),
    st.tuples(st.just("rename"), paths, paths),
    st.tuples(st.just("move"), st.sampled_from(PLACES), st.sampled_from(PLACES)),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("unlink"), paths, st.none()),
    st.tuples(st.just("seal"), st.none(), st.none()),
    st.tuples(st.just("evict"), st.sampled_from(PLACES), st.none()),
    st.tuples(st.just("use"), paths, st.none()),
)


def take(fs: Filesystem, step: tuple[str, str, object]) -> None:
    verb, path, other = step
    try:
        if verb == "write":
            assert isinstance(other, bytes)
            write(fs, path, other)
        elif verb == "rewrite":
            assert isinstance(other, bytes)
            fs.write(find(fs, path), 0, other)
        elif verb in ("rename", "move"):
            rename(fs, path, str(other))
        elif verb == "link":
            above, _, name = str(other).rpartition("/")
            ino = find(fs, path)
            fs.link(ROOT, ino, folder(fs, above), name.encode())
            fs.forget(ino, 1)
        elif verb == "unlink":
            above, _, name = path.rpartition("/")
            fs.unlink(ROOT, find(fs, above), name.encode())
        elif verb == "seal":
            fs.settle()
        elif verb == "evict":
            for info in Administration(fs).ls(names=False):
                if info.path.startswith(path):
                    fs.evictor.evict(info.entry)
        elif verb == "use":
            look_up(fs, path, READER)
    except (FsError, FileNotFoundError):
        pass  # what is refused must leave no trace: `opened` checks the store at its end


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(steps, max_size=40))
def test_accounts_are_exact_after_anything(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[str, str, object]]
) -> None:
    with opened(tmp_path_factory.mktemp("any") / "store") as fs:
        for step in story:
            take(fs, step)
        fs.settle()
        held = sum(info.files for info in entries(fs).values())
        assert held == Administration(fs).stats().total.files
        for _ in range(len(PLACES)):  # a file with names in several entries moves from one to the next
            for info in entries(fs).values():
                fs.evictor.evict(info.entry, force=True)  # also what is not finished
        assert entries(fs) == {}


def test_a_name_that_was_not_changed_after_all_is_still_temporary_or_not(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        ino = write(fs, "inductor/ab/.4712.1.tmp", b"a module")
        with nothing_acknowledged(fs):
            rename(fs, "inductor/ab/.4712.1.tmp", "inductor/ab/cab.py")
        assert fs.temporaries.inodes == {ino}
        with nothing_acknowledged(fs):
            fs.create(ROOT, find(fs, "inductor/ab"), b".4713.1.tmp", 0o644)
        assert fs.temporaries.inodes == {ino}
        fs.unlink(ROOT, find(fs, "inductor/ab"), b".4712.1.tmp")


@pytest.mark.parametrize("is_flushed", [False, True], ids=["at_once", "after_a_flush"])
def test_coming_to_an_entry_and_listing_it_is_no_use_of_it(tmp_path: Path, is_flushed: bool) -> None:
    with opened(tmp_path / "store") as fs:
        write(fs, "triton/KEY/kernel.ptx", b"content")
        fs.settle()
        look_up(fs, "triton/KEY", READER)
        if is_flushed:
            fs.uses.flush()
        fs.note_listing(user(0, READER), find(fs, "triton/KEY"))
        fs.uses.flush()
        [found] = entries(fs).values()
        assert found.hits == is_flushed, "what was written down is not taken back"
        fs.note_use(user(0, READER), find(fs, "triton/KEY/kernel.ptx"))
        fs.uses.flush()
        [found] = entries(fs).values()
        assert found.hits == 1
