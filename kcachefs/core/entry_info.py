"""The reports of commands on entries. Commands import this module without the filesystem."""

from __future__ import annotations

import msgspec


class EntryInfo(msgspec.Struct, kw_only=True, frozen=True):
    """An entry as people see it. Times are seconds since 1970."""

    path: str
    name: str
    namespace: str
    files: int
    plain_bytes: int
    stored_bytes: int
    hits: int
    created: float
    used: float
    pinned: bool
    uid: int
    """The user who made it."""
    entry: int


class EvictionProgress(msgspec.Struct, kw_only=True, frozen=True):
    """How far an evicting command has come."""

    done: int
    """Entries that had their turn."""
    entries: int
    """All entries chosen; 0 while no such command is at work."""


class Outcome(msgspec.Struct, kw_only=True, frozen=True):
    """What a command did, or would have done with `dry_run`."""

    entries: list[str] = []
    stored_bytes: int = 0
    refused: list[str] = []
    """Entries that are in use or pinned."""
    gone: list[str] = []
    """Entries that somebody else evicted or deleted first."""
    freed_bytes: int = 0
    dry_run: bool = False
