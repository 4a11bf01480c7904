"""The filesystem's model: inodes, names, bytes, lifetimes. Synchronous, keyed by inode; knows no engine and no FUSE.

Concurrency: one lock, the catalog's. The engine's thread answers requests, the sealer and the evictor work alongside;
each changes anything only inside `Nodes.change()`, which holds that lock. Most reads take no lock: they see each record
whole, and a name whose inode went away between two looks is a name that went away.
docs/concurrency.md lists every lock, and what is read without one.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcachefs.core.filesystem import Filesystem as Filesystem
    from kcachefs.core.options import FsOptions as FsOptions


def __getattr__(name: str) -> object:
    """Loaded on first use: most commands need a table of this package and not the filesystem."""
    if name not in ("Filesystem", "FsOptions"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("kcachefs.core.filesystem"), name)
