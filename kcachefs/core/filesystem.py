"""The filesystem as an engine sees it: one method per request, keyed by inode, raising errors that carry an errno.

An engine's thread calls the methods of a request. The daemon calls `files.seal_next` and
`files.seal_quiet` beside it.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable

import msgspec

from kcachefs.core.files import Files
from kcachefs.core.nodes import Nodes
from kcachefs.core.tree import NAME_MAX, Tree
from kcachefs.errors import FsError
from kcachefs.store import Store
from kcachefs.store.records import ROOT_INO, Inode

log = logging.getLogger(__name__)

NAMESPACES = (
    "triton",
    "inductor",
    "cuda",
    "nvrtc",
    "torch_extensions",
    "torch_kernels",
    "vllm",
    "sglang",
    "flashinfer",
    "deep_gemm",
    "deep_ep",
    "tilelang",
    "tvm_ffi",
    "cute_dsl",
    "cutile",
    "helion",
    "warp",
    "cupy",
    "jax",
    "numba",
)
"""First-level folders that every mount has."""

BLOCK = 4096


class FsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a filesystem is mounted."""

    max_size: int = 20 << 30
    uid: int = 0
    gid: int = 0


class Statfs(msgspec.Struct, frozen=True):
    """What df shows: the quota as the size, and what is left of it, or of the disk beneath if that is less."""

    blocks: int
    free: int
    files: int
    files_free: int
    block_size: int = BLOCK
    name_max: int = NAME_MAX


