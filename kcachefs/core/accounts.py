"""Accounts: how many bytes each user's inodes cost, kept exact in memory with every commit of the catalog.

Only mounts with `--max-size-per-uid` keep them. An inode is on its owner's account from the transaction that makes it
until the one that deletes it, whatever its name and whether or not it has one. It costs:

- `INODE_BYTES` for each name, or once if it has none; that covers the records and `FREE_BYTES` of content;
- the size of its bytes, holes included, until they are sealed; after that, the compressed size of the object.
  Equal bytes of two users are on both accounts, as if nothing were shared;
- the object that it keeps in case of a power cut;
- twice the length of a symbolic link's target, because LMDB keeps a long record in whole pages.

A range of uids can be one *tenant* with one account (`--tenant-range`). An inode that was evicted while it was open is
on `NOBODYS_ACCOUNT`, because the process that holds it open need not be its owner's; the evictor bounds that account.

When a mount starts, the inodes are counted in pieces, so that a large store does not delay it. Until the count is
complete, totals are too small, never too large.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from kcachefs.errors import NoSpace
from kcachefs.store import Store
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.journal import Changes
from kcachefs.store.object_records import ObjectRecord, object_key
from kcachefs.store.records import (
    INODE_DIGEST,
    INODE_FLAGS,
    INODE_HEAD,
    INODE_PLACE,
    INODE_SIZE,
    INODE_TYPE,
    INODE_UID,
    NO_DIGEST,
    Content,
    Inode,
    inode_key,
    number_of,
)

INODE_BYTES = 1024
FREE_BYTES = 512
"""Bytes of a file that cost nothing extra: others may write them into a file without spending its owner's quota."""
NOBODYS_ACCOUNT = 0xFFFFFFFF
"""The account of inodes that were evicted while they were in use."""
_BLOCK = 4096
_INODES = ord("i")
_PAGE = 256
"""Inodes counted at a time, while requests wait."""


class Charge(NamedTuple):
    """What one inode costs, and which account pays. It leaves out spooled bytes, which change without a commit."""

    account: int
    held: int
    spool: int = -1
    """The number of its spool file."""
    size: int = 0
    """The bytes in the spool file, according to the inode's record."""


