"""The least that a filesystem in Python takes: one thread, the direct engine's loop and protocol, everything in dicts.

It keeps no store, no journal, no accounts and no order of use, checks nothing, and forgets everything when it is
unmounted. Where a peer in C is faster than this, no filesystem served by one Python thread can keep up: it is the floor
of each row in benchmarks/README.md. Run it with `python -m benchmarks.memory_fs MOUNTPOINT`.
"""

from __future__ import annotations

import errno
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kcachefs.core.options import FOREVER_SECONDS as FOREVER
from kcachefs.engines import mounting
from kcachefs.engines import protocol as p
from kcachefs.engines.busy_polling import BusyPolling
from kcachefs.engines.protocol import Op
from kcachefs.engines.replies import LISTING_KEPT, LISTING_NEW, MISS, OPENED, pack_names

_HEADER = p.IN_HEADER.size
_CAPABILITIES = p.CAPABILITIES & ~(p.Init.DO_READDIRPLUS | p.Init.READDIRPLUS_AUTO | p.Init.HAS_RESEND)
_NAMES_MAX = 1024
_NS = 1_000_000_000
_FOLDER, _FILE = 0o040000, 0o100000


class Node:
    """A file or a folder."""

    __slots__ = ("children", "ctime", "data", "listed", "mode", "mtime", "nlink", "number", "owner", "target")

    def __init__(self, number: int, mode: int, owner: tuple[int, int]) -> None:
        self.number, self.mode, self.owner = number, mode, owner
        self.nlink = 1
        self.data = bytearray()
        self.target = b""
        self.children: dict[bytes, Node] = {}
        self.mtime = self.ctime = time.time_ns()
        self.listed = 0

    def attributes(self) -> tuple[int, ...]:
        size, (mtime, mtime_ns), (ctime, ctime_ns) = len(self.data), divmod(self.mtime, _NS), divmod(self.ctime, _NS)
        blocks = (size + 511) >> 9
        times = (mtime, mtime, ctime, mtime_ns, mtime_ns, ctime_ns)
        return self.number, size, blocks, *times, self.mode, self.nlink, *self.owner, 0, 65536, 0

    def status(self) -> bytes:
        return p.ATTR_OUT.pack(FOREVER, 0, 0, *self.attributes())

    def entry(self) -> bytes:
        return p.ENTRY.pack(self.number, 0, FOREVER, FOREVER, 0, 0, *self.attributes())


