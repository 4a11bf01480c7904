"""A worker that takes over repeats the replies of its predecessor without repeating the work.

Requests are fed to the engine as in `test_protocol`, with numbers as the kernel gives them.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.caller import NOBODY
from kcachefs.engines import protocol as p
from kcachefs.engines import request_buffer
from kcachefs.engines.direct import DirectEngine
from kcachefs.engines.protocol import Op
from kcachefs.engines.request_buffer import (
    DEATHS_MAX,
    DEFERRED_DEATHS_MAX,
    PAGE,
    REQUEST_MAX,
    SLOTS,
    RequestBuffer,
    make_memory,
)
from kcachefs.store import Options, Store, fsck
from kcachefs.store.inode_numbers import ROOT_INO
from tests.engines.callers import Child
from tests.waiting import PATIENCE

RESENT = 1 << 63
OLDER_KERNEL = p.INIT_IN.pack(7, 36, 1 << 20, 0) + bytes(48)
CHANGES = {
    Op.CREATE: p.CREATE_IN.pack(os.O_WRONLY | os.O_EXCL, 0o100644, 0, 0) + b"new\0",
    Op.MKDIR: p.MKDIR_IN.pack(0o755, 0) + b"new\0",
    Op.MKNOD: p.MKNOD_IN.pack(0o010644, 0, 0, 0) + b"new\0",
    Op.SYMLINK: b"new\0target\0",
    Op.UNLINK: b"file\0",
    Op.RMDIR: b"folder\0",
    Op.RENAME: p.RENAME_IN.pack(ROOT_INO) + b"file\0new\0",
    Op.RENAME2: p.RENAME2_IN.pack(ROOT_INO, 2, 0) + b"file\0folder\0",
}
"""Every change of names. Repeated, each would fail or undo itself."""


class Worker:
    """A filesystem, its engine, and the kernel's end of its device."""

    def __init__(self, store: Path, memory: int, *, resumed: bool) -> None:
        self.store = Store(store, Options(background=False))
        self.fs = Filesystem(self.store, FsOptions(resumed=resumed))
        self.kernel, self._daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.kernel.settimeout(PATIENCE)
        self.engine = DirectEngine(self.fs, self._daemon.fileno(), requests=RequestBuffer(memory), resumed=resumed)

    def ask(self, number: int, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        """The errno and the body of the reply."""
        self.engine.feed(request(number, opcode, node, body))
        return self.answer(number)

    def answer(self, number: int) -> tuple[int, bytes]:
        raw = self.kernel.recv(1 << 21)
        _, code, answered = p.OUT_HEADER.unpack_from(raw)
        assert answered == number
        return -code, raw[16:]

    def names(self) -> set[bytes]:
        return {name for _, name, _, _ in self.fs.listing(ROOT_INO, 0, 1000)}


def request(number: int, opcode: int, node: int, body: bytes) -> bytes:
    return p.IN_HEADER.pack(p.IN_HEADER.size + len(body), opcode, number, node, 0, 0, 0, 0, 0) + body


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = make_memory()
    yield descriptor
    os.close(descriptor)


@contextmanager
def serving(store: Path, memory: int, *, resumed: bool) -> Iterator[Worker]:
    """End without settling anything, as a killed worker does."""
    worker = Worker(store, memory, resumed=resumed)
    try:
        yield worker
    finally:
        worker.engine.close()
        worker.store.close()
        worker.kernel.close()
        worker._daemon.close()


def with_a_file_and_a_folder(worker: Worker) -> None:
    assert worker.ask(2, Op.CREATE, ROOT_INO, p.CREATE_IN.pack(1, 0o100644, 0, 0) + b"file\0")[0] == 0
    assert worker.ask(4, Op.MKDIR, ROOT_INO, p.MKDIR_IN.pack(0o755, 0) + b"folder\0")[0] == 0


@pytest.mark.parametrize("opcode", CHANGES)
def test_a_change_that_was_made_is_answered_again_and_not_made_again(tmp_path: Path, memory: int, opcode: Op) -> None:
    with serving(tmp_path, memory, resumed=False) as first:
        with_a_file_and_a_folder(first)
        code, said = first.ask(6, opcode, ROOT_INO, CHANGES[opcode])
        assert code == 0
        there = first.names()
    with serving(tmp_path, memory, resumed=True) as second:
        again = second.ask(6 | RESENT, opcode, ROOT_INO, CHANGES[opcode])
        assert again[0] == 0
        assert again[1][:8] == said[:8]  # the same inode
        assert len(again[1]) == len(said)
        assert second.names() == there
    assert fsck.run(tmp_path).findings == []


def test_a_link_that_was_made_is_answered_again(tmp_path: Path, memory: int) -> None:
    with serving(tmp_path, memory, resumed=False) as first:
        with_a_file_and_a_folder(first)
        ino = first.fs.tree.find(ROOT_INO, b"file")
        assert ino is not None
        assert first.ask(6, Op.LINK, ROOT_INO, p.LINK_IN.pack(ino) + b"new\0")[0] == 0
    with serving(tmp_path, memory, resumed=True) as second:
        assert second.ask(6 | RESENT, Op.LINK, ROOT_INO, p.LINK_IN.pack(ino) + b"new\0")[0] == 0
        assert second.fs.attributes(ino).nlink == 2


@pytest.mark.parametrize("opcode", CHANGES)
def test_a_change_that_was_not_made_is_made_when_it_comes_again(tmp_path: Path, memory: int, opcode: Op) -> None:
    with serving(tmp_path, memory, resumed=False) as first:
        with_a_file_and_a_folder(first)
        before = first.names()
    with serving(tmp_path, memory, resumed=True) as second:
        assert second.ask(6 | RESENT, opcode, ROOT_INO, CHANGES[opcode])[0] == 0
        kept = opcode == Op.RENAME2  # after an exchange the names are the same
        assert (second.names() == before) is kept


def test_the_answer_survives_a_second_death(tmp_path: Path, memory: int) -> None:
    body = CHANGES[Op.MKDIR]
    with serving(tmp_path, memory, resumed=False) as first:
        _, said = first.ask(6, Op.MKDIR, ROOT_INO, body)
    for _ in range(2):
        with serving(tmp_path, memory, resumed=True) as later:
            assert later.ask(6 | RESENT, Op.MKDIR, ROOT_INO, body)[1][:8] == said[:8]


def test_a_number_of_an_earlier_mount_means_nothing(tmp_path: Path, memory: int) -> None:
    """Numbers start again after a mount: the same one means another request."""
    with serving(tmp_path, memory, resumed=False) as before:
        before.ask(6, Op.MKDIR, ROOT_INO, CHANGES[Op.MKDIR])
    with serving(tmp_path, memory, resumed=False):
        pass
    with serving(tmp_path, memory, resumed=True) as resumed:
        assert resumed.ask(6 | RESENT, Op.MKDIR, ROOT_INO, CHANGES[Op.MKDIR])[0] == errno.EEXIST


def test_a_request_that_failed_fails_again(tmp_path: Path, memory: int) -> None:
    with serving(tmp_path, memory, resumed=False) as first:
        assert first.ask(6, Op.UNLINK, ROOT_INO, b"absent\0")[0] == errno.ENOENT
    with serving(tmp_path, memory, resumed=True) as second:
        assert second.ask(6 | RESENT, Op.UNLINK, ROOT_INO, b"absent\0")[0] == errno.ENOENT


# --- requests that workers die of -------------------------------------------------------------------------------------


def die_of(worker: Worker, number: int, name: bytes, monkeypatch: pytest.MonkeyPatch, *, deferred: bool) -> None:
    """Carry out a request in a process that does not survive it."""
    with Child(lambda: _carry_out(worker, number, name, monkeypatch, deferred), None) as child:
        with pytest.raises(ChildProcessError):
            child.result()


def _carry_out(worker: Worker, number: int, name: bytes, monkeypatch: pytest.MonkeyPatch, deferred: bool) -> None:
    if deferred:
        answered = threading.Event()
        monkeypatch.setattr(worker.fs, "sync", lambda ino: answered.wait(PATIENCE) and os._exit(9))
        worker.engine.feed(request(number, Op.FSYNC, ROOT_INO, bytes(16)))
        worker.engine.feed(request(time.monotonic_ns(), Op.LOOKUP, ROOT_INO, b"innocent\0"))
        answered.set()
        threading.Event().wait(PATIENCE)
    monkeypatch.setattr(worker.fs, "lookup", lambda caller, parent, name: os._exit(9))
    worker.engine.feed(request(number, Op.LOOKUP, ROOT_INO, name + b"\0"))


def taken_over(worker: Worker) -> None:
    worker.engine._take_over()
    worker.kernel.recv(1 << 16)  # the kernel is asked to send again


@pytest.mark.parametrize("deferred", [False, True], ids=["at_hand", "deferred"])
def test_a_request_that_ends_every_worker_is_answered_and_named(
    tmp_path: Path, memory: int, deferred: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    RequestBuffer(memory).keep_capabilities(p.Init.HAS_RESEND)
    deaths = DEFERRED_DEATHS_MAX if deferred else DEATHS_MAX
    opcode, body = (Op.FSYNC, bytes(16)) if deferred else (Op.LOOKUP, b"poison\0")
    for death in range(deaths):
        with serving(tmp_path, memory, resumed=death > 0) as worker:
            if death:
                taken_over(worker)
                assert not worker.engine._poison
            die_of(worker, 6 | (RESENT if death else 0), b"poison", monkeypatch, deferred=deferred)
    with serving(tmp_path, memory, resumed=True) as last:
        taken_over(last)
        assert last.ask(6 | RESENT, opcode, ROOT_INO, body)[0] == errno.EIO
        assert "request 6 " in caplog.text
        assert last.ask(7 | RESENT, Op.LOOKUP, ROOT_INO, b"innocent\0")[0] == 0
    with serving(tmp_path, memory, resumed=True) as later:
        taken_over(later)
        assert later.ask(8, opcode, ROOT_INO, body)[0] == 0


def test_deaths_of_different_requests_are_no_reason_to_refuse_any(
    tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    RequestBuffer(memory).keep_capabilities(p.Init.HAS_RESEND)
    for number in (6, 8, 10, 12):
        with serving(tmp_path, memory, resumed=number > 6) as worker:
            if number > 6:
                taken_over(worker)
                assert not worker.engine._poison
            die_of(worker, number, b"%d" % number, monkeypatch, deferred=False)


# --- a kernel that cannot resend --------------------------------------------------------------------------------------


def test_what_the_dead_one_had_taken_is_found_in_the_buffer(tmp_path: Path, memory: int) -> None:
    with serving(tmp_path, memory, resumed=False) as first:
        first.ask(2, Op.INIT, 0, OLDER_KERNEL)
        taken = request(6, Op.MKDIR, ROOT_INO, CHANGES[Op.MKDIR])
        RequestBuffer(memory).buffer[: len(taken)] = taken  # it died after reading this from the kernel
    with serving(tmp_path, memory, resumed=True) as second:
        second.engine._take_over()
        assert second.answer(6)[0] == 0
        assert b"new" in second.names()


def test_what_the_dead_one_had_done_is_not_done_twice(tmp_path: Path, memory: int) -> None:
    with serving(tmp_path, memory, resumed=False) as first:
        first.ask(2, Op.INIT, 0, OLDER_KERNEL)
        said = first.ask(6, Op.MKDIR, ROOT_INO, CHANGES[Op.MKDIR])[1]  # it died before it could cross this off
    with serving(tmp_path, memory, resumed=True) as second:
        second.engine._take_over()
        code, again = second.answer(6)
        assert (code, again[:8]) == (0, said[:8])


def test_what_was_put_aside_is_finished(tmp_path: Path, memory: int) -> None:
    with serving(tmp_path, memory, resumed=False) as first:
        first.ask(2, Op.INIT, 0, OLDER_KERNEL)
        with_a_file_and_a_folder(first)
        ino = first.fs.tree.find(ROOT_INO, b"file")
        assert ino is not None
        buffer = RequestBuffer(memory)
        data = os.urandom(200_000)
        write = request(8, Op.WRITE, ino, p.WRITE_IN.pack(0, 0, len(data)) + bytes(20) + data)
        buffer.buffer[: len(write)] = write
        assert buffer.put_aside(len(write)) >= 0
        sync = request(10, Op.FSYNC, ino, bytes(16))
        buffer.buffer[: len(sync)] = sync
        done = buffer.put_aside(len(sync))
        buffer.carried_out(done, b"told")
        buffer.answered()
    with serving(tmp_path, memory, resumed=True) as second:
        second.engine._take_over()
        answers = {struct.unpack_from("<Q", raw, 8)[0]: raw[16:] for raw in (second.kernel.recv(1 << 21) for _ in "12")}
        assert answers == {8: p.WRITE_OUT.pack(len(data), 0), 10: b"told"}
        assert second.fs.read(ino, 0, 1 << 20) == data
        assert list(RequestBuffer(memory).left()) == []


@pytest.mark.parametrize("advice", [23, 9999], ids=["populate", "unknown to the kernel"])
def test_every_page_of_the_buffer_is_mapped_before_the_kernel_copies_to_it(
    memory: int, monkeypatch: pytest.MonkeyPatch, advice: int
) -> None:
    """A page that is not mapped yet cannot be once the worker was killed; the kernel then answers EIO by itself."""
    os.pwrite(memory, b"left by the last worker", PAGE)
    monkeypatch.setattr(request_buffer, "_MADV_POPULATE_WRITE", advice)
    buffer = RequestBuffer(memory)
    assert bytes(buffer.buffer[:24]) == b"left by the last worker\0"
    mappings = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    [mapping] = [mapping for mapping in mappings if f" {os.fstat(memory).st_ino} " in mapping]
    [kilobytes] = re.findall(r"(?m)^Rss: +(\d+) kB", mapping)
    assert int(kilobytes) << 10 >= REQUEST_MAX


def test_slots_come_back_and_their_number_is_an_end(memory: int) -> None:
    buffer = RequestBuffer(memory)
    sound = request(2, Op.FSYNC, 1, bytes(16))
    buffer.buffer[: len(sound)] = sound
    taken = [buffer.put_aside(len(sound)) for _ in range(SLOTS)]
    assert sorted(taken) == list(range(SLOTS))
    assert buffer.put_aside(len(sound)) == -1
    buffer.release(taken[3])
    assert buffer.put_aside(len(sound)) == taken[3]


def test_without_a_free_slot_a_write_is_refused_before_it_keeps_everybody_waiting(
    tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, memory, resumed=False) as worker:
        worker.ask(2, Op.INIT, 0, OLDER_KERNEL)
        with_a_file_and_a_folder(worker)
        node, writers = worker.fs.tree.find(ROOT_INO, b"file") or 0, []
        write = worker.fs.write

        def note_and_write(ino: int, offset: int, data: bytes, **how: bool) -> int:
            writers.append(threading.current_thread().name)
            return write(ino, offset, data, **how)

        monkeypatch.setattr(worker.fs, "write", note_and_write)
        worker.fs.room.has_room.clear()
        body = p.WRITE_IN.pack(0, 0, 3) + bytes(20) + b"new"
        numbers = range(100, 100 + 2 * SLOTS, 2)
        for number in numbers:
            worker.engine.feed(request(number, Op.WRITE, node, body))
        assert worker.ask(4000, Op.WRITE, node, body) == (errno.ENOSPC, b"")
        worker.fs.room.has_room.set()
        replies = [p.OUT_HEADER.unpack_from(worker.kernel.recv(1 << 21)) for _ in numbers]
        assert sorted((number, code) for _, code, number in replies) == [(number, 0) for number in numbers]
        assert threading.current_thread().name not in writers


# --- what the kernel holds --------------------------------------------------------------------------------------------


def test_nothing_that_may_be_in_use_goes_and_nothing_stays_for_ever(
    tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, memory, resumed=False) as first:
        with_a_file_and_a_folder(first)
        ino = first.fs.tree.find(ROOT_INO, b"file")
        assert ino is not None
        first.fs.write(ino, 0, b"content")
    with serving(tmp_path, memory, resumed=True) as second:
        fs = second.fs
        held = {ino}
        monkeypatch.setattr(second.fs.nodes._kernel, "knows", held.__contains__)
        assert fs.lookup(NOBODY, ROOT_INO, b"file") == ino
        fs.unlink(NOBODY, ROOT_INO, b"file")
        fs.forget(ino, 1)  # the lookup just made; what the dead worker counted is still held
        fs.lifetimes.clear_orphans()
        assert fs.read(ino, 0, 100) == b"content"
        held.clear()
        fs.lifetimes.clear_orphans()
        assert not fs.nodes.exists(ino)


def test_a_forget_of_more_than_was_counted_may_be_older_than_the_lookups_that_were(
    tmp_path: Path, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lookups overtake a FORGET that waits in the kernel, also while a new worker takes over."""
    with serving(tmp_path, memory, resumed=False) as first:
        with_a_file_and_a_folder(first)
        ino = first.fs.tree.find(ROOT_INO, b"file")
        assert ino is not None
        first.fs.write(ino, 0, b"content")
    with serving(tmp_path, memory, resumed=True) as second:
        fs, held = second.fs, {ino}
        monkeypatch.setattr(fs.nodes._kernel, "knows", held.__contains__)
        assert fs.lookup(NOBODY, ROOT_INO, b"file") == ino
        fs.unlink(NOBODY, ROOT_INO, b"file")
        fs.forget(ino, 3)  # what the dead worker had counted: somebody may have opened the file since
        assert fs.read(ino, 0, 100) == b"content"
        fs.clear_orphans()
        assert fs.read(ino, 0, 100) == b"content"
        held.clear()
        fs.clear_orphans()
        assert not fs.nodes.exists(ino)
