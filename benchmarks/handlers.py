"""What each kind of request costs in the daemon itself: fed to the engine in this process, in µs of processor time.

And what of that is LMDB's part and what the kernel's, for the journal and the slots; the rest is the interpreter's.
"""

from __future__ import annotations

import gc
import os
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

from kcachefs.core import Filesystem
from kcachefs.core.caller import Caller
from kcachefs.core.tree import DOTDOT
from kcachefs.engines import protocol as p
from kcachefs.engines.direct import DirectEngine
from kcachefs.engines.protocol import Op
from kcachefs.store import Options, Store, journal
from kcachefs.store.folded import FoldedRecords
from kcachefs.store.slots import SlotFile

PUT = {"lookup, a miss": 2, "getattr of a folder": 2, "create": 1, "write 16 KiB": 1, "rename": 1}
"""How many requests of each kind make up one put."""

_DATA = os.urandom(16 << 10)
_EXCLUSIVE = p.CREATE_IN.pack(os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o100644, 0o22, 0)

ROOT = Caller(0, 0)


def measure(rounds: int, count: int, directory: Path | None = None) -> dict[str, list[float]]:
    """The average cost of each kind of request, once per round, each round with a new store."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="kcachefs-bench-", dir=directory) as base, _no_collections():
            for name, cost in _one_round(Path(base) / "store", count).items():
                found.setdefault(name, []).append(cost)
    return found


def measure_shares(rounds: int, count: int, directory: Path | None = None) -> dict[str, tuple[float, float]]:
    """The median of what each kind of request spends in LMDB, and in the kernel."""
    clock = _Shares()
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="kcachefs-bench-", dir=directory) as base, _no_collections(), clock:
            for name, shares in _one_round(Path(base) / "store", count, clock).items():
                found.setdefault(name, []).append(shares)
    return {
        name: (statistics.median(lmdb for lmdb, _ in rows), statistics.median(kernel for _, kernel in rows))
        for name, rows in found.items()
    }


class _Shares:
    """While entered, adds up the time spent in LMDB and in the kernel. Each call's own cost is taken off again."""

    LMDB = ((FoldedRecords, "get"), (FoldedRecords, "get_many"), (FoldedRecords, "rows"), (FoldedRecords, "snapshot"))
    KERNEL = ((journal, "_write"), (SlotFile, "write"), (SlotFile, "read"))

    def __init__(self) -> None:
        self.spent = {"lmdb": 0.0, "kernel": 0.0}
        self._undo: list[tuple[Any, str, Any]] = []
        self._cost = 0.0
        self._cost = min(self._timed("cost", lambda: None)() or self.spent.pop("cost") for _ in range(1000))

    def __enter__(self) -> None:
        for share, places in (("lmdb", self.LMDB), ("kernel", self.KERNEL)):
            for owner, name in places:
                self._undo.append((owner, name, getattr(owner, name)))
                setattr(owner, name, self._timed(share, getattr(owner, name)))

    def __exit__(self, *_: object) -> None:
        while self._undo:
            setattr(*self._undo.pop())

    def _timed(self, share: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            begin = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                self.spent[share] = self.spent.get(share, 0.0) + time.thread_time() - begin - self._cost

        return timed


@contextmanager
def _no_collections() -> Iterator[None]:
    """As in the daemon, which collects garbage only between requests."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def put_sum(found: dict[str, list[float]]) -> float:
    """What one put costs in total."""
    return sum(times * statistics.median(found[name]) for name, times in PUT.items())


@overload
def _one_round(place: Path, count: int) -> dict[str, float]: ...
@overload
def _one_round(place: Path, count: int, clock: _Shares) -> dict[str, tuple[float, float]]: ...
def _one_round(place: Path, count: int, clock: _Shares | None = None) -> dict[str, Any]:
    with Store(place, Options(background=False)) as store:
        fs = Filesystem(store)
        engine = DirectEngine(fs, os.open("/dev/null", os.O_RDWR))
        found: dict[str, Any] = {}

        def timed(name: str, request: Callable[[int], bytes]) -> None:
            requests = [request(i) for i in range(count)]
            before = dict(clock.spent) if clock is not None else {}
            begin = time.thread_time()
            for each in requests:
                engine.feed(each)
            if clock is None:
                found[name] = (time.thread_time() - begin) / count * 1e6
            else:
                found[name] = tuple((clock.spent[key] - before[key]) / count * 1e6 for key in ("lmdb", "kernel"))

        folder = fs.make(ROOT, fs.lookup(ROOT, 1, b"triton") or 1, b"folder", 0o040755)[0]
        timed("lookup, a miss", lambda i: _request(Op.LOOKUP, folder, b"tmp.%d\0" % i))
        timed("create", lambda i: _request(Op.CREATE, folder, _EXCLUSIVE + b"tmp.%d\0" % i))
        nodes = [fs.tree.find(folder, b"tmp.%d" % i) or 0 for i in range(count)]
        write = p.WRITE_IN.pack(0, 0, len(_DATA)) + bytes(20) + _DATA
        timed("write 16 KiB", lambda i: _request(Op.WRITE, nodes[i], write))
        timed("lookup, a second miss", lambda i: _request(Op.LOOKUP, folder, b"f%d\0" % i))
        rename = p.RENAME_IN.pack(folder)
        timed("rename", lambda i: _request(Op.RENAME, folder, rename + b"tmp.%d\0f%d\0" % (i, i)))
        timed("release", lambda i: _request(Op.RELEASE, nodes[i], bytes(24)))
        timed("getattr of a folder", lambda i: _request(Op.GETATTR, folder, bytes(16)))
        timed("getattr of a file", lambda i: _request(Op.GETATTR, nodes[i], bytes(16)))
        timed("lookup, a hit", lambda i: _request(Op.LOOKUP, folder, b"f%d\0" % i))
        timed("read 16 KiB, unsealed", lambda i: _request(Op.READ, nodes[i], struct.pack("<QQI20x", 0, 0, 1 << 17)))
        timed("mkdir", lambda i: _request(Op.MKDIR, folder, p.MKDIR_IN.pack(0o755, 0o22) + b"dir.%d\0" % i))
        timed("rmdir", lambda i: _request(Op.RMDIR, folder, b"dir.%d\0" % i))
        whole = struct.pack("<QQI20x", 0, 0, 32 << 10)
        fs.settle()
        timed("readdir, 256 names", lambda i: _request(Op.READDIR, folder, whole))
        further = struct.pack("<QQI20x", 0, DOTDOT, 32 << 10)  # the first reply has fewer
        timed("readdirplus, 24 names", lambda i: _request(Op.READDIRPLUS, folder, further))
        timed("lookup, a hit, folded", lambda i: _request(Op.LOOKUP, folder, b"f%d\0" % i))
        timed("read 16 KiB, sealed", lambda i: _request(Op.READ, nodes[i], struct.pack("<QQI20x", 0, 0, 1 << 17)))
        timed("unlink", lambda i: _request(Op.UNLINK, folder, b"f%d\0" % i))
        timed("forget", lambda i: _request(Op.FORGET, nodes[i], p.FORGET_IN.pack(1 << 20)))
        engine.close()
        return found


def _request(opcode: Op, node: int, body: bytes) -> bytes:
    return p.IN_HEADER.pack(p.IN_HEADER.size + len(body), opcode, 1, node, 0, 0, 0, 0, 0) + body
