"""Files in a store, made the way the filesystem above makes them but in few lines: one directory, the root."""

from __future__ import annotations

import os
import stat

from kcachefs.errors import ObjectMissing
from kcachefs.store import Store
from kcachefs.store.catalog import Transaction
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.records import (
    META_INO,
    META_SPOOL,
    NO_DIGEST,
    Content,
    Inode,
    inode_key,
    name_key,
    name_of,
    names_prefix,
    pack_name,
    pack_number,
    spool_key,
    unpack_name,
    unpack_number,
)

_FILE = stat.S_IFREG | 0o644


def new_inode(mode: int, content: int, *, size: int = 0, spool: int = 0, digest: bytes = NO_DIGEST) -> Inode:
    nlink = 2 if stat.S_ISDIR(mode) else 1
    return Inode(mode, nlink, 0, 0, 0, size, 0, 0, 0, ROOT_INO, 0, spool, content, 0, digest)


def make_root(store: Store) -> None:
    if store.catalog.get(inode_key(ROOT_INO)) is None:
        with store.transaction() as txn:
            txn.put(inode_key(ROOT_INO), new_inode(stat.S_IFDIR | 0o755, Content.NONE).pack())
            txn.put(META_INO, pack_number(ROOT_INO + 1))


def create(store: Store, name: bytes, data: bytes) -> int:
    """A sealed file: its object, its inode and its name appear in one transaction."""
    while True:
        staged = store.objects.stage(data)
        try:
            with store.transaction() as txn:
                store.objects.link(txn, staged)
                inode = new_inode(_FILE, Content.OBJECT, size=len(data), digest=staged.digest)
                return _enter(txn, name, inode)
        except ObjectMissing:
            continue
        finally:
            store.objects.settle(staged)


def create_spooled(store: Store, name: bytes, data: bytes) -> int:
    """A file whose bytes are still in the spool."""
    number = store.spool.take() or _next(store, META_SPOOL)
    fd = store.spool.open(number, create=True)
    try:
        os.pwrite(fd, data, 0)
    finally:
        os.close(fd)
    with store.transaction() as txn:
        ino = _enter(txn, name, new_inode(_FILE, Content.SPOOL, spool=number))
        txn.put(spool_key(number), pack_number(ino))
    return ino


def make_directory(store: Store, name: bytes) -> int:
    with store.transaction() as txn:
        return _enter(txn, name, new_inode(stat.S_IFDIR | 0o755, Content.NONE))


def remove(store: Store, name: bytes) -> None:
    with store.transaction() as txn:
        key = name_key(ROOT_INO, name)
        raw = txn.get(key)
        assert raw is not None
        ino, _ = unpack_name(raw)
        inode = read_inode(txn, ino)
        if inode.content == Content.OBJECT:
            assert store.objects.unlink(txn, inode.digest)
        elif inode.content == Content.SPOOL:
            txn.delete(spool_key(inode.spool))
        txn.delete(key)
        txn.delete(inode_key(ino))
        _count(txn, -1, 0)


def read(store: Store, name: bytes) -> bytes | None:
    """A file's bytes, or None when there is no such name."""
    raw = store.catalog.get(name_key(ROOT_INO, name))
    if raw is None:
        return None
    inode = Inode.unpack(store.catalog.get(inode_key(unpack_name(raw)[0])) or b"")
    if inode.content == Content.SPOOL:
        return store.spool.path(inode.spool).read_bytes()
    return store.objects.get(inode.digest)


def listing(store: Store) -> set[bytes]:
    return {name_of(key)[1] for key, _ in store.catalog.scan(names_prefix(ROOT_INO))}


def read_inode(source: Store | Transaction, ino: int) -> Inode:
    raw = source.get(inode_key(ino)) if isinstance(source, Transaction) else source.catalog.get(inode_key(ino))
    assert raw is not None
    return Inode.unpack(raw)


def _enter(txn: Transaction, name: bytes, inode: Inode) -> int:
    ino = unpack_number(txn.get(META_INO) or b"")
    txn.put(META_INO, pack_number(ino + 1))
    txn.put(inode_key(ino), inode.pack())
    txn.put(name_key(ROOT_INO, name), pack_name(ino, inode.mode))
    _count(txn, 1, int(inode.is_dir))
    return ino


def _count(txn: Transaction, names: int, folders: int) -> None:
    root = read_inode(txn, ROOT_INO)
    root.size += names
    root.nlink += folders
    txn.put(inode_key(ROOT_INO), root.pack())


def _next(store: Store, counter: bytes) -> int:
    with store.transaction() as txn:
        raw = txn.get(counter)
        number = unpack_number(raw) if raw is not None else 1
        txn.put(counter, pack_number(number + 1))
    return number
