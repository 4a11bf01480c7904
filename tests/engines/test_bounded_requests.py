"""No request takes the engine's thread for long: the others wait for it, whoever sent it."""

from __future__ import annotations

import errno
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kcachefs.core.files import QUICK_TO_FREE
from kcachefs.core.lifetimes import TOGETHER_MAX
from kcachefs.engines import direct, name_handlers
from kcachefs.engines import protocol as p
from kcachefs.engines.protocol import Op
from kcachefs.errors import NoSpace
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.journal import Changes
from tests.engines.test_protocol import Line

SIZE_ONLY = p.Fattr.SIZE


@pytest.fixture
def line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Line]:
    with closing(Line(tmp_path / "store", caplog)) as made:
        yield made


def resize(line: Line, node: int, size: int) -> tuple[int, bytes]:
    fields = [0] * len(p.SETATTR_IN.unpack(bytes(p.SETATTR_IN.size)))
    fields[0], fields[3] = SIZE_ONLY, size
    return line.ask(Op.SETATTR, node, p.SETATTR_IN.pack(*fields))


class Threads:
    """Which threads called something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.names: list[str] = []
        real = getattr(owner, name)

        def call(*arguments: object, **named: object) -> object:
            self.names.append(threading.current_thread().name)
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    def were_of_the_pool(self) -> bool:
        return bool(self.names) and all(name.startswith("kcachefs-slow") for name in self.names)


def test_a_listing_comes_in_pieces(line: Line) -> None:
    for number in range(1000):
        assert line.ask(Op.CREATE, line.folder, p.CREATE_IN.pack(1, 0o100644, 0, 0) + b"f%d\0" % number)[0] == 0
    for opcode, most in ((Op.READDIR, name_handlers._NAMES_MAX), (Op.READDIRPLUS, name_handlers._ENTRIES_MAX)):
        cookie, names = 0, set[bytes]()
        while True:
            number, said = line.ask(opcode, line.folder, p.READ_IN.pack(0, cookie, 1 << 20) + bytes(20))
            assert number == 0
            found = list(rows(said, plus=opcode == Op.READDIRPLUS))
            if not found:
                break
            assert len(found) <= most
            cookie = found[-1][0]
            names.update(name for _, name in found)
        assert len(names) == 1002


def rows(said: bytes, *, plus: bool) -> Iterator[tuple[int, bytes]]:
    """The cookies and names in a reply."""
    position = 0
    while position < len(said):
        position += p.ENTRY.size if plus else 0
        _, cookie, length, _ = struct.unpack_from("<QQII", said, position)
        yield cookie, said[position + 24 : position + 24 + length]
        position += 24 + (length + 7) // 8 * 8


def counted_commits(line: Line, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many changes each commit makes from now on."""
    commits, commit = list[int](), line.store.catalog.commit

    def count(changes: Changes) -> None:
        commits.append(len(changes))
        commit(changes)

    monkeypatch.setattr(line.store.catalog, "commit", count)
    return commits


