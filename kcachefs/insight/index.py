"""Entries' sketches, kept after one reading: an SQLite file in the user's cache folder, which may be deleted.

A damaged or foreign file is replaced; where no file can be written, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from kcachefs import config
from kcachefs.core.insight_info import MadeEntry
from kcachefs.errors import UsageError
from kcachefs.insight.library_entries import LibraryEntry
from kcachefs.insight.sketches import GraphSketch, HelperSketch, KernelSketch

FORMAT = 6
"""Changes whenever a sketch's content changes, or something is explained in another way."""
_MADE = """
CREATE TABLE IF NOT EXISTS sketches (
    path TEXT PRIMARY KEY, stamp TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, data BLOB NOT NULL
) WITHOUT ROWID
"""
_EXPLAINED = """
CREATE TABLE IF NOT EXISTS explained (path TEXT PRIMARY KEY, stamp TEXT NOT NULL, data BLOB NOT NULL) WITHOUT ROWID
"""
_QUERY_MAX = 500
INDEXES_MAX = 100
"""How many caches keep an index: the ones read last."""

Sketch = KernelSketch | HelperSketch | GraphSketch | LibraryEntry | str
"""The short form of an entry; a text says why the entry cannot be read."""

_DECODERS: dict[str, Callable[[bytes], Sketch]] = {
    "kernel": msgspec.msgpack.Decoder(KernelSketch).decode,
    "helper": msgspec.msgpack.Decoder(HelperSketch).decode,
    "graph": msgspec.msgpack.Decoder(GraphSketch).decode,
    "library": msgspec.msgpack.Decoder(LibraryEntry).decode,
    "garbled": msgspec.msgpack.Decoder(str).decode,
}


def stamp_of(entry: MadeEntry) -> str:
    """Changes whenever an entry's files do."""
    return f"{entry.created:.3f} {entry.ended or 0:.3f} {entry.rewritten or 0:.3f} {entry.files} {entry.plain_bytes}"


class Index:
    """The sketches of one cache."""

    def __init__(self, place: str, folder: Path | None = None) -> None:
        name = f"{hashlib.blake2b(os.fsencode(place), digest_size=12).hexdigest()}.sqlite"
        try:
            self._connection = _open((folder or config.insight_directory()) / name)
        except UsageError:  # a user without a home
            self._connection = _prepared(sqlite3.connect(":memory:"))

    def get(self, entries: Iterable[MadeEntry]) -> dict[str, Sketch]:
        """The sketches of these entries, by path; an entry that is unknown, or whose files changed, is left out."""
        stamps = {entry.path: stamp_of(entry) for entry in entries}
        found: dict[str, Sketch] = {}
        paths = list(stamps)
        for at in range(0, len(paths), _QUERY_MAX):
            some = paths[at : at + _QUERY_MAX]
            query = f"SELECT path, stamp, kind, data FROM sketches WHERE path IN ({','.join('?' * len(some))})"
            with contextlib.suppress(sqlite3.Error, msgspec.DecodeError):
                for path, stamp, kind, data in self._connection.execute(query, some):
                    if stamp == stamps[path] and kind in _DECODERS:
                        found[path] = _DECODERS[kind](data)
        return found

    def explanations(self, entries: Iterable[MadeEntry]) -> dict[str, bytes]:
        """Earlier explanations of these entries, by path. They stay valid: what was older than an entry remains so."""
        found: dict[str, bytes] = {}
        for entry in entries:
            with contextlib.suppress(sqlite3.Error):
                query = "SELECT data FROM explained WHERE path = ? AND stamp = ?"
                for (data,) in self._connection.execute(query, (entry.path, stamp_of(entry))):
                    found[entry.path] = data
        return found

    def put_explanations(self, explained: Iterable[tuple[MadeEntry, bytes]]) -> None:
        rows = [(entry.path, stamp_of(entry), data) for entry, data in explained]
        with contextlib.suppress(sqlite3.Error), self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO explained VALUES (?, ?, ?)", rows)

    def names(self) -> dict[str, tuple[str, str]]:
        """The name of every indexed entry, with its stamp, by path."""
        with contextlib.suppress(sqlite3.Error):
            rows = self._connection.execute("SELECT path, stamp, name FROM sketches").fetchall()
            return {path: (stamp, name) for path, stamp, name in rows}
        return {}

    def put(self, sketches: Iterable[tuple[MadeEntry, Sketch]]) -> None:
        rows = []
        for entry, one in sketches:
            name = "" if isinstance(one, str | HelperSketch) else one.name  # no kernel's name leads to these
            # A sketch that cannot be kept does not spoil the others.
            with contextlib.suppress(ValueError, OverflowError, RecursionError):
                rows.append((entry.path, stamp_of(entry), _kind(one), name, msgspec.msgpack.encode(one)))
        self._insert(rows)

    def put_names(self, names: Iterable[tuple[MadeEntry, str]]) -> None:
        """Record the names of entries that have not been read yet."""
        self._insert([(entry.path, stamp_of(entry), "name", name, b"") for entry, name in names])

    def _insert(self, rows: list[tuple[str, str, str, str, bytes]]) -> None:
        with contextlib.suppress(sqlite3.Error), self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO sketches VALUES (?, ?, ?, ?, ?)", rows)

    def forget_all_but(self, paths: set[str]) -> None:
        """Drop the data of entries that are gone, once there is much of it compared with these."""
        for table in ("sketches", "explained"):
            with contextlib.suppress(sqlite3.Error), self._connection:
                known = self._connection.execute(f"SELECT path FROM {table}")
                gone = [row for row in known if row[0] not in paths]
                if len(gone) > len(paths) // 4:
                    self._connection.executemany(f"DELETE FROM {table} WHERE path = ?", gone)

    def close(self) -> None:
        self._connection.close()


def _kind(sketch: Sketch) -> str:
    if isinstance(sketch, str):
        return "garbled"
    if isinstance(sketch, LibraryEntry):
        return "library"
    if isinstance(sketch, HelperSketch):
        return "helper"
    return "kernel" if isinstance(sketch, KernelSketch) else "graph"


def _open(path: Path) -> sqlite3.Connection:
    """The file, recreated if it is damaged or of another format; in memory if it cannot be written."""
    for _ in range(2):
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not path.exists():
                _remove_oldest(path.parent)
            return _prepared(sqlite3.connect(path, timeout=2.0))
        except sqlite3.OperationalError:
            break  # locked, or no place to write to
        except (sqlite3.DatabaseError, OSError):
            with contextlib.suppress(OSError):
                os.unlink(path)
    return _prepared(sqlite3.connect(":memory:"))


def _remove_oldest(folder: Path) -> None:
    """Make room for one more index: most belong to mounts that are gone for good."""
    found = sorted((path for path in folder.glob("*.sqlite")), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[INDEXES_MAX - 1 :]:
        path.unlink(missing_ok=True)


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != FORMAT:
        connection.execute("DROP TABLE IF EXISTS sketches")
        connection.execute("DROP TABLE IF EXISTS explained")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(_MADE)
    connection.execute(_EXPLAINED)
    connection.commit()
    return connection
