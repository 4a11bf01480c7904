"""--policy publish: everyone adds, the first complete writer wins, and nobody changes what others published."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.policies import publish as policy
from kcachefs.core.sharing import Sharing
from kcachefs.core.tree import RENAME_EXCHANGE
from kcachefs.errors import FsError
from kcachefs.store import Options, Store, fsck
from kcachefs.store.catalog import Transaction
from kcachefs.store.records import Inode
from tests.core.policies.mounts import ALICE, BOB, as_user, each_engine, mounted, needs_root, publish, triton_put
from tests.core.trees import ROOT, exists, find, folder, user
from tests.engines.mounting import Mount
from tests.engines.refusals import refused
from tests.engines.syscalls import renameat2

MODULE = b"print(1)\n"
CAROL = 42062
OF_ALICE, OF_BOB, OF_CAROL = user(ALICE.uid), user(BOB.uid), user(CAROL)


@pytest.fixture
def fs(tmp_path: Path) -> Filesystem:
    store = Store(tmp_path / "store", Options(background=False))
    return Filesystem(store, FsOptions(sharing=Sharing(policy="publish")))


# --- on a mount -------------------------------------------------------------------------------------------------------


@needs_root
@each_engine
def test_what_one_has_published_another_cannot_change(engine: str) -> None:
    with mounted(engine, "--policy", "publish") as mount:
        module = mount.mountpoint / "inductor" / "ab" / "cabc.py"
        as_user(ALICE, lambda: publish(module, MODULE), umask=0)

        def meddle() -> None:
            attempts: list[Callable[[], object]] = [
                lambda: publish(module, b"evil"),
                lambda: module.write_bytes(b"evil"),
                lambda: module.unlink(),
                lambda: module.rename(module.parent / "x.py"),
                lambda: os.truncate(module, 0),
                lambda: module.chmod(0o777),
                lambda: os.utime(module, (1, 1)),
                lambda: os.link(module, module.parent / "y.py"),
                lambda: module.parent.rename(module.parent.parent / "zz"),
                lambda: module.parent.chmod(0o700),
            ]
            for number, attempt in enumerate(attempts):
                with pytest.raises(PermissionError) as caught:
                    attempt()
                assert caught.value.errno in (errno.EPERM, errno.EACCES), number
            assert module.read_bytes() == MODULE

        as_user(BOB, meddle)
        as_user(ALICE, lambda: publish(module, b"better"))
        assert as_user(BOB, module.read_bytes) == b"better", "its owner may replace it"
        module.unlink()  # and so may root
        as_user(BOB, lambda: publish(module, b"bob's"))
        assert module.stat().st_uid == BOB.uid
        assert "was refused" in _log(mount)


@needs_root
@each_engine
def test_the_same_bytes_again_succeed_and_change_nothing(engine: str) -> None:
    with mounted(engine, "--policy", "publish") as mount:
        module = mount.mountpoint / "inductor" / "ab" / "cabc.py"
        as_user(ALICE, lambda: publish(module, MODULE), umask=0o077)
        before = module.stat()

        def again() -> tuple[bytes, list[str]]:
            for _ in range(3):
                publish(module, MODULE)
            return module.read_bytes(), os.listdir(module.parent)

        assert as_user(BOB, again) == (MODULE, ["cabc.py"])
        after = module.stat()
        assert (after.st_ino, after.st_uid, after.st_mtime_ns) == (before.st_ino, ALICE.uid, before.st_mtime_ns)


@needs_root
@each_engine
def test_two_triton_writers_of_one_entry_both_go_on(engine: str) -> None:
    with mounted(engine, "--policy", "publish") as mount:
        entry = mount.mountpoint / "triton" / "KEY"

        def put(*names: str) -> Callable[[], None]:
            def run() -> None:
                for name in names:
                    triton_put(entry, name, name.encode() * 100)

            return run

        as_user(ALICE, put("kernel.ttir", "kernel.ptx"))
        as_user(BOB, put("kernel.ttir", "kernel.ptx", "kernel.cubin", "__grp__kernel.json"))
        as_user(ALICE, put("kernel.cubin", "__grp__kernel.json"))
        owners = {name: (entry / name).stat().st_uid for name in os.listdir(entry)}
        assert owners == {
            "kernel.ttir": ALICE.uid,
            "kernel.ptx": ALICE.uid,
            "kernel.cubin": BOB.uid,
            "__grp__kernel.json": BOB.uid,
        }


@needs_root
@each_engine
def test_a_library_written_in_place_is_its_writers_alone(engine: str) -> None:
    with mounted(engine, "--policy", "publish") as mount:
        library = mount.mountpoint / "inductor" / "ab" / "cabc.so"

        def link() -> None:
            library.parent.mkdir()
            library.write_bytes(b"\x7fELF")
            library.chmod(0o777)

        as_user(ALICE, link, umask=0)
        assert library.stat().st_mode & 0o777 == 0o755

        def meddle() -> None:
            with refused(errno.EACCES):
                os.open(library, os.O_RDWR)
            with refused(errno.EPERM):
                library.unlink()

        as_user(BOB, meddle)


@needs_root
@each_engine
def test_locks_are_everybodys_and_temporary_files_are_not(engine: str) -> None:
    with mounted(engine, "--policy", "publish") as mount:
        lock = mount.mountpoint / "inductor" / "locks" / "x.lock"
        temporary = mount.mountpoint / "inductor" / "ab" / ".12.34.tmp"
        folder = mount.mountpoint / "triton" / "KEY" / "tmp.pid_1_x"

        def prepare() -> None:
            lock.parent.mkdir()
            lock.touch(0o600)
            temporary.parent.mkdir()
            temporary.write_bytes(b"half")
            folder.mkdir(parents=True)

        as_user(ALICE, prepare, umask=0)

        def use() -> None:
            os.close(os.open(lock, os.O_RDWR | os.O_TRUNC))
            with refused(errno.EACCES):
                os.open(temporary, os.O_WRONLY)
            with refused(errno.EPERM):
                temporary.unlink()
            with refused(errno.EACCES):
                (folder / "planted").touch()

        as_user(BOB, use)


@needs_root
@each_engine
def test_a_lock_never_becomes_what_others_load(engine: str) -> None:
    """Who has a lock open or mapped could go on writing under its new name, which everybody trusts."""
    with mounted(engine, "--policy", "publish") as mount:
        folder = mount.mountpoint / "inductor" / "ab"
        lock, entry = folder / "x.lock", mount.mountpoint / "triton" / "KEY"

        def become() -> None:
            folder.mkdir()
            entry.mkdir()
            lock.write_bytes(b"a" * 4096)
            (folder / "other.so").write_bytes(MODULE)
            for give in (os.rename, os.link):
                for target in (folder / "final.so", folder / ".1.2.tmp", entry / "k.so", entry / "k.lock"):
                    with refused(errno.EPERM):
                        give(lock, target)
            for one, other in ((lock, folder / "other.so"), (folder / "other.so", lock)):
                with refused(errno.EPERM):
                    renameat2(one, other, RENAME_EXCHANGE)
            with refused(errno.EXDEV):  # with which mv copies it
                folder.rename(folder.with_name("cd"))
            os.link(lock, folder / "y.lock")
            lock.rename(folder / "z.lock")
            (folder / ".3.4.tmp").write_bytes(MODULE)
            (folder / ".3.4.tmp").rename(folder / "third.so")

        as_user(ALICE, become)
        assert sorted(os.listdir(folder)) == ["other.so", "third.so", "y.lock", "z.lock"]
        assert os.listdir(entry) == []


# --- in the core ------------------------------------------------------------------------------------------------------


def test_a_complete_entry_is_closed_to_additions(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("triton/KEY", "inductor/fxgraph/ab/fKEY"):
        entry, _ = fs.make(OF_ALICE, folder(fs, path.rpartition("/")[0]), path.rpartition("/")[2].encode(), 0o040755)
        _put(fs, entry, b"first", b"alice", ALICE.uid)
        _put(fs, entry, b"second", b"bob", BOB.uid)
        monkeypatch.setattr(policy, "OPEN_SECONDS", 0.0)
        with pytest.raises(FsError) as caught:
            _put(fs, entry, b"third", b"bob", BOB.uid)
        assert caught.value.errno == errno.EPERM
        with pytest.raises(FsError):
            fs.create(OF_BOB, entry, b"planted", 0o644)
        with pytest.raises(FsError):
            fs.make(OF_BOB, entry, b"folder", 0o040755)
        _put(fs, entry, b"third", b"alice", ALICE.uid)
        monkeypatch.setattr(policy, "OPEN_SECONDS", 60.0)
    _closed(fs)


def test_a_group_of_files_is_closed_to_additions_too(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    place = folder(fs, "inductor/ab")
    _put(fs, place, b"cabc.py", b"alice", ALICE.uid)
    monkeypatch.setattr(policy, "OPEN_SECONDS", 0.0)
    with pytest.raises(FsError):
        fs.create(OF_BOB, place, b"cabc.so", 0o644)
    fs.create(OF_BOB, place, b"cother.py", 0o644)
    _closed(fs)


@pytest.mark.parametrize("flags", [0, RENAME_EXCHANGE], ids=["renamed", "exchanged"])
def test_a_folder_of_ones_own_in_a_closed_entry_is_not_filled_by_a_rename(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    triton = find(fs, "triton")
    entry, _ = fs.make(OF_ALICE, triton, b"KEY", 0o040755)
    _put(fs, entry, b"kernel.cubin", b"alice", ALICE.uid)
    fs.make(OF_BOB, entry, b"__pycache__", 0o040755)
    other, _ = fs.make(OF_BOB, triton, b"OTHER", 0o040755)
    full, _ = fs.make(OF_BOB, other, b"full", 0o040755)
    _put(fs, full, b"evil.pyc", b"evil", BOB.uid)
    monkeypatch.setattr(policy, "OPEN_SECONDS", 0.0)
    for ends in ((other, b"full", entry, b"__pycache__"), (entry, b"__pycache__", other, b"full"))[: 1 + bool(flags)]:
        with pytest.raises(FsError) as caught:
            fs.rename(OF_BOB, *ends, flags)
        assert caught.value.errno == errno.EPERM
    assert not exists(fs, "triton/KEY/__pycache__/evil.pyc")
    fs.rename(OF_BOB, entry, b"__pycache__", other, b"away")
    _closed(fs)


def test_a_file_that_a_framework_reads_is_its_makers_however_it_got_its_name(fs: Filesystem) -> None:
    """It is in no entry, as a lock is, and a lock is everybody's."""
    place, temporary = folder(fs, "ccache"), folder(fs, "ccache/tmp")
    ino, _ = fs.create(OF_ALICE, temporary, b"x", 0o644)
    fs.write(ino, 0, b"max_size = 5G")
    fs.link(OF_ALICE, ino, place, b"ccache.conf")
    fs.unlink(OF_ALICE, temporary, b"x")
    assert fs.attributes(ino).mode & 0o022 == 0
    with pytest.raises(FsError) as caught:
        fs.authorize_write(OF_BOB, ino)
    assert caught.value.errno == errno.EPERM
    key = folder(fs, "triton/KEY")
    linked, _ = fs.create(OF_ALICE, key, b"stats", 0o644)
    fs.link(OF_ALICE, linked, place, b"stats")
    fs.sealer.seal(linked)
    fs.unlink(OF_ALICE, key, b"stats")
    assert fs.nodes.get(linked).entry == 0
    with pytest.raises(FsError):
        fs.authorize_write(OF_BOB, find(fs, "ccache/stats"))
    _closed(fs)


