"""No name, path, mode or number in a request leads out of the store, under any policy and for any user.

Requests are fed to the engine as the kernel would send them, and as it never would: names with slashes, NULs and dots,
numbers of inodes that do not exist or are only shown, modes of devices. Each is answered; nothing appears beside the
store or in its folders that is not the store's; and fsck finds all in order.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.limits import Limits
from kcachefs.core.sharing import Sharing
from kcachefs.engines import protocol as p
from kcachefs.engines.protocol import Op
from kcachefs.store import Store, fsck
from kcachefs.store.inode_numbers import ALIAS_BASE, LINK_BASE, LOCK_BASE, REPORT_INO, SHARED_INO
from kcachefs.store.records import Inode, name_of
from tests.engines.test_protocol import Line

UIDS = (0, 1000, 1001, 0xFFFFFFFF)
SHARINGS = {
    "shared": Sharing(),
    "squashed": Sharing(uid=1000, gid=0, umask=0o27),
    "publish": Sharing(policy="publish"),
    "private": Sharing(policy="private"),
    "based": Sharing(policy="private", base=True, writer_uids=(1001,)),
    "read-only": Sharing(policy="read-only", writer_uids=(1001,)),
}
NASTY = (b"..", b".", b"../../x", b"/etc/passwd", b"a/b", b"", b"x" * 255, b"x" * 256, b"x" * 4000, b"\xff\xfe", b"\n")
ORDINARY = (b"triton", b"inductor", b".kcachefs", b".tenants", b".shared", b"1000", b"K", b"tmp.1", b"x.lock", b"locks")
names = st.one_of(st.sampled_from(NASTY + ORDINARY), st.binary(max_size=20))
strange = st.one_of(
    st.sampled_from([0, 1, REPORT_INO, REPORT_INO + 1, SHARED_INO, LINK_BASE, LINK_BASE + 3, LOCK_BASE, 1 << 62]),
    st.builds(lambda root, ino: ALIAS_BASE | root << 32 | ino, st.integers(0, 80), st.integers(0, 80)),
    st.integers(0, (1 << 64) - 1),
)
nodes = st.one_of(st.integers(1, 80), strange)
modes = st.one_of(
    st.sampled_from([0o100644, 0o104755, 0o060666, 0o020666, 0o010600, 0o120777]), st.integers(0, 0xFFFFFFFF)
)
numbers = st.integers(0, (1 << 64) - 1)
small = st.integers(0, 8192)


def _setattr(valid: int, size: int, mode: int, owner: int) -> bytes:
    return p.SETATTR_IN.pack(valid & 0x1FF, 0, 0, size, 0, 1, 1, 1, 0, 0, 0, mode, 0, owner, owner, 0)


owners = st.sampled_from(UIDS)
requests = st.one_of(
    st.tuples(st.sampled_from([Op.LOOKUP, Op.UNLINK, Op.RMDIR]), nodes, names.map(lambda name: name + b"\0")),
    st.tuples(st.just(Op.MKDIR), nodes, st.builds(lambda m, n: p.MKDIR_IN.pack(m, 0) + n + b"\0", modes, names)),
    st.tuples(st.just(Op.MKNOD), nodes, st.builds(lambda m, n: p.MKNOD_IN.pack(m, 5, 0, 0) + n + b"\0", modes, names)),
    st.tuples(
        st.just(Op.CREATE), nodes, st.builds(lambda m, n: p.CREATE_IN.pack(2, m, 0, 0) + n + b"\0", modes, names)
    ),
    st.tuples(st.just(Op.SYMLINK), nodes, st.builds(lambda a, b: a + b"\0" + b + b"\0", names, names)),
    st.tuples(st.just(Op.LINK), nodes, st.builds(lambda i, n: p.LINK_IN.pack(i) + n + b"\0", nodes, names)),
    st.tuples(
        st.just(Op.RENAME2),
        nodes,
        st.builds(
            lambda to, flags, a, b: p.RENAME2_IN.pack(to, flags, 0) + a + b"\0" + b + b"\0",
            nodes,
            st.integers(0, 7),
            names,
            names,
        ),
    ),
    st.tuples(st.just(Op.SETATTR), nodes, st.builds(_setattr, st.integers(0, 0x1FF), small, modes, owners)),
    st.tuples(
        st.just(Op.WRITE),
        nodes,
        st.builds(lambda at, data: p.WRITE_IN.pack(0, at, len(data)) + bytes(20) + data, small, st.binary(max_size=64)),
    ),
    st.tuples(
        st.sampled_from([Op.READ, Op.READDIR, Op.READDIRPLUS]),
        nodes,
        st.builds(lambda at, size: p.READ_IN.pack(0, at, size) + bytes(20), st.one_of(small, numbers), small),
    ),
    st.tuples(st.sampled_from([Op.GETATTR, Op.READLINK, Op.OPENDIR, Op.STATFS]), nodes, st.just(bytes(16))),
    st.tuples(st.just(Op.OPEN), nodes, st.builds(lambda flags: p.OPEN_IN.pack(flags, 0), st.integers(0, 3))),
    st.tuples(st.just(Op.FALLOCATE), nodes, st.builds(lambda m, a: p.FALLOCATE_IN.pack(0, a, 64, m, 0), small, small)),
    st.tuples(st.sampled_from([Op.SETXATTR, Op.GETXATTR, Op.IOCTL]), nodes, st.just(b"trusted.overlay\0")),
)


@pytest.mark.parametrize("sharing", SHARINGS.values(), ids=SHARINGS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(asked=st.lists(st.tuples(st.sampled_from(UIDS), requests), min_size=20, max_size=60))
def test_no_request_leads_out_of_the_store(
    sharing: Sharing, caplog: pytest.LogCaptureFixture, tmp_path: Path, asked: list[tuple[int, tuple[int, int, bytes]]]
) -> None:
    caplog.clear()
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        base = Path(folder)
        (base / "outside").write_text("untouched")
        line = Line(base / "store", caplog, _maker(sharing))
        try:
            for uid, (opcode, node, body) in asked:
                line.caller = (uid, uid, 0)
                number, _ = line.ask(opcode, node, body)
                assert number != errno.EIO, (opcode, node, body, caplog.text)
            _in_order(line)
        finally:
            line.close()
        assert fsck.run(base / "store").findings == []
        assert sorted(os.listdir(base)) == ["outside", "store"]
        assert (base / "outside").read_text() == "untouched"
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def _maker(sharing: Sharing):  # type: ignore[no-untyped-def]
    def make(store: Store) -> Filesystem:
        return Filesystem(store, FsOptions(sharing=sharing, limits=Limits(max_size_per_uid=1 << 30)))

    return make


def _in_order(line: Line) -> None:
    """Every name is valid in a folder, and nothing is a device."""
    line.store.fold()
    assert line.store.strays() == []
    for key, _ in line.store.catalog.walk(b"n"):
        name = name_of(key)[1]
        assert 0 < len(name) <= 255
        assert not {b"/"[0], 0} & set(name)
        assert name not in (b".", b"..")
    for _, raw in line.store.catalog.walk(b"i"):
        assert raw is not None
        assert stat.S_IFMT(Inode.unpack(raw).mode) not in (stat.S_IFCHR, stat.S_IFBLK, 0)
