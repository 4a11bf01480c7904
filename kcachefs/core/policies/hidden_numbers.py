"""Hidden numbers: inodes and users as a private mount shows them, so that no number reveals what others do.

Inodes of the catalog are numbered in order of creation, so their numbers would count everybody's files. Under `private`
they are shown through a permutation, and the names of the users' folders are derived from their uids. Both use a key
that the store keeps, so that numbers and names are the same after a remount or in the next worker. The permutation is a
Feistel network, whose rounds undo themselves in reverse order whatever the round function is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

from kcachefs.errors import RecordDamaged
from kcachefs.store import Store
from kcachefs.store.inode_numbers import ALIAS_BASE, ROOT_INO, SHOWN_BASE, VIRTUAL_BASE
from kcachefs.store.records import META_PRIVATE

_KEY_BYTES = 32
_ROUNDS = 4


class HiddenNumbers:
    """Shows and recognizes the numbers of one store. Any thread."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.hide = lru_cache(16384)(self._hide)

    def _hide(self, ino: int) -> int:
        """The number that is shown for an inode."""
        if ino == ROOT_INO or VIRTUAL_BASE <= ino < ALIAS_BASE:
            return ino
        if ino < VIRTUAL_BASE:
            return SHOWN_BASE | self._permute(ino, 30, range(_ROUNDS))
        return ALIAS_BASE | self._permute(ino & ~ALIAS_BASE, 32, range(_ROUNDS))

    def real(self, number: int) -> int:
        """The inode for which a number is shown."""
        if number == ROOT_INO or VIRTUAL_BASE <= number < ALIAS_BASE:
            return number
        if number < VIRTUAL_BASE:
            return self._permute(number & ~SHOWN_BASE, 30, reversed(range(_ROUNDS)))
        return ALIAS_BASE | self._permute(number & ~ALIAS_BASE, 32, reversed(range(_ROUNDS)))

    def folder_of(self, uid: int) -> bytes:
        """The name of a user's folder, which nobody else can guess."""
        return blake2b(b"user %d" % uid, key=self._key, digest_size=8).hexdigest().encode()

    def _permute(self, number: int, low_bits: int, rounds: Iterable[int]) -> int:
        """Even rounds change the upper bits by the lower ones, odd rounds the lower by the upper ones."""
        high, low = number >> low_bits, number & ((1 << low_bits) - 1)
        high_mask = (1 << 30) - 1 if low_bits == 30 else (1 << 31) - 1
        for index in rounds:
            if index % 2:
                low ^= self._noise(index, high) & ((1 << low_bits) - 1)
            else:
                high ^= self._noise(index, low) & high_mask
        return high << low_bits | low

    def _noise(self, index: int, half: int) -> int:
        message = bytes((index,)) + half.to_bytes(8, "little")
        return int.from_bytes(blake2b(message, key=self._key, digest_size=4).digest(), "little")


def hidden_numbers(store: Store) -> HiddenNumbers:
    """The hidden numbers of a store; makes a key if the store has none, or has lost it."""
    try:
        key = store.catalog.get(META_PRIVATE)
    except RecordDamaged:
        key = None
    if key is None:
        key = os.urandom(_KEY_BYTES)
        with store.transaction() as txn:
            txn.put(META_PRIVATE, key)
    return HiddenNumbers(key)
