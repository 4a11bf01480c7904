"""Slow changes run beside the thread that answers requests, also under a policy that checks who asks."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from kcachefs.core import Filesystem, FsOptions
from kcachefs.core.caller import Caller
from kcachefs.core.sharing import Sharing
from kcachefs.engines import protocol as p
from kcachefs.engines.protocol import Fattr, Op
from kcachefs.errors import FsError
from kcachefs.store import Store
from tests.engines.test_protocol import Line
from tests.waiting import PATIENCE

OWNER, STRANGER = (1001, 1001, 0), (1002, 1002, 0)
SIZE = 3 << 20
SHARINGS = {
    "publish": Sharing(policy="publish"),
    "private": Sharing(policy="private"),
    "based": Sharing(policy="private", base=True, writer_uids=(1001,)),
    "read-only": Sharing(policy="read-only", writer_uids=(1001,)),
}
CHANGES = {
    "ftruncate": (
        Op.SETATTR,
        p.SETATTR_IN.pack(Fattr.SIZE, 0, 0, SIZE // 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        "truncate",
    ),
    "fallocate": (Op.FALLOCATE, p.FALLOCATE_IN.pack(0, 0, SIZE * 2, 0, 0), "fallocate"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("sharing", SHARINGS.values(), ids=SHARINGS)
def test_others_are_answered_while_a_large_file_is_brought_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, sharing: Sharing, change: str
) -> None:
    def make(store: Store) -> Filesystem:
        return Filesystem(store, FsOptions(sharing=sharing))

    line = Line(tmp_path / "store", caplog, make)
    go_on = threading.Event()
    try:
        line.caller = OWNER
        fs = line.fs
        ino = _sealed(fs)
        opcode, body, method = CHANGES[change]
        real = getattr(fs.files, method)

        def slow(*arguments: int) -> None:
            assert go_on.wait(PATIENCE)
            real(*arguments)

        monkeypatch.setattr(fs.files, method, slow)
        unique = line.feed(opcode, ino, body)
        line.caller = STRANGER
        assert line.ask(Op.GETATTR, ino, bytes(16))[0] == 0, "answered meanwhile, and by now another is the caller"
        go_on.set()
        number, answered, _ = line._receive()
        assert (number, answered) == (0, unique)
        assert fs.attributes(ino).size == (SIZE // 2 if change == "ftruncate" else SIZE * 2)
        if sharing.policy != "private" or sharing.base:  # in a private tree the modes keep others out
            assert line.ask(opcode, ino, body)[0] in (errno.EPERM, errno.EROFS)
    finally:
        go_on.set()
        line.close()


def test_a_rename_that_is_refused_syncs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(store: Store) -> Filesystem:
        return Filesystem(store, FsOptions(sharing=Sharing(policy="publish")))

    line = Line(tmp_path / "store", caplog, make)
    try:
        fs, secured = line.fs, list[int]()
        owner, stranger = Caller(*OWNER[:2]), Caller(*STRANGER[:2])
        triton = fs.lookup(owner, 1, b"triton") or 0
        for caller, name in ((owner, b"published"), (stranger, b"tmp.1"), (owner, b"tmp.2")):
            ino, _ = fs.create(caller, triton, name, 0o644)
            fs.write(ino, 0, name)
        fs.sync(fs.tree.find(triton, b"published") or 0)
        secure = fs._syncer._secure

        def noted(ino: int, entry: int) -> None:
            secured.append(ino)
            secure(ino, entry)

        monkeypatch.setattr(fs._syncer, "_secure", noted)
        line.caller = STRANGER
        body = p.RENAME_IN.pack(triton) + b"tmp.1\0published\0"
        assert line.ask(Op.RENAME, triton, body)[0] == errno.EPERM
        with pytest.raises(FsError):
            fs.rename(stranger, triton, b"tmp.1", triton, b"published")
        assert secured == []
        line.caller = OWNER
        assert line.ask(Op.RENAME, triton, p.RENAME_IN.pack(triton) + b"tmp.2\0published\0")[0] == 0
        assert secured != [], "of its owner's, who may replace it"
    finally:
        line.close()


def _sealed(fs: Filesystem) -> int:
    """A file of the owner in the shared tree, already sealed."""
    parent = fs.tree.find(1, b"triton")
    assert parent is not None
    ino, _ = fs.tree.create(Caller(*OWNER), parent, b"KEY", 0o100644)
    fs.hold(ino)
    fs.write(ino, 0, bytes(SIZE))
    fs.settle()
    return ino