def test_a_folder_renamed_into_place_is_published_whole(fs: Filesystem) -> None:
    triton = find(fs, "triton")
    temporary, _ = fs.make(OF_ALICE, triton, b"tmp.bundle", 0o040755)
    ino, _ = fs.create(OF_ALICE, temporary, b"kernel.cubin", 0o644)
    fs.write(ino, 0, b"cubin")
    fs.rename(OF_ALICE, triton, b"tmp.bundle", triton, b"KEY")
    with pytest.raises(FsError) as caught:
        _put(fs, find(fs, "triton/KEY"), b"kernel.cubin", b"other", BOB.uid)
    assert caught.value.errno == errno.EPERM
    with pytest.raises(FsError):
        fs.rename(OF_BOB, triton, b"KEY", triton, b"OTHER")
    _closed(fs)


def test_an_empty_folder_for_entries_is_in_nobodys_way(fs: Filesystem) -> None:
    version = folder(fs, "warp/1.11.0")
    fs.make(OF_ALICE, version, b"lto", 0o040755)  # evicting what was in it leaves it
    fs.make(OF_ALICE, version, b"wp_module", 0o040755)
    for number in range(2):
        temporary, _ = fs.make(OF_BOB, version, b"lto_p1_t%d" % number, 0o040755)
        _put(fs, temporary, b"1f2e.lto", b"bob", BOB.uid)
    fs.rename(OF_BOB, version, b"lto_p1_t0", version, b"lto")
    assert fs.nodes.get(find(fs, "warp/1.11.0/lto/1f2e.lto")).uid == BOB.uid
    with pytest.raises(FsError) as caught:
        fs.rename(OF_BOB, version, b"lto_p1_t1", version, b"wp_module")
    assert caught.value.errno == errno.EPERM, "an entry is its maker's"
    root = fs.lookup(ROOT, 1, b"warp")
    with pytest.raises(FsError):
        fs.rename(OF_BOB, version, b"lto_p1_t1", 1, b"nvrtc")
    assert fs.lookup(ROOT, 1, b"warp") == root
    _closed(fs)


