"""Keeps the listings of large folders, so that listing such a folder is quick even if nothing is cached.

Reading a folder from the catalog takes the interpreter a while for each name. Once somebody has listed a folder of
`NAMES_MIN` names or more, and the folder has rested since its last change, its listing is written down in the kernel's
own layout (`store/listings.py`). From then on it is sent unchanged, until the folder changes.
"""

from __future__ import annotations

import logging
import time

from kcachefs.bounded import BoundedDict
from kcachefs.core.nodes import Nodes
from kcachefs.core.room import Room
from kcachefs.core.tree import DOTDOT, Row, Tree
from kcachefs.errors import KcachefsError
from kcachefs.store import Store
from kcachefs.store.listings import LISTING_MAX, Listing

log = logging.getLogger(__name__)

NAMES_MIN = 64
"""A folder with at least this many names has a listing worth keeping."""
REST_NS = 2 * 10**9
"""How long a folder must be unchanged: a folder that is being filled or emptied will soon change again."""
_WANTED_MAX = 16
_PAGE = 256
_UNFIT_MAX = 256
_SHARE = 256
"""All listings take at most this part of the quota."""
_RECORD_BYTES, _OTHER_BYTES = 36, 256
"""The bytes that a name takes in a listing besides its own, and an upper bound for the rest of a listing."""


class KeptListings:
    """The kept listings of one filesystem. The engine's thread asks for them, and another thread writes them down."""

    def __init__(self, store: Store, nodes: Nodes, tree: Tree, room: Room) -> None:
        self._catalog = store.catalog
        self._listings = store.listings
        self._nodes = nodes
        self._tree = tree
        self._room = room
        self._wanted: BoundedDict[int, None] = BoundedDict(_WANTED_MAX)
        """Folders that were listed name by name."""
        self._unfit: BoundedDict[int, int] = BoundedDict(_UNFIT_MAX)
        """Folders whose listings cannot be kept, and when they last changed."""
        self._tidy()

    def part(self, folder: int, cookie: int, size: int) -> bytes | None:
        """A folder's kept listing after `cookie`, in at most `size` bytes; None if no current listing is kept."""
        node = self._nodes.get(folder)
        if node.size < NAMES_MIN or self._catalog.damaged:  # a name with a damaged record is gone, and not listed
            return None
        listing = self._listings.get(folder)
        if listing is not None and listing.is_of(node.ctime, node.size):
            return listing.part(cookie, size)
        if self._unfit.get(folder) != node.ctime:
            self._wanted[folder] = None
        return None

    def keep(self) -> None:
        """Write down the listings of folders that were listed name by name and have rested since.

        While room is short, drop all kept listings instead.
        """
        if not self._room.has_room.is_set():
            self._listings.trim(0)
            return
        for folder in list(self._wanted):
            try:
                if self._is_done_with(folder):
                    self._wanted.pop(folder, None)
            except (KcachefsError, OSError) as error:  # the folder is gone or damaged, or the disk is full
                self._wanted.pop(folder, None)
                log.debug("the listing of folder %d is not kept: %s", folder, error)

    def _is_done_with(self, folder: int) -> bool:
        node = self._nodes.get(folder)
        changed, names = node.ctime, node.size
        if names < NAMES_MIN:
            return True
        if 0 <= time.time_ns() - changed < REST_NS:
            return False
        rows = self._rows(folder)
        node = self._nodes.get(folder)
        if (node.ctime, node.size) != (changed, names):
            return False
        if rows is None or len(rows) != names:  # the listing is too long, or the record of a name is damaged
            self._unfit[folder] = changed
            return True
        self._listings.put(Listing.of(folder, node.parent, changed, rows))
        self._tidy()
        return True

    def _rows(self, folder: int) -> list[Row] | None:
        """The names of a folder; None if there are too many to be kept."""
        rows: list[Row] = []
        size = 0
        while page := self._tree.listing(folder, rows[-1][0] if rows else DOTDOT, _PAGE):
            rows += page
            size += sum(_RECORD_BYTES + (len(name) + 7) // 8 * 8 for _, name, _, _ in page)
            if size > LISTING_MAX - _OTHER_BYTES:
                return None
            time.sleep(0)  # a request may be waiting for the interpreter
        return rows

    def _tidy(self) -> None:
        """Remove the oldest listings if all of them take too much of the quota, and the listings of deleted folders."""
        self._listings.trim(self._room.limits.max_size // _SHARE)
        for folder in self._listings.folders():
            if not self._nodes.exists(folder):
                self._listings.remove(folder)
