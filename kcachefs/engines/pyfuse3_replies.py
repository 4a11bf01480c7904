"""Turns the filesystem's results into replies for pyfuse3. `replies.py` does the same for the direct engine."""

from __future__ import annotations

import pyfuse3

from kcachefs.core.options import FOREVER_SECONDS as FOREVER
from kcachefs.core.options import PREFERRED_SIZE, Statfs
from kcachefs.store.records import Inode


def as_entry(ino: int, node: Inode, seconds: int) -> pyfuse3.EntryAttributes:
    """An inode, and for how many seconds its name can be trusted."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = ino
    entry.entry_timeout, entry.attr_timeout = seconds, FOREVER
    entry.st_mode = node.mode
    entry.st_nlink = node.nlink
    entry.st_uid, entry.st_gid, entry.st_rdev = node.uid, node.gid, node.rdev
    entry.st_size = 4096 if node.is_dir else node.size
    entry.st_blksize = PREFERRED_SIZE
    entry.st_blocks = (entry.st_size + 511) >> 9
    entry.st_atime_ns, entry.st_mtime_ns, entry.st_ctime_ns = node.atime, node.mtime, node.ctime
    return entry


def as_handle(number: int, *, direct: bool = False) -> pyfuse3.FileInfo:
    """An open file; `direct` bypasses the kernel's page cache."""
    return pyfuse3.FileInfo(fh=number, keep_cache=True, direct_io=direct)


def as_statfs(state: Statfs) -> pyfuse3.StatvfsData:
    reply = pyfuse3.StatvfsData()
    reply.f_bsize = reply.f_frsize = state.block_size
    reply.f_blocks = state.blocks
    reply.f_bfree = reply.f_bavail = state.free
    reply.f_files = state.files
    reply.f_ffree = reply.f_favail = state.files_free
    reply.f_namemax = state.name_max
    return reply
