"""The filesystem's model: inodes, names, bytes, lifetimes. Synchronous, keyed by inode; knows no engine and no FUSE.

Concurrency: one lock, the catalog's. The engine's thread answers requests, the sealer and the evictor work beside it;
each changes anything only inside `Nodes.change()`, which holds that lock. Reads take no lock: they see each record
whole, and a name whose inode went away between two looks is a name that went away.
"""

from kcachefs.core.filesystem import Filesystem, FsOptions

__all__ = ["Filesystem", "FsOptions"]