def test_a_lock_in_a_folder_that_is_renamed_into_place_is_everybodys(fs: Filesystem) -> None:
    place = folder(fs, "warp/1.11.0", OF_ALICE)
    temporary, _ = fs.make(OF_ALICE, place, b"lto_p1_t2", 0o040755)
    inodes = [fs.create(OF_ALICE, temporary, name, 0o644)[0] for name in (b"x.lock", b"y.lock", b"1f.lto")]
    lock, linked, code = inodes
    fs.link(OF_ALICE, linked, place, b"loaded")
    fs.rename(OF_ALICE, place, b"lto_p1_t2", place, b"lto")
    fs.authorize_write(OF_BOB, lock)
    assert fs.attributes(lock).mode & 0o666 == 0o666
    for ino in (linked, code):  # a lock that has another name as well may be loaded by that
        assert fs.attributes(ino).mode & 0o022 == 0
        with pytest.raises(FsError) as caught:
            fs.authorize_write(OF_BOB, ino)
        assert caught.value.errno == errno.EPERM
    fs.forget(linked, 1)
    for ino in (temporary, *inodes):
        fs.forget(ino, 1)
    _closed(fs)


@pytest.mark.parametrize("size", [0, 5, 70_000, 3 << 20])
def test_equal_bytes_are_told_from_others_however_they_are_kept(fs: Filesystem, size: int) -> None:
    data = os.urandom(size)
    triton = find(fs, "triton")
    _put(fs, triton, b"x", data, ALICE.uid)
    for sealed in (False, True):
        if sealed:
            fs.settle()
        _put(fs, triton, b"x", data, BOB.uid)
        assert fs.nodes.get(find(fs, "triton/x")).uid == ALICE.uid
        if size:
            with pytest.raises(FsError):
                _put(fs, triton, b"x", data[:-1] + bytes([data[-1] ^ 1]), BOB.uid)
    _closed(fs)