class Accounts:
    """Totals by account. Usable from any thread; it observes the catalog."""

    def __init__(self, store: Store, account_of: Callable[[int], int]) -> None:
        """`account_of`: gives a user's account, which is their own or that of the tenant whose range includes them."""
        self._store = store
        self._catalog = store.catalog
        self.of = account_of
        self._lock = threading.Lock()
        self._totals: Counter[int] = Counter()
        self._spooled: dict[int, tuple[int, int]] = {}
        """By inode: the account that pays for its spool file, and the bytes in that file."""
        self._wanted: Counter[int] = Counter()
        self._reserved: Counter[int] = Counter()
        self._counted_below = self._count_up_to = 0
        """Inodes from the first to the second number are not counted yet."""

    def total(self, account: int) -> int:
        """The bytes on an account, including those that writes in progress are about to add."""
        return self._totals.get(account, 0) + self._reserved.get(account, 0)

    def cost(self, ino: int) -> int:
        """What an inode costs, including the bytes in its spool file."""
        charge = self._charge(self._catalog.get(inode_key(ino)), self._length)
        spooled = self._spooled.get(ino)
        return (charge.held if charge is not None else 0) + (spooled[1] if spooled is not None else 0)

    def totals(self) -> dict[int, int]:
        """All accounts that hold anything."""
        with self._lock:
            return {account: total for account, total in self._totals.items() if total > 0}

    # --- writes that wait for room ------------------------------------------------------------------------------------

    def wanted(self, account: int) -> int:
        """Bytes that waiting writes need and that no eviction has freed yet."""
        return self._wanted[account]

    @contextlib.contextmanager
    def wanting(self, account: int, size: int) -> Iterator[None]:
        """The scope in which a write waits: the evictor makes this much room for it, if it can."""
        self._add(self._wanted, account, size)
        try:
            yield
        finally:
            self._add(self._wanted, account, -size)

    def reserve(self, account: int, size: int, limit: int) -> bool:
        """Take room for a write; False if there is not enough. Once the write is made, `release` gives it back."""
        with self._lock:
            if self.total(account) + size > limit:
                return False
            self._reserved[account] += size
            return True

    def release(self, account: int, size: int) -> None:
        self._add(self._reserved, account, -size)

    # --- spool files, which grow without a commit ---------------------------------------------------------------------

    def resized(self, ino: int, size: int, *, grown: bool = False) -> None:
        """A spool file has `size` bytes now; `grown`: at least that many."""
        with self._lock:
            if (found := self._spooled.get(ino)) is not None:
                self._spool(ino, found[0], max(size, found[1]) if grown else size)

    def _spool(self, ino: int, account: int, size: int) -> None:
        self._unspool(ino)
        self._spooled[ino] = account, size
        self._totals[account] += size

    def _unspool(self, ino: int) -> None:
        if (found := self._spooled.pop(ino, None)) is not None:
            self._totals[found[0]] -= found[1]

    # --- commits ------------------------------------------------------------------------------------------------------

    def prepare(self, changes: Changes) -> list[tuple[int, Charge | None, Charge | None]]:
        """The inodes whose cost a commit changes, each with its cost before and after."""
        moves: list[tuple[int, Charge | None, Charge | None]] = []
        for key, raw in changes.items():
            if key[0] == _INODES:
                ino = number_of(key)
                if self._counted_below <= ino < self._count_up_to:
                    continue
                old = self._catalog.get(key)
                is_kept = old is not None and raw is not None and _costs_the_same(old, raw)
                if is_kept and not _may_be_resized(changes, raw):
                    continue
                before = self._charge(old, self._length)
                after = self._charge(raw, partial(self._length_after, changes))
                if before != after:
                    moves.append((ino, before, after))
        return moves

    def _length_after(self, changes: Changes, digest: bytes) -> int:
        key = object_key(digest)
        return _length(changes[key]) if key in changes else self._length(digest)

    def done(self, prepared: object) -> None:
        if prepared:
            with self._lock:
                for ino, before, after in prepared:  # type: ignore[attr-defined]
                    self._apply(ino, before, after)

    def _apply(self, ino: int, before: Charge | None, after: Charge | None) -> None:
        if before is not None:
            self._totals[before.account] -= before.held
        if after is not None:
            self._totals[after.account] += after.held
        if after is None or after.spool < 0:
            self._unspool(ino)
        else:
            found = self._spooled.get(ino) if before is not None and before.spool == after.spool else None
            self._spool(ino, after.account, found[1] if found is not None else after.size)

    def _charge(self, raw: bytes | None, length: Callable[[bytes], int]) -> Charge | None:
        if raw is None:
            return None
        try:
            mode, nlink, uid, _, _, size, _, _, _, _, _, spool, content, flags, digest = Inode.CODEC.unpack_from(raw)
        except struct.error:
            return None  # the record is damaged, and the next read of it reports that
        held = length(digest) if digest != NO_DIGEST else 0
        if content == Content.SLOT:
            held += size if size <= FREE_BYTES else -(-size // _BLOCK) * _BLOCK
        elif stat.S_ISLNK(mode):
            held += 2 * size
        names = 1 if stat.S_ISDIR(mode) else max(1, nlink)
        account = NOBODYS_ACCOUNT if flags & Inode.DOOMED else self.of(uid)
        cost = names * INODE_BYTES + max(0, held - FREE_BYTES)
        return Charge(account, cost, spool, size) if content == Content.SPOOL else Charge(account, cost)

    def _length(self, digest: bytes) -> int:
        return _length(self._catalog.get(object_key(digest)))

    def _add(self, counter: Counter[int], account: int, size: int) -> None:
        with self._lock:
            counter[account] += size
            if not counter[account]:
                del counter[account]

    # --- counting the inodes that exist -------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        return self._counted_below >= self._count_up_to

    def start(self, next_ino: int) -> None:
        """Begin to count. Inodes from `next_ino` on do not exist yet, and are counted when they are made."""
        with contextlib.suppress(NoSpace):
            self._store.fold()
        is_new = self._catalog.get(inode_key(ROOT_INO)) is None  # then even the root is made later
        with self._catalog.lock:
            self._count_up_to = 0 if is_new else next_ino
            self._catalog.observe(self)

    def count(self, seconds: float) -> None:
        """Count on for a while."""
        until = time.monotonic() + seconds
        while not self.is_complete:
            with self._catalog.lock:
                self._count_page()
            if time.monotonic() > until:
                return

    def _count_page(self) -> None:
        rows = self._catalog.page(b"i", inode_key(self._counted_below), _PAGE)
        if not rows:
            self._counted_below = self._count_up_to
            return
        for key, _ in rows:
            ino = number_of(key)
            if ino >= self._count_up_to:
                break
            charge = self._charge(self._catalog.get(key), self._length)
            if charge is not None and charge.spool >= 0:
                charge = charge._replace(size=self._spool_size(charge))
            with self._lock:
                self._apply(ino, None, charge)
        self._counted_below = min(number_of(rows[-1][0]) + 1, self._count_up_to)

    def _spool_size(self, charge: Charge) -> int:
        try:
            return os.stat(self._store.spool.path(charge.spool)).st_size
        except FileNotFoundError:
            return 0

    def recounted(self) -> dict[int, int]:
        """The totals counted from scratch: `totals` should return the same. For tests and for checking it."""
        fresh = Accounts(self._store, self.of)
        with self._catalog.lock:
            for key in self._catalog.keys(b"i"):
                charge = self._charge(self._catalog.get(key), self._length)
                if charge is not None and charge.spool >= 0:
                    charge = charge._replace(size=self._spool_size(charge))
                fresh._apply(number_of(key), None, charge)
        return fresh.totals()


def _costs_the_same(old: bytes, new: bytes) -> bool:
    """Whether two records of an inode surely cost the same, as most do. False means that their costs may differ."""
    if old[INODE_TYPE] & 0xF0 == new[INODE_TYPE] & 0xF0 == 0x40:  # a folder
        return old[INODE_UID] == new[INODE_UID] and old[INODE_FLAGS] == new[INODE_FLAGS]
    return (
        old[INODE_HEAD] == new[INODE_HEAD]
        and old[INODE_SIZE] == new[INODE_SIZE]
        and old[INODE_PLACE] == new[INODE_PLACE]
    )


def _may_be_resized(changes: Changes, raw: bytes | None) -> bool:
    """Whether the object of an inode changes in the same commit: repacking makes it shorter."""
    return raw is not None and object_key(raw[INODE_DIGEST]) in changes


def _length(raw: bytes | None) -> int:
    return ObjectRecord.unpack(raw).length if raw is not None else 0