class Filesystem:
    """One mounted tree over one store."""

    def __init__(self, store: Store, options: FsOptions = FsOptions()) -> None:  # noqa: B008
        self.store = store
        self.options = options
        self.nodes = Nodes(store)
        self.files = Files(store, self.nodes)
        self.tree = Tree(store, self.nodes)
        self.read = self.files.read
        self.write = self.files.write
        self.attributes = self.files.attributes
        self.forget = self.nodes.forget
        self.listing = self.tree.listing
        self._found: dict[int, int] = self.nodes.lookups
        self.on_dropped: Callable[[int, bytes], None] = lambda parent, name: None
        """Told of every name that went without a request: the engine tells the kernel. Called with no lock held."""
        self.tree.make_root(options.uid, options.gid)
        self._make_namespaces()
        self._drop_orphans()
        self._drop_unsynced()
        self.files.adopt()

    # --- names --------------------------------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> int | None:
        """The inode under a name, and one more reference that the kernel holds; None for a miss."""
        if name == b"..":
            ino = self.nodes.get(parent).parent
        elif name == b".":
            ino = parent
        else:
            found = self.tree.find(parent, name)
            if found is None:
                return None
            ino = found
        return self.found(ino)

    def found(self, ino: int) -> int:
        """The kernel is told of an inode: it holds a reference until it forgets it."""
        lookups = self._found
        lookups[ino] = lookups.get(ino, 0) + 1
        return ino

    def make(
        self, parent: int, name: bytes, mode: int, uid: int, gid: int, rdev: int = 0, target: bytes = b""
    ) -> tuple[int, Inode]:
        """mkdir, mknod, symlink: a new inode, which the kernel then holds."""
        kind = stat.S_IFMT(mode)
        if kind in (stat.S_IFCHR, stat.S_IFBLK):
            raise FsError(errno.EPERM, "device files are refused")
        ino, node = self.tree.create(parent, name, mode, uid, gid, rdev=rdev, target=target)
        self.found(ino)
        return ino, node

    def create(self, parent: int, name: bytes, mode: int, uid: int, gid: int) -> tuple[int, Inode]:
        """A new file, open: the kernel holds the inode and a handle."""
        ino, node = self.tree.create(parent, name, stat.S_IFREG | stat.S_IMODE(mode), uid, gid)
        self.found(ino)
        self.opened(ino)
        return ino, node

    def link(self, ino: int, parent: int, name: bytes) -> Inode:
        self.tree.link(ino, parent, name)
        self.found(ino)
        return self.attributes(ino)

    def unlink(self, parent: int, name: bytes) -> None:
        self.tree.unlink(parent, name)

    def rmdir(self, parent: int, name: bytes) -> None:
        self.tree.rmdir(parent, name)

    def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0) -> None:
        self.tree.rename(parent, name, new_parent, new_name, flags)

    def readlink(self, ino: int) -> bytes:
        node = self.nodes.get(ino)
        if not stat.S_ISLNK(node.mode):
            raise FsError(errno.EINVAL)
        return node.target

    # --- files --------------------------------------------------------------------------------------------------------

    def opened(self, ino: int) -> None:
        """A handle to the inode exists: it lives until `released`."""
        handles = self.nodes.handles
        handles[ino] = handles.get(ino, 0) + 1

    def released(self, ino: int) -> None:
        handles = self.nodes.handles
        left = handles.get(ino, 0) - 1
        if left > 0:
            handles[ino] = left
            return
        handles.pop(ino, None)
        self.files.closed(ino)
        self.nodes.let_go(ino)

    def set_attributes(
        self,
        ino: int,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        size: int | None = None,
        atime: int | None = None,
        mtime: int | None = None,
    ) -> Inode:
        """Change what is given, times in nanoseconds; ctime becomes now."""
        if size is not None:
            self.files.truncate(ino, size)
        with self.nodes.change() as txn:
            node = self.files.attributes(ino)
            if mode is not None:
                node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
            if uid is not None:
                node.uid = uid
            if gid is not None:
                node.gid = gid
            if atime is not None:
                node.atime = atime
            if mtime is not None:
                node.mtime = mtime
            node.ctime = time.time_ns()
            if atime is not None or mtime is not None:
                self.files.set_times(ino, node)
            self.nodes.save(txn, ino, node)
        return node

    def fallocate(self, ino: int, mode: int, offset: int, length: int) -> None:
        self.files.fallocate(ino, mode, offset, length)

    def sync(self, ino: int) -> None:
        """fsync of a file or a directory."""
        self.files.sync(ino)

    def statfs(self) -> Statfs:
        disk = os.statvfs(self.store.path)
        used = self.used_bytes()
        left = min(max(0, self.options.max_size - used), disk.f_bavail * disk.f_frsize)
        return Statfs(
            blocks=self.options.max_size // BLOCK,
            free=left // BLOCK,
            files=disk.f_files,
            files_free=disk.f_ffree,
        )

    def used_bytes(self) -> int:
        """Stored bytes, everything counted: volumes, catalog, journal."""
        catalog = self.store.catalog.statistics()
        return self.store.objects.totals().volumes + catalog["bytes"] + catalog["journal_bytes"]

    def condemn(self, ino: int) -> None:
        """Its bytes cannot be trusted: drop every name of it, so that whoever needs it makes it again."""
        log.error("inode %d is dropped: its bytes cannot be trusted", ino)
        for parent, name in self.tree.drop_files({ino}):
            self.on_dropped(parent, name)

    # --- beside the requests ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Seal everything that waits and put it all on disk: what an unmount waits for."""
        while self.files.seal_next(0):
            pass
        self.store.fold()

    # --- at mount -----------------------------------------------------------------------------------------------------

    def _make_namespaces(self) -> None:
        for name in NAMESPACES:
            ino = self.tree.find(ROOT_INO, name.encode())
            if ino is None:
                ino, _ = self.tree.create(
                    ROOT_INO, name.encode(), stat.S_IFDIR | 0o1777, self.options.uid, self.options.gid
                )
            self.tree.protected.add(ino)

    def _drop_orphans(self) -> None:
        for ino in list(self.nodes.orphans):
            self.nodes.let_go(ino)

    def _drop_unsynced(self) -> None:
        """After a power loss a file that was never sealed nor synced may be short or empty: it is as if never written.

        A cache can miss; it must not serve half a file under a name that says it is whole.
        """
        if not self.store.lost_power:
            return
        doubtful = {ino for ino, node in self.files.unsealed() if not node.flags & (Inode.MUTABLE | Inode.SYNCED)}
        if doubtful:
            self.tree.drop_files(doubtful)