class MemoryFilesystem:
    """Answers what a cache directory is asked."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._buffer = memoryview(bytearray(p.MAX_REQUEST + 4096))
        self._polling = BusyPolling(device, lambda: None)
        self._numbers = itertools.count(2)
        self._nodes = {1: Node(1, _FOLDER | 0o755, (os.getuid(), os.getgid()))}
        self._owner = (0, 0)
        self._handlers: dict[int, Callable[[Node, int], bytes | int | None]] = {
            Op.INIT: self._init,
            Op.LOOKUP: self._lookup,
            Op.FORGET: self._forget,
            Op.BATCH_FORGET: self._batch_forget,
            Op.INTERRUPT: lambda *_: None,
            Op.GETATTR: lambda node, _: node.status(),
            Op.SETATTR: self._setattr,
            Op.MKDIR: lambda node, length: self._make(node, p.MKDIR_IN.size, length, _FOLDER),
            Op.CREATE: lambda node, length: self._make(node, p.CREATE_IN.size, length, _FILE) + OPENED,
            Op.SYMLINK: self._symlink,
            Op.READLINK: lambda node, _: node.target,
            Op.LINK: self._link,
            Op.UNLINK: self._unlink,
            Op.RMDIR: self._rmdir,
            Op.RENAME: lambda node, length: self._rename(node, p.RENAME_IN.size, length),
            Op.RENAME2: lambda node, length: self._rename(node, p.RENAME2_IN.size, length),
            Op.READ: self._read,
            Op.WRITE: self._write,
            Op.OPENDIR: self._opendir,
            Op.READDIR: self._readdir,
            Op.RELEASE: lambda *_: b"",
            Op.RELEASEDIR: lambda *_: b"",
            Op.STATFS: lambda *_: p.STATFS_OUT.pack(1 << 24, 1 << 23, 1 << 23, 1 << 20, 1 << 19, 4096, 255, 4096, 0),
            Op.DESTROY: lambda *_: b"",
        }

    def serve(self) -> None:
        """Answer requests until it is unmounted."""
        poll, came, device, buffers = self._polling.poll, self._polling.request_came, self._device, [self._buffer]
        handlers, nodes, pack, unpack = self._handlers, self._nodes, p.OUT_HEADER.pack, p.IN_HEADER.unpack_from
        while True:
            poll()
            try:
                length = os.readv(device, buffers)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                continue
            came()
            _, opcode, unique, number, uid, gid, _, _, _ = unpack(self._buffer)
            self._owner = uid, gid
            handler = handlers.get(opcode)
            body = -errno.ENOSYS if handler is None else handler(nodes[number or 1], length)
            if body is None:
                continue
            if isinstance(body, int):
                answer = pack(16, body, unique)
            else:
                answer = pack(16 + len(body), 0, unique) + body
            try:
                os.write(device, answer)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):
                    raise

    def watch(self) -> None:
        """See every second how busy the machine is, as a worker does."""
        while True:
            self._polling.adapt()
            time.sleep(1)

    def _init(self, node: Node, length: int) -> bytes:
        _, minor, readahead, flags = p.INIT_IN.unpack_from(self._buffer, _HEADER)
        wanted, pages = flags & _CAPABILITIES & 0xFFFFFFFF, p.MAX_REQUEST // 4096
        minor = min(minor, p.MINOR)
        return p.INIT_OUT.pack(p.MAJOR, minor, readahead, wanted, 64, 48, p.MAX_WRITE, 1, pages, 0, 0, 0)

    def _forget(self, node: Node, length: int) -> None:
        if not node.nlink:
            self._nodes.pop(node.number, None)

    def _batch_forget(self, node: Node, length: int) -> None:
        start = _HEADER + p.BATCH_FORGET_IN.size
        for number, _ in p.FORGET_ONE.iter_unpack(self._buffer[start:length]):
            self._forget(self._nodes[number], 0)

    def _lookup(self, node: Node, length: int) -> bytes:
        found = node.children.get(self._buffer[_HEADER : length - 1].tobytes())
        return MISS if found is None else found.entry()

    def _names(self, start: int, length: int) -> list[bytes]:
        return self._buffer[_HEADER + start : length - 1].tobytes().split(b"\0")

    def _add(self, folder: Node, name: bytes, mode: int) -> Node:
        made = Node(next(self._numbers), mode, self._owner)
        self._nodes[made.number] = folder.children[name] = made
        folder.mtime = made.mtime
        return made

    def _make(self, folder: Node, start: int, length: int, kind: int) -> bytes:
        at = _HEADER + (4 if kind == _FILE else 0)  # a create has flags before its mode
        mode = int.from_bytes(self._buffer[at : at + 4], "little")
        return self._add(folder, self._names(start, length)[0], kind | mode & 0o7777).entry()

    def _symlink(self, folder: Node, length: int) -> bytes:
        name, target = self._names(0, length)
        made = self._add(folder, name, 0o120777)
        made.target = target
        return made.entry()

    def _link(self, folder: Node, length: int) -> bytes:
        linked = self._nodes[p.LINK_IN.unpack_from(self._buffer, _HEADER)[0]]
        linked.nlink += 1
        folder.children[self._names(p.LINK_IN.size, length)[0]] = linked
        folder.mtime = time.time_ns()
        return linked.entry()

    def _unlink(self, folder: Node, length: int) -> bytes | int:
        gone = folder.children.pop(self._names(0, length)[0], None)
        if gone is None:
            return -errno.ENOENT
        gone.nlink -= 1
        folder.mtime = time.time_ns()
        return b""

    def _rmdir(self, folder: Node, length: int) -> bytes | int:
        gone = folder.children.get(self._names(0, length)[0])
        if gone is not None and gone.children:
            return -errno.ENOTEMPTY
        return self._unlink(folder, length)

    def _rename(self, folder: Node, start: int, length: int) -> bytes | int:
        name, new_name = self._names(start, length)
        moved = folder.children.pop(name, None)
        if moved is None:
            return -errno.ENOENT
        target = self._nodes[p.RENAME_IN.unpack_from(self._buffer, _HEADER)[0]]
        if new_name in target.children:
            target.children[new_name].nlink -= 1
        target.children[new_name] = moved
        folder.mtime = target.mtime = moved.ctime = time.time_ns()
        return b""

    def _setattr(self, node: Node, length: int) -> bytes:
        fields = p.SETATTR_IN.unpack_from(self._buffer, _HEADER)
        valid = fields[0]
        if valid & p.Fattr.SIZE:
            del node.data[fields[3] :]
            node.data.extend(bytes(fields[3] - len(node.data)))
        if valid & p.Fattr.MODE:
            node.mode = fields[11]
        if valid & p.Fattr.MTIME:
            node.mtime = fields[6] * _NS + fields[9]
        return node.status()

    def _read(self, node: Node, length: int) -> bytes:
        _, offset, size = p.READ_IN.unpack_from(self._buffer, _HEADER)
        return bytes(node.data[offset : offset + size])

    def _write(self, node: Node, length: int) -> bytes:
        _, offset, size = p.WRITE_IN.unpack_from(self._buffer, _HEADER)
        node.data[offset : offset + size] = self._buffer[p.WRITE_DATA : p.WRITE_DATA + size]
        node.mtime = node.ctime = time.time_ns()
        return p.WRITE_OUT.pack(size, 0)

    def _opendir(self, node: Node, length: int) -> bytes:
        if node.listed == node.mtime:
            return LISTING_KEPT
        node.listed = node.mtime
        return LISTING_NEW

    def _readdir(self, node: Node, length: int) -> bytes:
        _, cookie, size = p.READ_IN.unpack_from(self._buffer, _HEADER)
        names = itertools.islice(node.children.items(), cookie, cookie + min(size // 32, _NAMES_MAX))
        rows = [(cookie + i, name, child.number, child.mode >> 12) for i, (name, child) in enumerate(names, 1)]
        return pack_names(rows, size)


def main() -> None:
    filesystem = MemoryFilesystem(mounting.mount(Path(sys.argv[1]), Path("memory_fs")))
    threading.Thread(target=filesystem.watch, daemon=True).start()
    filesystem.serve()


if __name__ == "__main__":
    main()