def test_a_great_many_unlinked_files_that_are_forgotten_at_once_go_bit_by_bit(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphans = [line.write_file(b"f%d" % number, b"content") for number in range(200)]
    for number in range(200):
        assert line.ask(Op.UNLINK, line.folder, b"f%d\0" % number) == (0, b"")
    commits = counted_commits(line, monkeypatch)
    all_of_them = b"".join(p.FORGET_ONE.pack(ino, 1) for ino in orphans)
    line.feed(Op.BATCH_FORGET, 0, p.BATCH_FORGET_IN.pack(len(orphans), 0) + all_of_them)
    assert len(line.fs.nodes.orphans) == len(orphans) - name_handlers._REMOVED_MAX
    assert len(commits) == name_handlers._REMOVED_MAX // TOGETHER_MAX
    line.fs.clear_orphans()
    assert not line.fs.nodes.orphans


def test_unlinked_files_that_are_forgotten_one_by_one_go_together(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [line.write_file(b"f%d" % number, b"content %d" % number) for number in range(TOGETHER_MAX + 1)]
    for number in range(len(files)):
        assert line.ask(Op.UNLINK, line.folder, b"f%d\0" % number) == (0, b"")
    commits = counted_commits(line, monkeypatch)
    for ino in files:
        assert ino in line.fs.nodes.orphans
        line.feed(Op.FORGET, ino, p.FORGET_IN.pack(1))
    assert len(commits) == 1
    assert line.fs.nodes.orphans == {files[-1]}
    line.engine.unused.remove()
    assert len(commits) == 2
    assert not line.fs.nodes.orphans


def test_a_forgotten_file_that_got_a_reference_since_stays(line: Line) -> None:
    ino = line.write_file(b"file", b"content")
    assert line.ask(Op.UNLINK, line.folder, b"file\0") == (0, b"")
    line.feed(Op.FORGET, ino, p.FORGET_IN.pack(1))
    line.fs.hold(ino)
    line.engine.unused.remove()
    assert line.read_file(ino) == b"content"
    line.feed(Op.FORGET, ino, p.FORGET_IN.pack(1))
    line.engine.unused.remove()
    assert not line.fs.nodes.exists(ino)


def test_cutting_a_large_file_short_is_left_to_another_thread(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    large = line.write_file(b"large", bytes(1) * (QUICK_TO_FREE + (1 << 20)))
    small = line.write_file(b"small", b"x" * (2 << 20))
    threads = Threads(monkeypatch, line.fs.files, "truncate")
    assert resize(line, large, 10)[0] == 0
    assert threads.were_of_the_pool()
    assert line.read_file(large) == bytes(10)
    threads.names.clear()
    assert resize(line, small, 0)[0] == 0
    assert not threads.were_of_the_pool()


def test_a_rename_that_has_to_sync_something_is_left_to_another_thread(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = line.write_file(b"synced", b"first")
    assert line.ask(Op.FSYNC, synced, bytes(16)) == (0, b"")
    threads = Threads(monkeypatch, line.fs.tree, "rename")
    for number, name in enumerate((b"other", b"synced")):
        line.write_file(b"tmp.%d" % number, b"second")
        old = b"tmp.%d\0%s\0" % (number, name)
        assert line.ask(Op.RENAME, line.folder, p.RENAME_IN.pack(line.folder) + old) == (0, b"")
        assert threads.were_of_the_pool() == (name == b"synced")
        threads.names.clear()
    found = line.node(line.folder, b"synced")
    assert line.read_file(found) == b"second"


def test_what_one_user_s_writes_hold_while_they_wait_for_room_is_bounded(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_HELD_MAX", 100_000)
    node = line.write_file(b"file", b"content")
    body = p.WRITE_IN.pack(0, 0, 40_000) + bytes(20) + bytes(40_000)
    line.fs.room.has_room.clear()
    waiting = {line.feed(Op.WRITE, node, body) for _ in range(2)}
    assert line.ask(Op.WRITE, node, body) == (errno.ENOSPC, b"")
    line.caller = (42042, 42042, 0)
    waiting.add(line.feed(Op.WRITE, node, body))
    line.fs.room.has_room.set()
    line.engine._waiting.shutdown(wait=True)
    assert {(unique, number) for number, unique, _ in line.replies()} == {(unique, 0) for unique in waiting}


def test_a_write_that_finds_the_disk_full_waits_for_room_in_another_thread(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, asked = line.write_file(b"file", b"content"), []
    write = line.fs.files.write

    def write_when_there_is_room(ino: int, offset: int, data: bytes | memoryview) -> int:
        asked.append(threading.current_thread().name)
        if len(asked) < 3:
            raise NoSpace("the disk is full")
        return write(ino, offset, data)

    monkeypatch.setattr(line.fs.files, "write", write_when_there_is_room)
    assert line.fs.room.has_room.is_set()
    body = p.WRITE_IN.pack(0, 0, 3) + bytes(20) + b"new"
    assert line.ask(Op.WRITE, node, body) == (0, p.WRITE_OUT.pack(3, 0))
    assert asked[0] == threading.current_thread().name
    assert all("kcachefs-wait" in name for name in asked[1:])
    assert line.read_file(node) == b"newtent"


def test_the_kernel_is_told_to_write_in_small_pieces(line: Line) -> None:
    number, said = line.ask(Op.INIT, ROOT_INO, p.INIT_IN.pack(p.MAJOR, p.MINOR, 1 << 17, 0))
    assert number == 0
    assert p.INIT_OUT.unpack(said)[6] == p.MAX_WRITE
