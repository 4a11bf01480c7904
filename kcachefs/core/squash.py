"""Squash: everything appears with one owner, or with one mask of modes, whoever made it.

For containers whose users have no number of their own: `--gid 0 --umask 002` lets any user in group 0 write, as
OpenShift's arbitrary users need; `--uid 1000` lets one user own it all. The store remembers who really made a file.
"""

from __future__ import annotations

import copy
import stat

from kcachefs.core.sharing import Sharing
from kcachefs.store.records import Inode


def squashed(sharing: Sharing, node: Inode, withholds_writing: bool) -> Inode:
    """An inode with the owner and mode that the mount shows for everything; `node` is what its policy shows."""
    seen = copy.copy(node)
    seen.uid = node.uid if sharing.uid is None else sharing.uid
    seen.gid = node.gid if sharing.gid is None else sharing.gid
    if sharing.umask is not None and not stat.S_ISLNK(node.mode):
        runs = node.is_dir or node.mode & 0o111
        allowed = (0o777 if runs else 0o666) & ~sharing.umask
        sticky = node.mode & stat.S_ISVTX if sharing.uid is None else 0
        if node.is_file and withholds_writing:
            allowed &= node.mode | ~0o222  # a mask does not give back what the policy took away
        seen.mode = stat.S_IFMT(node.mode) | sticky | allowed
    return seen