def test_what_is_written_in_place_is_its_writers_from_the_first_byte_on(fs: Filesystem) -> None:
    triton = find(fs, "triton")
    half, _ = fs.create(OF_ALICE, triton, b"x", 0o644)
    fs.write(half, 0, b"ha")
    with pytest.raises(FsError) as caught:
        _put(fs, triton, b"x", b"whole", BOB.uid)
    assert caught.value.errno == errno.EPERM
    assert fs.nodes.get(find(fs, "triton/x")).uid == ALICE.uid
    empty, _ = fs.create(OF_ALICE, triton, b"y", 0o644)
    _put(fs, triton, b"y", b"whole", BOB.uid)
    assert fs.nodes.get(find(fs, "triton/y")).uid == BOB.uid, "an empty file is in nobody's way"
    fs.forget(half, 1)
    fs.forget(empty, 1)
    _closed(fs)


@pytest.mark.parametrize("flags", [0, RENAME_EXCHANGE], ids=["moved", "exchanged"])
def test_a_folder_is_moved_only_while_all_in_it_is_its_owners(fs: Filesystem, flags: int) -> None:
    inductor = find(fs, "inductor")
    graphs, _ = fs.make(OF_BOB, inductor, b"fxgraph", 0o040755)
    shelf, _ = fs.make(OF_BOB, graphs, b"ab", 0o040755)
    fs.rename(OF_BOB, inductor, b"fxgraph", inductor, b"elsewhere")
    fs.rename(OF_BOB, inductor, b"elsewhere", inductor, b"fxgraph")
    entry, _ = fs.make(OF_ALICE, shelf, b"fKEY", 0o040755)
    _put(fs, entry, b"pickle", b"alice", ALICE.uid)
    fs.make(OF_BOB, inductor, b"his", 0o040755)
    for one, two in ((b"fxgraph", b"his"), (b"his", b"fxgraph"))[: 2 if flags else 1]:
        with pytest.raises(FsError) as caught:
            fs.rename(OF_BOB, inductor, one, inductor, two if flags else b"away", flags)
        assert caught.value.errno == errno.EPERM
    assert fs.read(find(fs, "inductor/fxgraph/ab/fKEY/pickle"), 0, 10) == b"alice"
    fs.rename(ROOT, inductor, b"fxgraph", inductor, b"away")
    for ino in (graphs, shelf, entry):
        fs.forget(ino, 1)
    _closed(fs)


