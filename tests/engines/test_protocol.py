"""Garbage in the kernel's protocol: an error or a line in the log, never an exit, and everything works afterwards.

Requests are fed to the engine's decoder; its device is one end of a pair of sockets, on whose other end each reply is
one message.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcachefs.core import Filesystem
from kcachefs.core.caller import NOBODY, Caller
from kcachefs.core.nodes import Fate
from kcachefs.engines import protocol as p
from kcachefs.engines.direct import DirectEngine
from kcachefs.engines.protocol import RESENT, Op
from kcachefs.engines.request_buffer import SLOTS
from kcachefs.errors import NoSpace, ObjectDamaged, StoreError
from kcachefs.store import Options, Store
from kcachefs.store.object_records import ObjectRecord
from kcachefs.store.records import Content, Inode, inode_key
from tests.waiting import PATIENCE

HEADER = p.IN_HEADER.size
SILENT = {Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT, Op.NOTIFY_REPLY}
"""Requests to which the kernel expects no reply."""
HUGE = (1 << 64) - 1
_SO_SNDBUFFORCE = 32
"""The socket module lacks it."""

BODIES = {
    Op.LOOKUP: b"name\0",
    Op.FORGET: p.FORGET_IN.pack(1),
    Op.GETATTR: bytes(16),
    Op.SETATTR: p.SETATTR_IN.pack(1 << 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0o100600, 0, 0, 0, 0),
    Op.READLINK: b"",
    Op.SYMLINK: b"link\0target\0",
    Op.MKNOD: p.MKNOD_IN.pack(0o100644, 0, 0o22, 0) + b"node\0",
    Op.MKDIR: p.MKDIR_IN.pack(0o755, 0o22) + b"folder\0",
    Op.UNLINK: b"name\0",
    Op.RMDIR: b"name\0",
    Op.RENAME: p.RENAME_IN.pack(1) + b"name\0other\0",
    Op.LINK: p.LINK_IN.pack(1) + b"hard\0",
    Op.READ: p.READ_IN.pack(0, 0, 4096) + bytes(20),
    Op.WRITE: p.WRITE_IN.pack(0, 0, 4) + bytes(20) + b"data",
    Op.STATFS: b"",
    Op.RELEASE: bytes(24),
    Op.FSYNC: bytes(16),
    Op.INIT: p.INIT_IN.pack(7, 38, 1 << 20, 0) + bytes(48),
    Op.OPENDIR: bytes(8),
    Op.READDIR: p.READ_IN.pack(0, 0, 4096) + bytes(20),
    Op.READDIRPLUS: p.READ_IN.pack(0, 0, 4096) + bytes(20),
    Op.RELEASEDIR: bytes(24),
    Op.FSYNCDIR: bytes(16),
    Op.CREATE: p.CREATE_IN.pack(os.O_WRONLY, 0o100644, 0o22, 0) + b"created\0",
    Op.INTERRUPT: p.INTERRUPT_IN.pack(12345),
    Op.DESTROY: b"",
    Op.BATCH_FORGET: p.BATCH_FORGET_IN.pack(2, 0) + p.FORGET_ONE.pack(7, 1) + p.FORGET_ONE.pack(8, 1),
    Op.FALLOCATE: p.FALLOCATE_IN.pack(0, 0, 100, 0, 0),
    Op.RENAME2: p.RENAME2_IN.pack(1, 0, 0) + b"name\0other\0",
    Op.SYNCFS: bytes(8),
}
"""A valid body for every request that has a reply."""


class Line:
    """An engine over its own store, and the kernel's end of its device."""

    def __init__(
        self, store: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Store], Filesystem] = Filesystem
    ) -> None:
        self.store = Store(store, Options(background=False))
        self.fs = make(self.store)
        self.caller = (0, 0, 0)
        """The user, group and process that ask."""
        self.kernel, self._daemon = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.kernel, self._daemon):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            with suppress(PermissionError):  # kernels before Linux 6.17 allow a fraction of that by default
                end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 4 << 20)
        self.engine = DirectEngine(self.fs, self._daemon.fileno())
        self.log = caplog
        self.folder = self.node(1, b"triton")
        self._unique = 1000

    def close(self) -> None:
        self.engine.close()
        self.fs.settle()
        self.store.close()
        self.kernel.close()
        self._daemon.close()

    # --- asking -------------------------------------------------------------------------------------------------------

    def feed(self, opcode: int, node: int, body: bytes = b"", length: int | None = None) -> int:
        self._unique += 1
        total = HEADER + len(body) if length is None else length
        self.engine.feed(p.IN_HEADER.pack(total, opcode, self._unique, node, *self.caller, 0, 0) + body)
        return self._unique

    def ask(self, opcode: int, node: int, body: bytes = b"", length: int | None = None) -> tuple[int, bytes]:
        """Send a request and wait for its reply: the errno and the body."""
        unique = self.feed(opcode, node, body, length)
        assert select.select([self.kernel], [], [], 60)[0], f"no reply to request {opcode}"
        number, answered, said = self._receive()
        assert answered == unique
        return number, said

    def replies(self) -> list[tuple[int, int, bytes]]:
        """All replies so far."""
        found = []
        while select.select([self.kernel], [], [], 0)[0]:
            found.append(self._receive())
        return found

    def _receive(self) -> tuple[int, int, bytes]:
        raw = self.kernel.recv(p.MAX_REQUEST + 4096)
        length, number, unique = p.OUT_HEADER.unpack_from(raw)
        assert length == len(raw)
        return -number, unique, raw[16:]

    def refuses(self, number: int, opcode: int, node: int, body: bytes = b"") -> None:
        got, said = self.ask(opcode, node, body)
        assert (errno.errorcode.get(got, got), said) == (errno.errorcode[number], b"")

    def node(self, parent: int, name: bytes) -> int:
        found = self.fs.lookup(NOBODY, parent, name)
        assert found is not None
        return found

    # --- working ------------------------------------------------------------------------------------------------------

    def write_file(self, name: bytes, content: bytes, *, release: bool = True) -> int:
        """As a program does: create, write, close. Newer kernels do not report the close."""
        number, said = self.ask(Op.CREATE, self.folder, p.CREATE_IN.pack(1, 0o100644, 0, 0) + name + b"\0")
        assert number == 0
        node: int = struct.unpack_from("<Q", said)[0]
        for start in range(0, len(content), p.MAX_REQUEST):
            piece = content[start : start + p.MAX_REQUEST]
            assert self.ask(Op.WRITE, node, p.WRITE_IN.pack(0, start, len(piece)) + bytes(20) + piece)[0] == 0
        if release:
            assert self.ask(Op.RELEASE, node, bytes(24))[0] == 0
        return node

    def read_file(self, node: int, offset: int = 0, size: int = p.MAX_REQUEST) -> bytes:
        number, said = self.ask(Op.READ, node, p.READ_IN.pack(0, offset, size) + bytes(20))
        assert number == 0
        return said

    def still_works(self) -> None:
        """A file is made, found, read, renamed, listed and removed."""
        self.replies()
        node = self.write_file(b"check", b"content")
        assert self.read_file(node) == b"content"
        assert self.ask(Op.RENAME, self.folder, p.RENAME_IN.pack(self.folder) + b"check\0moved\0") == (0, b"")
        number, said = self.ask(Op.LOOKUP, self.folder, b"moved\0")
        assert (number, struct.unpack_from("<Q", said)[0]) == (0, node)
        assert b"moved" in self.ask(Op.READDIR, self.folder, p.READ_IN.pack(0, 0, 1 << 20) + bytes(20))[1]
        assert self.ask(Op.UNLINK, self.folder, b"moved\0") == (0, b"")
        assert struct.unpack_from("<Q", self.ask(Op.LOOKUP, self.folder, b"moved\0")[1])[0] == 0
        self.feed(Op.FORGET, node, p.FORGET_IN.pack(2))
        assert self.ask(Op.STATFS, 1)[0] == 0


