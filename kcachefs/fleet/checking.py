"""Tries every operation that a fleet needs on a bucket, and says which ones work. Leaves one or two tiny objects."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from kcachefs.errors import FleetError, FleetMissing, FleetUnreachable
from kcachefs.fleet.bucket_layout import OBJECTS, SETTINGS, Layout
from kcachefs.fleet.object_storage import Storage

READ, PUBLISH, GC = "read", "publish", "gc"
ROLES = (READ, PUBLISH, GC)
"""The ways to use a bucket; each role needs everything that the roles before it need."""
_CLOCKS_APART = 300.0


class Tried(NamedTuple):
    """An operation that was tried."""

    operation: str
    role: str
    """The role that needs it; empty if none does."""
    works: bool
    said: str = ""


def check(storage: Storage, layout: Layout) -> Iterator[Tried]:
    """Try each operation and yield its outcome. Stops early if the bucket does not answer or does not exist."""
    try:
        storage.folders(OBJECTS)
        yield Tried("list", READ, True)
    except (FleetMissing, FleetUnreachable) as error:
        yield Tried("list", READ, False, str(error))
        return
    except FleetError as error:
        yield Tried("list", READ, False, str(error))
    yield _tried("read", READ, lambda: _read_something(storage))
    key, content = layout.claim(f"check-{secrets.token_hex(8)}"), secrets.token_bytes(64)
    written = _tried("write", PUBLISH, partial(storage.put, key, content))
    yield written
    if not written.works:
        return
    yield _tried("read back what was written", PUBLISH, lambda: _read_back(storage, key, content))
    yield _tried("find it in a listing", PUBLISH, lambda: _listed(storage, layout, key))
    yield _tried("write only what is absent", "", lambda: _conditional(storage, key))
    yield _tried("copy", PUBLISH, partial(storage.copy, key, f"{key}-copy"))
    yield _tried("clock", "", lambda: _clock(storage, key))
    yield _tried("delete", GC, partial(storage.delete, [key, f"{key}-copy"]))


def _tried(operation: str, role: str, attempt: Callable[[], object]) -> Tried:
    try:
        said = attempt()
    except FleetError as error:
        return Tried(operation, role, False, str(error))
    return Tried(operation, role, True, said if isinstance(said, str) else "")


def _read_something(storage: Storage) -> str:
    try:
        storage.get(SETTINGS, limit=1 << 16)
    except FleetMissing:
        return "the bucket has no settings: run kcachefs fleet init"
    return ""


def _read_back(storage: Storage, key: str, content: bytes) -> str:
    if storage.get(key, limit=1 << 10).content != content:
        raise FleetError("other bytes came back than were written")
    return ""


def _listed(storage: Storage, layout: Layout, key: str) -> str:
    if key not in {one.key for one in storage.objects(layout.claims)}:
        raise FleetError("a listing does not show what was just written; others will see it late")
    return ""


def _conditional(storage: Storage, key: str) -> str:
    """Whether conditional writes work. No role needs them, but it is good to know."""
    if storage.put(key, storage.get(key, limit=1 << 10).content, if_absent=True):
        return "the store ignores the condition: now and then two nodes will publish the same"
    return ""


def _clock(storage: Storage, key: str) -> str:
    apart = time.time() - storage.head(key).modified
    if abs(apart) < _CLOCKS_APART:
        return ""
    return (
        f"this machine is {abs(apart):,.0f} s {'ahead of' if apart > 0 else 'behind'} the store; nothing depends on it"
    )