def test_an_entry_is_of_the_user_who_put_the_first_file_there(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, _ = fs.make(OF_ALICE, find(fs, "triton"), b"KEY", 0o040755)
    _put(fs, entry, b"kernel.cubin", b"bob", BOB.uid)
    _put(fs, entry, b"first", b"carol", CAROL)
    monkeypatch.setattr(policy, "OPEN_SECONDS", 0.0)
    for uid in (CAROL, ALICE.uid):
        with pytest.raises(FsError) as caught:
            _put(fs, entry, b"second", b"theirs", uid)
        assert caught.value.errno == errno.EPERM
    _put(fs, entry, b"second", b"bob", BOB.uid)
    _closed(fs)


def test_times_that_users_set_keep_no_entry_open(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, _ = fs.make(OF_BOB, find(fs, "triton"), b"KEY", 0o040755)  # whoever makes the folder first
    _put(fs, entry, b"kernel.cubin", b"alice", ALICE.uid)
    ino = find(fs, "triton/KEY/kernel.cubin")
    fs.set_attributes(OF_ALICE, ino, mtime=time.time_ns() + int(1e18), atime=time.time_ns() + int(1e18))
    now = time.time_ns
    monkeypatch.setattr(
        "kcachefs.core.policies.publish.time.time_ns", lambda: now() + int((policy.OPEN_SECONDS + 1) * 1e9)
    )
    with pytest.raises(FsError) as caught:
        _put(fs, entry, b"planted", b"bob", BOB.uid)
    assert caught.value.errno == errno.EPERM
    _put(fs, entry, b"more", b"alice", ALICE.uid)
    monkeypatch.undo()
    _closed(fs)


def test_an_entry_that_was_made_while_the_clock_was_ahead_is_closed(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, _ = fs.make(OF_ALICE, find(fs, "triton"), b"KEY", 0o040755)
    _put(fs, entry, b"kernel.cubin", b"alice", ALICE.uid)
    fs.settle()
    now = time.time_ns
    monkeypatch.setattr("kcachefs.core.policies.publish.time.time_ns", lambda: now() - int(86400 * 1e9))
    with pytest.raises(FsError) as caught:
        _put(fs, entry, b"planted", b"bob", BOB.uid)
    assert caught.value.errno == errno.EPERM
    monkeypatch.undo()
    _closed(fs)


def test_two_who_take_turns_keep_no_entry_open(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, _ = fs.make(OF_ALICE, find(fs, "triton"), b"KEY", 0o040755)
    _put(fs, entry, b"kernel.cubin", b"alice", ALICE.uid)
    fs.settle()
    now, later = time.time_ns, 0.0
    monkeypatch.setattr("kcachefs.core.policies.publish.time.time_ns", lambda: now() + int(later * 1e9))
    refusals = 0
    for turn in range(40):
        later += policy.OPEN_SECONDS / 2
        try:
            _put(fs, entry, b"%d" % turn, b"planted", (BOB.uid, CAROL)[turn % 2])
        except FsError:
            refusals += 1
    assert later > policy.OPEN_AT_MOST_SECONDS
    assert 40 - refusals <= policy.OPEN_AT_MOST_SECONDS / (policy.OPEN_SECONDS / 2) + 1
    monkeypatch.undo()
    _closed(fs)


def test_a_file_is_published_in_the_transaction_that_renames_it(fs: Filesystem) -> None:
    triton = find(fs, "triton")
    temporary, _ = fs.make(OF_ALICE, triton, b"tmp.bundle", 0o040755)
    ino, _ = fs.create(OF_ALICE, temporary, b"kernel.cubin", 0o644)
    real = fs.nodes.change
    begun: list[None] = []

    def change() -> Transaction:
        begun.append(None)
        return real()

    fs.nodes.change = change  # type: ignore[method-assign]
    fs.rename(OF_ALICE, triton, b"tmp.bundle", triton, b"KEY")
    assert len(begun) == 1
    assert fs.nodes.get(ino).flags & Inode.PUBLISHED
    _closed(fs)


def test_files_too_large_to_compare_are_told_apart_by_their_digests(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "COMPARED_MAX", 1000)
    triton, data = find(fs, "triton"), os.urandom(2000)
    _put(fs, triton, b"x", data, ALICE.uid)
    with pytest.raises(FsError) as caught:
        _put(fs, triton, b"x", data, BOB.uid)
    assert caught.value.errno == errno.EPERM
    ino, _ = fs.create(OF_BOB, triton, b".1.1.tmp", 0o644)
    fs.write(ino, 0, data)
    fs.settle()
    fs.rename(OF_BOB, triton, b".1.1.tmp", triton, b"x")
    assert fs.nodes.get(find(fs, "triton/x")).uid == ALICE.uid
    _closed(fs)


def _put(fs: Filesystem, parent: int, name: bytes, data: bytes, uid: int) -> None:
    temporary = b".%d.1.tmp" % uid
    ino, _ = fs.create(user(uid), parent, temporary, 0o644)
    fs.write(ino, 0, data)
    try:
        fs.rename(user(uid), parent, temporary, parent, name)
    except FsError:
        fs.unlink(user(uid), parent, temporary)
        raise
    finally:
        fs.forget(ino, 1)


def _closed(fs: Filesystem) -> None:
    fs.settle()
    path = fs.store.path
    fs.store.close()
    assert fsck.run(path).findings == []


def _log(mount: Mount) -> str:
    logs = Path(os.environ["KCACHEFS_LOG_DIR"])
    return "".join(path.read_text() for path in logs.glob(f"{mount.mountpoint.name}-*.log"))


def test_what_its_owner_took_away_or_renamed_is_not_everybodys(fs: Filesystem) -> None:
    """A file that is still open, and one that is in no entry for another reason than being a lock."""
    parent = folder(fs, "inductor/ab")
    removed, _ = fs.create(OF_ALICE, parent, b"cabc.py", 0o644)
    fs.write(removed, 0, MODULE)
    fs.unlink(OF_ALICE, parent, b"cabc.py")
    renamed, _ = fs.create(OF_ALICE, parent, b"cdef.py", 0o644)
    fs.write(renamed, 0, MODULE)
    fs.rename(OF_ALICE, parent, b"cdef.py", parent, b".1.2.tmp")
    lock, _ = fs.create(OF_ALICE, parent, b"x.lock", 0o644)
    assert renamed in fs.temporaries.inodes
    assert fs.attributes(lock).mode & 0o666 == 0o666
    for ino in (removed, renamed):
        assert fs.attributes(ino).mode & 0o022 == 0
        with pytest.raises(FsError) as caught:
            fs.authorize_write(OF_BOB, ino)
        assert caught.value.errno == errno.EPERM
    fs.store.close()


def test_what_lost_its_entry_is_not_everybodys(fs: Filesystem) -> None:
    ino, _ = fs.create(OF_ALICE, folder(fs, "triton/KEY"), b"kernel.cubin", 0o644)
    fs.write(ino, 0, MODULE)
    fs.nodes.get(ino).entry = 1 << 40
    assert fs.sealer.seal(ino)
    assert fs.nodes.get(ino).entry == 0
    assert fs.attributes(ino).mode & 0o022 == 0
    with pytest.raises(FsError):
        fs.authorize_write(OF_BOB, ino)
    fs.store.close()