@pytest.fixture
def line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Line]:
    caplog.set_level(logging.INFO)
    line = Line(tmp_path / "store", caplog)
    try:
        yield line
        line.still_works()
    finally:
        line.close()


# --- what cannot be read ----------------------------------------------------------------------------------------------


def test_less_than_a_header_is_a_line_in_the_log(line: Line) -> None:
    for length in range(HEADER):
        line.log.clear()
        line.engine.feed(bytes(length))
        assert f"{length} bytes" in line.log.text
    assert line.replies() == []


def test_a_length_that_is_not_the_request_s_is_refused(line: Line) -> None:
    for length in (0, HEADER - 1, HEADER + 4, HEADER + 6, 1 << 20, 0xFFFFFFFF):
        line.log.clear()
        assert line.ask(Op.LOOKUP, 1, b"name\0", length) == (errno.EIO, b"")
        assert f"{length} bytes" in line.log.text


def test_an_opcode_that_is_not_known_is_not_offered(line: Line) -> None:
    known = set(BODIES) | {Op.NOTIFY_REPLY}
    for opcode in (*range(5000), 1 << 16, 1 << 31, 0xFFFFFFFF):
        if opcode not in known:
            assert line.ask(opcode, 1, b"whatever") == (errno.ENOSYS, b"")
    assert line.feed(Op.NOTIFY_REPLY, 1)
    assert line.replies() == []


