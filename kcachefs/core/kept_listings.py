"""Listings of large folders that are kept for the next time, so that a listing with nothing cached is quick.

Reading a folder from the catalog takes the interpreter some 2 µs a name. Once somebody has listed a folder of
`NAMES_MIN` names or more, and it has rested since its last change, its listing is written down in the kernel's own
layout (`store/listings.py`) and sent as it is from then on, until the folder changes.
"""

from __future__ import annotations

import logging
import time

from kcachefs.bounded import BoundedDict
from kcachefs.core.nodes import Nodes
from kcachefs.core.tree import DOTDOT, Row, Tree
from kcachefs.errors import KcachefsError
from kcachefs.store import Store
from kcachefs.store.listings import LISTING_MAX, Listing

log = logging.getLogger(__name__)

NAMES_MIN = 64
"""Names of a folder whose listing is worth keeping."""
REST_NS = 2 * 10**9
"""How long a folder must not have changed: one that is being filled or emptied changes again at once."""
_WANTED_MAX = 16
_PAGE = 256
_RECORD_BYTES = 44
"""What a name takes in a listing at least, with its place in the index."""


class KeptListings:
    """The kept listings of one filesystem. The engine's thread asks for them, another writes them down."""

    def __init__(self, store: Store, nodes: Nodes, tree: Tree) -> None:
        self._listings = store.listings
        self._nodes = nodes
        self._tree = tree
        self._wanted: BoundedDict[int, None] = BoundedDict(_WANTED_MAX)
        """Folders that were listed name by name."""

    def part(self, folder: int, cookie: int, size: int) -> bytes | None:
        """What the kernel is to be told of a folder behind `cookie`, in `size` bytes; None if it is not known."""
        node = self._nodes.get(folder)
        if node.size < NAMES_MIN:
            return None
        listing = self._listings.get(folder)
        if listing is not None and listing.is_of(node.ctime, node.size):
            return listing.part(cookie, size)
        self._wanted[folder] = None
        return None

    def keep(self) -> None:
        """Write down the listings that were asked for in vain, of folders that rest."""
        for folder in list(self._wanted):
            try:
                if self._is_done_with(folder):
                    self._wanted.pop(folder, None)
            except (KcachefsError, OSError) as error:  # it is gone, damaged, or the disk is full
                self._wanted.pop(folder, None)
                log.debug("the listing of folder %d is not kept: %s", folder, error)

    def _is_done_with(self, folder: int) -> bool:
        node = self._nodes.get(folder)
        changed, names = node.ctime, node.size
        if names < NAMES_MIN or names * _RECORD_BYTES > LISTING_MAX:
            return True
        if 0 <= time.time_ns() - changed < REST_NS:
            return False
        rows: list[Row] = []
        while page := self._tree.listing(folder, rows[-1][0] if rows else DOTDOT, _PAGE):
            rows += page
            time.sleep(0)  # somebody's request may be waiting for the interpreter
        node = self._nodes.get(folder)
        if (node.ctime, node.size) != (changed, names):
            return False
        if len(rows) == names:  # not if a name's record is damaged: that one may come back
            self._listings.put(Listing.of(folder, node.parent, changed, rows))
        return True