def test_a_request_cut_short_anywhere_is_refused_and_changes_nothing(line: Line) -> None:
    for opcode, whole in BODIES.items():
        # The buffer still holds the whole request; what was cut off must not be read from there.
        if opcode in SILENT:
            line.feed(opcode, line.folder, whole)
        else:
            line.ask(opcode, line.folder, whole)
        before = line.fs.listing(line.folder, 0, 100)
        for length in range(len(whole)):
            line.log.clear()
            unique = line.feed(opcode, line.folder, whole[:length])
            if opcode in SILENT and "cannot be read" not in line.log.text:
                continue
            assert select.select([line.kernel], [], [], 60)[0]
            number, answered, said = line._receive()
            assert answered == unique
            assert number != 0 or _needs_no_body(opcode, length), f"{opcode.name} cut to {length} bytes gave {said!r}"
        assert line.fs.listing(line.folder, 0, 100) == before


def _needs_no_body(opcode: Op, length: int) -> bool:
    """Whether this many bytes are enough for a request: the rest are handles and flags that are not used."""
    read = {
        **dict.fromkeys((Op.GETATTR, Op.STATFS, Op.RELEASE, Op.FSYNC, Op.OPENDIR, Op.RELEASEDIR, Op.FSYNCDIR), 0),
        **dict.fromkeys((Op.SYNCFS, Op.DESTROY, Op.READLINK), 0),
        **dict.fromkeys((Op.READ, Op.READDIR, Op.READDIRPLUS), p.READ_IN.size),
        Op.INIT: p.INIT_IN.size,
    }
    return length >= read.get(opcode, 1 << 30)


OPCODES_OF_NAMES = (Op.LOOKUP, Op.UNLINK, Op.RMDIR, Op.MKDIR, Op.MKNOD, Op.CREATE, Op.LINK)


NO_NAMES = (b"unended", b"\0", b"a\0b\0", b"a/b\0", b"/\0", b"x" * 256 + b"\0", b"x" * 100_000 + b"\0")


def test_a_name_that_is_none_is_refused(line: Line) -> None:
    file = line.write_file(b"file", b"content")
    heads = {Op.MKDIR: bytes(8), Op.MKNOD: p.MKNOD_IN.pack(0o100644, 0, 0, 0), Op.CREATE: p.CREATE_IN.pack(0, 0, 0, 0)}
    heads[Op.LINK] = p.LINK_IN.pack(file)
    before = line.fs.listing(line.folder, 0, 100)
    for opcode, name in itertools.product(OPCODES_OF_NAMES, NO_NAMES):
        number, said = line.ask(opcode, line.folder, heads.get(opcode, b"") + name)
        missed = opcode == Op.LOOKUP and struct.unpack_from("<Q", said or bytes(8))[0] == 0
        assert number in (errno.EINVAL, errno.ENAMETOOLONG, errno.ENOENT) or missed, (opcode, name[:20])
    assert line.fs.listing(line.folder, 0, 100) == before


def test_two_names_that_are_not_two_are_refused(line: Line) -> None:
    line.write_file(b"file", b"content")
    heads = {
        Op.RENAME: p.RENAME_IN.pack(line.folder),
        Op.RENAME2: p.RENAME2_IN.pack(line.folder, 0, 0),
        Op.SYMLINK: b"",
    }
    before = line.fs.listing(line.folder, 0, 100)
    for opcode, head in heads.items():
        for names in (b"file\0", b"file\0new", b"file\0a\0b\0", b"file\0a/b\0", b"file\0\0", b"file\0..\0"):
            number, _ = line.ask(opcode, line.folder, head + names)
            assert number in (errno.EINVAL, errno.EEXIST), (opcode, names)
    assert line.fs.listing(line.folder, 0, 100) == before


# --- absurd values ----------------------------------------------------------------------------------------------------


def test_more_to_forget_than_was_sent_is_refused_whole(line: Line) -> None:
    for count in (2, 1000, 65536, 0xFFFFFFFF):
        line.log.clear()
        line.feed(Op.BATCH_FORGET, 0, p.BATCH_FORGET_IN.pack(count, 0) + p.FORGET_ONE.pack(line.folder, 1))
        assert "cannot be read" in line.log.text


def test_what_cannot_be_removed_does_not_keep_what_is_forgotten_with_it(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphan, other = line.write_file(b"orphan", b"content"), line.write_file(b"other", b"content")
    assert line.ask(Op.UNLINK, line.folder, b"orphan\0") == (0, b"")

    def refuse(changes: object) -> None:
        raise NoSpace("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(line.store.catalog, "commit", refuse)
        both = p.FORGET_ONE.pack(orphan, 1) + p.FORGET_ONE.pack(other, 1)
        line.feed(Op.BATCH_FORGET, 0, p.BATCH_FORGET_IN.pack(2, 0) + both)
    assert not {orphan, other} & line.fs.nodes.lookups.keys()
    assert line.fs.lifetimes.clear_orphans() == 1


@pytest.mark.parametrize("content", [b"small", b"slot" * 10_000, b"spool" * 1_000_000], ids=["sealed", "slot", "spool"])
def test_reads_and_writes_beyond_reason_are_refused(line: Line, content: bytes) -> None:
    node = line.write_file(b"file", content)
    if content == b"small":
        line.fs.settle()
    for offset, size in ((HUGE, 1), (1 << 63, 4096), ((1 << 63) - 1, 1), (0, 0xFFFFFFFF), (0, p.MAX_REQUEST + 1)):
        line.refuses(errno.EINVAL, Op.READ, node, p.READ_IN.pack(0, offset, size) + bytes(20))
    for offset in (1 << 40, (1 << 63) - 4097):
        assert line.read_file(node, offset, 4096) == b""
    for offset in (HUGE, 1 << 63, (1 << 63) - 2):
        line.refuses(errno.EFBIG, Op.WRITE, node, p.WRITE_IN.pack(0, offset, 4) + bytes(20) + b"data")
        line.refuses(errno.EFBIG, Op.FALLOCATE, node, p.FALLOCATE_IN.pack(0, offset, 4, 0, 0))
    line.refuses(errno.EINVAL, Op.WRITE, node, p.WRITE_IN.pack(0, 0, 5) + bytes(20) + b"data")
    line.refuses(errno.EINVAL, Op.WRITE, node, p.WRITE_IN.pack(0, 0, 0xFFFFFFFF) + bytes(20) + b"data")
    line.refuses(errno.EINVAL, Op.FALLOCATE, node, p.FALLOCATE_IN.pack(0, 0, 0, 0, 0))
    line.refuses(errno.EOPNOTSUPP, Op.FALLOCATE, node, p.FALLOCATE_IN.pack(0, 0, 10, 0x80, 0))
    line.refuses(errno.EFBIG, Op.SETATTR, node, p.SETATTR_IN.pack(1 << 3, 0, 0, HUGE, *[0] * 12))
    assert line.read_file(node) == content[: p.MAX_REQUEST]


def test_attributes_beyond_reason_are_kept_within_it(line: Line) -> None:
    node = line.write_file(b"file", b"content")
    for seconds in ((1 << 63) - 1, -(1 << 63)):
        body = p.SETATTR_IN.pack(0o60, 0, 0, 0, 0, seconds, seconds, 0, *[0xFFFFFFFF] * 3, *[0] * 5)
        assert line.ask(Op.SETATTR, node, body)[0] == 0
    body = p.SETATTR_IN.pack(0o7, *[0] * 10, *[0xFFFFFFFF] * 5)
    assert line.ask(Op.SETATTR, node, body)[0] == 0
    assert line.fs.attributes(node).mode == 0o107777
    for mode in (0o170000, 0o010000 << 4, 0xFFFFFFFF, 0o030000):
        line.refuses(errno.EINVAL, Op.MKNOD, line.folder, p.MKNOD_IN.pack(mode, 0, 0, 0) + b"node\0")
    for cookie in (HUGE, 1 << 63, (1 << 63) - 1):
        for opcode in (Op.READDIR, Op.READDIRPLUS):
            assert line.ask(opcode, line.folder, p.READ_IN.pack(0, cookie, 0xFFFFFFFF) + bytes(20)) == (0, b"")


@pytest.mark.parametrize("node", [0, 999_999, 1 << 60])
def test_a_node_that_is_not_there_is_refused(line: Line, node: int) -> None:
    of_the_whole = {Op.STATFS, Op.INIT, Op.DESTROY, Op.LOOKUP, Op.RELEASE, Op.RELEASEDIR}
    for opcode, body in BODIES.items():
        if opcode in SILENT:
            line.feed(opcode, node, body)
            assert line.replies() == []
        else:
            assert line.ask(opcode, node, body)[0] == (0 if opcode in of_the_whole else errno.ENOENT), opcode


@pytest.mark.parametrize("node", [1 << 61, (1 << 61) + 1, (1 << 61) + 99, 1 << 63, HUGE])
def test_a_node_that_no_file_can_have_is_answered(line: Line, node: int) -> None:
    for opcode, body in BODIES.items():
        if opcode in SILENT:
            line.feed(opcode, node, body)
        else:
            line.ask(opcode, node, body)


# --- out of order -----------------------------------------------------------------------------------------------------


def test_what_comes_out_of_order_does_no_harm(line: Line) -> None:
    file = line.write_file(b"file", b"content")
    for _ in range(3):
        assert line.ask(Op.RELEASE, file, bytes(24)) == (0, b"")
    for count in (1, 1000, HUGE):
        line.feed(Op.FORGET, file, p.FORGET_IN.pack(count))
        line.feed(Op.FORGET, 1, p.FORGET_IN.pack(count))
        line.feed(Op.FORGET, 987_654, p.FORGET_IN.pack(count))
    line.feed(Op.INTERRUPT, 0, p.INTERRUPT_IN.pack(HUGE))
    line.feed(Op.INTERRUPT, 0, p.INTERRUPT_IN.pack(line._unique))
    assert line.replies() == []
    assert line.read_file(file) == b"content"
    assert line.node(line.folder, b"file") == file


def test_a_file_of_whose_closing_nothing_is_told_is_sealed_and_let_go_all_the_same(line: Line) -> None:
    kept = line.write_file(b"kept", b"content", release=False)
    gone = line.write_file(b"gone", b"content", release=False)
    assert line.ask(Op.UNLINK, line.folder, b"gone\0") == (0, b"")
    assert line.read_file(gone) == b"content"
    line.feed(Op.FORGET, gone, p.FORGET_IN.pack(1))
    line.engine.unused.remove()
    assert not line.fs.nodes.exists(gone)
    line.fs.settle()
    assert line.fs.attributes(kept).content == Content.OBJECT
    assert line.fs.nodes.orphans == set()
    assert line.read_file(kept) == b"content"


def test_a_file_that_is_still_being_written_is_not_sealed(line: Line) -> None:
    node = line.write_file(b"file", b"content", release=False)
    assert not line.fs.sealer.seal_next(1000)
    assert line.fs.attributes(node).content == Content.SLOT
    assert line.fs.sealer.seal_next(0)
    assert line.fs.attributes(node).content == Content.OBJECT


def test_a_file_that_was_forgotten_too_often_and_unlinked_is_gone_and_can_be_made_again(line: Line) -> None:
    file = line.write_file(b"file", b"content")
    line.feed(Op.FORGET, file, p.FORGET_IN.pack(HUGE))
    assert line.ask(Op.UNLINK, line.folder, b"file\0") == (0, b"")
    line.feed(Op.FORGET, file, p.FORGET_IN.pack(1))
    line.refuses(errno.ENOENT, Op.READ, file, p.READ_IN.pack(0, 0, 10) + bytes(20))
    assert line.write_file(b"file", b"again") != file


def test_a_kernel_of_another_major_version_is_answered(line: Line) -> None:
    line.refuses(errno.EPROTO, Op.INIT, 0, p.INIT_IN.pack(6, 99, 0, 0))
    number, said = line.ask(Op.INIT, 0, p.INIT_IN.pack(8, 0, 0, 0))
    assert (number, struct.unpack_from("<II", said)) == (0, (p.MAJOR, p.MINOR))
    for _ in range(2):
        number, said = line.ask(Op.INIT, 0, p.INIT_IN.pack(7, 45, 1 << 20, 0xFFFFFFFF) + b"\xff" * 48)
        assert (number, struct.unpack_from("<II", said)) == (0, (7, p.MINOR))


# --- at random --------------------------------------------------------------------------------------------------------

requests = st.one_of(
    st.tuples(st.sampled_from(list(Op)), st.integers(0, 40), st.binary(max_size=120)),
    st.tuples(st.integers(0, 70), st.integers(0, HUGE), st.binary(max_size=120)),
    st.tuples(st.sampled_from(list(BODIES)), st.integers(1, 25), st.none()),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequence=st.lists(requests, max_size=20), raw=st.binary(max_size=200))
def test_any_sequence_of_any_bytes_is_answered(
    line: Line, sequence: list[tuple[int, int, bytes | None]], raw: bytes
) -> None:
    line.engine.feed(raw)
    line.replies()
    for opcode, node, body in sequence:
        if body is None:
            body = BODIES[Op(opcode)]
        if opcode in SILENT:
            line.feed(opcode, node, body)
            line.replies()
        else:
            line.ask(opcode, node, body)
    # The random requests may have done anything; the check works in its own folder.
    fresh = f"folder{line._unique}".encode()
    number, said = line.ask(Op.MKDIR, 1, p.MKDIR_IN.pack(0o755, 0) + fresh + b"\0")
    assert number == 0
    line.folder = struct.unpack_from("<Q", said)[0]
    line.still_works()


# --- failures below ---------------------------------------------------------------------------------------------------


def test_a_handler_that_raises_answers_an_input_output_error_and_logs_where(line: Line) -> None:
    node = line.write_file(b"file", b"content")
    with line.store.transaction() as txn:
        txn.put(inode_key(node), b"no inode")
    line.fs.nodes._cache.clear()
    line.refuses(errno.EIO, Op.GETATTR, node, bytes(16))
    assert f"opcode {Op.GETATTR.value} on inode {node}: the request failed" in line.log.text
    assert "Traceback" in line.log.text
    line.refuses(errno.EIO, Op.LOOKUP, line.folder, b"file\0")


def test_a_damaged_record_is_an_error_for_who_asks_and_is_named_in_the_log(line: Line) -> None:
    node = line.write_file(b"file", b"content")
    line.fs.settle()
    with line.store.catalog._folded.env.begin(write=True) as txn:
        raw = txn.get(inode_key(node))
        assert raw is not None
        txn.put(inode_key(node), bytes([raw[0] ^ 1]) + raw[1:])
    line.fs.nodes._cache.clear()
    assert line.ask(Op.GETATTR, node, bytes(16))[0] in (errno.EIO, errno.ENOENT)
    assert "fails its checksum" in line.log.text


def test_a_file_whose_spool_file_is_gone_is_dropped_and_not_served_empty(line: Line) -> None:
    node = line.write_file(b"file", bytes(3 << 20))
    line.fs.unsealed._open.clear()
    os.unlink(line.store.spool.path(line.fs.attributes(node).spool))
    line.fs.unsealed._open.clear()
    assert line.ask(Op.LOOKUP, line.folder, b"file\0")[0] == 0
    line.refuses(errno.EIO, Op.READ, node, p.READ_IN.pack(0, 0, 4096) + bytes(20))
    assert struct.unpack_from("<Q", line.ask(Op.LOOKUP, line.folder, b"file\0")[1])[0] == 0
    assert line.write_file(b"file", b"again") != node


def test_an_interrupted_request_is_answered_once(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    count = SLOTS - 8  # more than threads of the pool, and not so many that they are done at once
    content = os.urandom(1 << 16) * (count * p.MAX_REQUEST >> 16)
    node = line.write_file(b"large", content)
    line.fs.settle()
    frames, told = line.fs.store.objects.frames, threading.Event()
    read = frames.read

    def read_once_told(digest: bytes, record: ObjectRecord, index: int) -> bytes:
        assert told.wait(60)
        return read(digest, record, index)

    monkeypatch.setattr(frames, "read", read_once_told)
    waiting = {}
    for start in range(0, len(content), p.MAX_REQUEST):
        waiting[line.feed(Op.READ, node, p.READ_IN.pack(0, start, 1 << 16) + bytes(20))] = start
    for unique in list(waiting)[::2]:
        line.feed(Op.INTERRUPT, 0, p.INTERRUPT_IN.pack(unique))
    told.set()
    interrupted = 0
    while waiting:
        assert select.select([line.kernel], [], [], 60)[0]
        number, unique, said = line._receive()
        start = waiting.pop(unique)
        interrupted += number == errno.EINTR
        assert number == errno.EINTR or said == content[start : start + (1 << 16)]
    assert interrupted > 0


# --- what others do meanwhile, and what must not end the engine's thread ----------------------------------------------


def test_what_is_removed_while_it_is_listed_is_not_held(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever removes a file decides by the references to it whether it goes, and only then does it go."""
    root = Caller(0, 0)
    folder, _ = line.fs.make(root, line.folder, b"KEY", stat.S_IFDIR | 0o755)
    ino, _ = line.fs.create(root, folder, b"file", 0o644)
    line.fs.forget(ino, 1)
    decided, decide = threading.Event(), line.fs.nodes.drop_name

    def decide_and_wait(number: int, node: Inode) -> Fate:
        fate = decide(number, node)
        decided.set()
        for _ in range(20):  # the listing waits for the lock meanwhile, or else holds the file
            if line.fs.nodes.lookups.get(ino):
                break
            time.sleep(0.01)
        return fate

    def remove() -> None:
        with line.fs.nodes.change() as txn:
            line.fs.tree.remove(txn, folder, b"file", ino, line.fs.nodes.get(ino))

    monkeypatch.setattr(line.fs.nodes, "drop_name", decide_and_wait)
    remover = threading.Thread(target=remove)
    hold = line.fs.hold_all

    def hold_after_that(children: Iterable[int]) -> None:
        children = list(children)
        if ino in children and not remover.ident:
            remover.start()
            assert decided.wait(PATIENCE)
        hold(children)

    monkeypatch.setattr(line.fs, "hold_all", hold_after_that)
    number, said = line.ask(Op.READDIRPLUS, folder, p.READ_IN.pack(0, 0, 1 << 20) + bytes(20))
    remover.join()
    assert (number, b"file" in said) == (0, False)
    assert ino not in line.fs.nodes.lookups
    assert not line.fs.nodes.exists(ino)


def test_a_request_that_is_sent_again_and_fails_ends_nothing(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> int:
        raise StoreError("the catalog cannot be read")

    with monkeypatch.context() as broken:
        broken.setattr(line.fs, "answer_of", fail)
        request = p.IN_HEADER.pack(HEADER + 4, Op.MKDIR, RESENT | 7, line.folder, 0, 0, 0, 0, 0) + b"new\0"
        line.engine.feed(request)
    assert [(number, unique) for number, unique, _ in line.replies()] == [(errno.EIO, RESENT | 7)]
    line.still_works()


def test_damage_that_no_thread_can_look_into_is_refused(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    def damaged(ino: int, offset: int, size: int) -> bytes:
        raise ObjectDamaged("its bytes are wrong")

    ino = line.write_file(b"file", b"content")
    with monkeypatch.context() as broken:
        broken.setattr(line.engine._pool, "submit", fail)
        broken.setattr(line.fs, "read", damaged)
        line.refuses(errno.EIO, Op.READ, ino, p.READ_IN.pack(0, 0, 4096) + bytes(20))
    assert line.read_file(ino) == b"content"


def test_a_request_for_which_no_thread_can_be_started_is_refused_for_good(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncation that was refused must not be made later, over what its caller has written since."""
    ino = line.write_file(b"large", bytes(300 << 20))
    shorten = p.SETATTR_IN.pack(p.Fattr.SIZE, 0, 0, 1000, *[0] * 12)

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", fail)
        line.refuses(errno.EIO, Op.SETATTR, ino, shorten)
    assert line.ask(Op.FSYNC, ino, bytes(16))[0] == 0, "another one, for which there is a thread"
    assert line.fs.attributes(ino).size == 300 << 20
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", fail)
        assert line.ask(Op.SETATTR, ino, shorten)[0] == 0, "the thread that is there does it"
    assert line.fs.attributes(ino).size == 1000
