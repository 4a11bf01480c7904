"""Reads a store by docs/format.md alone: layouts, constants and file names come from the tables of that page.

Knows nothing of kcachefs: no import of it, and no layout written down here a second time. What the page says in words
(checksums, how to replay the journal, how frames are decoded) is code here. Anything that does not fit what the page
says raises FormatError.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import lmdb
import zstandard
from blake3 import blake3

Fields = dict[str, Any]

_SIZES = {"u8": 1, "u16le": 2, "u32le": 4, "u64le": 8, "i64le": 8, "u32be": 4, "u64be": 8}


class FormatError(Exception):
    """The store is not what the page says, or the page contradicts itself."""


def demand(holds: object, what: str) -> None:
    if not holds:
        raise FormatError(what)


# --- the page ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """A row of a layout; `size` is None for the rest of the bytes."""

    name: str
    offset: int
    size: int | None
    type: str

    def read(self, raw: bytes) -> Any:
        part = raw[self.offset :] if self.size is None else raw[self.offset : self.offset + self.size]
        if self.type == "bytes":
            return part
        return int.from_bytes(part, "big" if self.type.endswith("be") else "little", signed=self.type.startswith("i"))


@dataclass(frozen=True)
class Layout:
    """The fields of a record, without gaps."""

    name: str
    fields: tuple[Field, ...]

    @cached_property
    def size(self) -> int:
        """Bytes before the rest, if there is one."""
        return sum(field.size or 0 for field in self.fields)

    @cached_property
    def has_rest(self) -> bool:
        return any(field.size is None for field in self.fields)

    def read(self, raw: bytes, *, prefix: bool = False) -> Fields:
        """The fields of `raw`, which is as long as the layout, or with `prefix` begins with it."""
        open_ended = prefix or self.has_rest
        fits = len(raw) >= self.size if open_ended else len(raw) == self.size
        demand(fits, f"{len(raw)} bytes are no {self.name} of {self.size}")
        return {field.name: field.read(raw) for field in self.fields}


class Page:
    """What the tables of the page say."""

    def __init__(self, text: str) -> None:
        self.layouts: dict[str, Layout] = {}
        self.flags: dict[str, dict[str, int]] = {}
        self.content: dict[str, int] = {}
        self.constants: dict[str, int | bytes] = {}
        self.paths: dict[str, str] = {}
        self.tables: dict[str, tuple[str, str]] = {}
        self.meta: dict[str, str] = {}
        self.header: dict[str, str] = {}
        self.rings: dict[str, tuple[str, int, int]] = {}
        for heading, columns, rows in _tables_of(text):
            self._take(heading, columns, rows)

    def number(self, constant: str) -> int:
        value = self.constants[constant]
        demand(isinstance(value, int), f"{constant} is no number")
        return int(value)

    def _take(self, heading: str, columns: list[str], rows: list[list[str]]) -> None:
        if columns[:4] == ["offset", "size", "type", "field"]:
            name = _bare(heading.removeprefix("Layout: "))
            self.layouts[name] = Layout(name, tuple(_fields(name, rows)))
        elif columns[0].startswith("flag of "):
            self.flags[_bare(columns[0].removeprefix("flag of "))] = {_bare(row[0]): int(row[1]) for row in rows}
        elif columns[0] == "value of `content`":
            self.content = {_bare(row[0]): int(row[1]) for row in rows}
        elif columns[0] == "constant":
            self.constants = {_bare(row[0]): _constant(row[1]) for row in rows}
        elif columns[:2] == ["what", "path"]:
            self.paths = {row[0]: _bare(row[1]) for row in rows}
        elif columns[:4] == ["table", "name", "key", "value"]:
            self.tables = {_bare(row[0]): (_bare(row[2]), _bare(row[3])) for row in rows}
        elif columns == ["ring", "body", "slots", "slot size"]:
            self.rings = {row[0]: (_bare(row[1]), int(row[2]), int(row[3])) for row in rows}
        elif columns[:2] == ["key", "value"]:
            self.meta = {_bare(row[0]): _bare(row[1]) for row in rows}
        elif columns[:2] == ["field", "type"]:
            self.header = {_bare(row[0]): row[1] for row in rows}


def _tables_of(text: str) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Each table of a Markdown page: the heading above it, its columns, its rows."""
    heading, block = "", []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            block.append([cell.strip() for cell in line.strip().strip("|").split("|")])
            continue
        if block:
            yield heading, block[0], block[2:]
            block = []
        if line.startswith("#"):
            heading = line.lstrip("# ")


def _fields(name: str, rows: list[list[str]]) -> Iterator[Field]:
    end = 0
    for offset, size, kind, field, *_ in rows:
        kind = _bare(kind)
        demand(int(offset) == end, f"{name}: {field} is at {offset}, and what is before it ends at {end}")
        demand(
            size == "rest" or kind == "bytes" or _SIZES[kind] == int(size), f"{name}: {field} is no {kind} of {size}"
        )
        yield Field(_bare(field), end, None if size == "rest" else int(size), kind)
        end += 1 << 62 if size == "rest" else int(size)


def _bare(cell: str) -> str:
    return cell.strip("`")


def _constant(cell: str) -> int | bytes:
    return cell.strip("`").encode() if cell.startswith("`") else int(cell)


# --- the store --------------------------------------------------------------------------------------------------------


class StoreReader:
    """A store that nobody changes. `records` is its state: LMDB, and the journal applied to it."""

    def __init__(self, page: Page, directory: Path) -> None:
        self.page = page
        self.directory = directory
        self.header: dict[str, Any] = json.loads(self._path("header").read_bytes())
        demand(set(self.header) == set(page.header), f"the header has {sorted(self.header)}")
        demand(self.header["format"] == page.number("format"), f"the store has format {self.header['format']}")
        self._tables: dict[str, list[tuple[Fields, Fields]]] = {}
        self._volumes: dict[int, bytes] = {}
        """Those that were asked for, read once, as the tables are."""
        self.records = self._read_lmdb()
        self.replayed = 0
        """Journal records that LMDB does not have."""
        self._replay()

    # --- records ------------------------------------------------------------------------------------------------------

    def table(self, letter: str) -> list[tuple[Fields, Fields]]:
        """Every record of a table: the fields of its key, and of its value."""
        if letter not in self._tables:
            key_layout, value_layout = self.page.tables[letter]
            self._tables[letter] = [
                (self._layout(key_layout, key), self._layout(value_layout, value))
                for key, value in sorted(self.records.items())
                if key[:1] == letter.encode()
            ]
        return self._tables[letter]

    def by_number(self, letter: str) -> dict[int, Fields]:
        """The records of a table whose key is a number."""
        return {key["number"]: value for key, value in self.table(letter)}

    def meta(self) -> dict[str, Fields]:
        found = {key.decode(): value for key, value in self.records.items() if key[:1] == b"m"}
        demand(set(found) <= set(self.page.meta), f"unknown meta keys in {sorted(found)}")
        return {key: self._layout(self.page.meta[key], value) for key, value in found.items()}

    def _layout(self, name: str, raw: bytes) -> Fields:
        return self.page.layouts[name].read(raw)

    def _path(self, what: str, *number: int) -> Path:
        return self.directory / (self.page.paths[what] % number)

    def _read_lmdb(self) -> dict[bytes, bytes]:
        records = {}
        folder = self._path("catalog").parent
        with lmdb.open(str(folder), readonly=True, lock=False, create=False) as env, env.begin() as txn:
            for key, raw in txn.cursor():
                value, crc = raw[:-4], int.from_bytes(raw[-4:], "little")
                demand(zlib.crc32(key + value) == crc, f"record {key!r} fails its checksum")
                demand(key[:1].decode() in self.page.tables, f"record {key!r} is in no table")
                records[key] = value
        return records

    # --- the journal --------------------------------------------------------------------------------------------------

    def _replay(self) -> None:
        folded = self.meta().get("mfolded", {"segment": 0, "offset": 0})
        folder, pattern, before = self._path("segment", 0).parent, self.page.paths["segment"], 0
        for number in sorted(int(re.sub(r"\D", "", name)) for name in os.listdir(folder)):
            if number < folded["segment"]:
                continue
            raw = (self.directory / (pattern % number)).read_bytes()
            start = folded["offset"] if number == folded["segment"] else 0
            if start >= len(raw) > 0:
                continue
            whole = self._replay_segment(number, raw, start)
            follows = self.records.pop(cast(bytes, self.page.constants["before_key"]), None)
            if follows is not None and number > folded["segment"]:
                demand(self.page.layouts["number"].read(follows)["number"] == before, f"segment {number} follows a gap")
            before = whole
            if whole < len(raw):
                return

    def _replay_segment(self, number: int, raw: bytes, start: int) -> int:
        """Apply the records of a segment from `start` on; returns where the intact ones end."""
        layout = self.page.layouts["segment_header"]
        header = layout.read(raw, prefix=True)
        wanted = (self.page.constants["segment_magic"], self.page.constants["segment_version"], number)
        demand((header["magic"], header["version"], header["number"]) == wanted, f"segment {number}: {header}")
        demand(zlib.crc32(raw[: layout.size - 4]) == header["crc"], f"the header of segment {number} fails its check")
        record, position = self.page.layouts["journal_record"], max(start, layout.size)
        while position + record.size <= len(raw):
            head = record.read(raw[position:], prefix=True)
            body = raw[position + record.size : position + record.size + head["length"]]
            if len(body) != head["length"] or not body or zlib.crc32(body, number & 0xFFFFFFFF) != head["crc"]:
                break
            self._apply(body)
            self.replayed += 1
            position += record.size + len(body)
        return position

    def _apply(self, body: bytes) -> None:
        layout = self.page.layouts["change"]
        while body:
            change = layout.read(body, prefix=True)
            key, body = _split(body[layout.size :], change["key_length"])
            demand(key[:1].decode() in self.page.tables, f"record {key!r} is in no table")
            if change["value_length"] == self.page.constants["deleted"]:
                self.records.pop(key, None)
            else:
                self.records[key], body = _split(body, change["value_length"])

    # --- rings --------------------------------------------------------------------------------------------------------

    def ring(self, name: str) -> dict[int, Fields]:
        """The records of a ring file by their numbers; of a sample, `rows` is a list."""
        body_layout, slots, size = self.page.rings[name]
        what, _, seconds = name.partition(".")
        path = self._path(what, *([int(seconds)] if seconds else []))
        raw, head, found = path.read_bytes() if path.exists() else b"", self.page.layouts["ring_record"], {}
        demand(len(raw) <= slots * size, f"{name} is longer than its slots")
        for slot in _used(raw, size):
            piece = raw[slot * size : (slot + 1) * size]
            fields = head.read(piece, prefix=True)
            end = head.size + fields["length"]
            demand(zlib.crc32(piece[4:end]) == fields["crc"], f"slot {slot} of {name} fails its checksum")
            demand(fields["number"] % slots == slot, f"slot {slot} of {name} holds record {fields['number']}")
            found[fields["number"]] = self._layout(body_layout, piece[head.size : end])
        row = self.page.layouts["sample_row"]
        for one in found.values():
            if "rows" in one:
                rows = one["rows"]
                one["rows"] = [row.read(rows[at : at + row.size]) for at in range(0, len(rows), row.size)]
        return found

    # --- names and bytes ----------------------------------------------------------------------------------------------

    def tree(self) -> dict[bytes, tuple[int, Fields]]:
        """Every path from the root, with the number and the inode it leads to; the root's is empty."""
        return self._tree

    @cached_property
    def _tree(self) -> dict[bytes, tuple[int, Fields]]:
        inodes, names = self.by_number("i"), self.table("n")
        for key, _ in names:
            cookie = int.from_bytes(blake3(key["name"]).digest()[:8], "big") >> 1 | 16
            demand(key["cookie"] == cookie, f"{key['name']!r} has cookie {key['cookie']} instead of {cookie}")
        root = self.page.number("root")
        found, folders = {b"": (root, inodes[root])}, [(root, b"")]
        while folders:
            folder, path = folders.pop()
            for key, value in names:
                if key["parent"] == folder:
                    inode = inodes[value["ino"]]
                    demand(value["type"] == inode["mode"] >> 12, f"{key['name']!r} is of another type than its inode")
                    there = path + b"/" * bool(path) + key["name"]
                    found[there] = (value["ino"], inode)
                    if stat.S_ISDIR(inode["mode"]):
                        folders.append((value["ino"], there))
        return found

    def read(self, inode: Fields) -> bytes:
        """The bytes of a file."""
        where = {number: name for name, number in self.page.content.items()}[inode["content"]]
        if where == "OBJECT":
            return self.read_object(inode["digest"])
        if where == "SPOOL":
            return self._path("spool", inode["spool"]).read_bytes()
        if where == "SLOT":
            with open(self._path("slots"), "rb") as slots:
                slots.seek(inode["spool"] * self.page.number("slot_size"))
                return slots.read(inode["size"])
        return b""

    def read_kept(self, inode: Fields) -> tuple[bytes, int] | None:
        """The bytes and the mtime of what a file was when it was synced, if it keeps that."""
        if not stat.S_ISREG(inode["mode"]) or not inode["target"]:
            return None
        data = self.read_object(inode["digest"]) if any(inode["digest"]) else b""
        return data, int.from_bytes(inode["target"], "little", signed=True)

    @cached_property
    def _objects(self) -> dict[bytes, Fields]:
        """The record of every object by its digest."""
        return {key["digest"]: value for key, value in self.table("o")}

    def read_object(self, digest: bytes) -> bytes:
        record = self._objects[digest]
        raw = self._volume(record["volume"])[record["offset"] : record["offset"] + record["length"]]
        layout = self.page.layouts["trailer"]
        trailer, row = layout.read(raw[-layout.size :]), self.page.layouts["frame_row"]
        demand(trailer["magic"] == self.page.constants["trailer_magic"], "an object does not end in a trailer")
        wanted = (record["frames"], record["plain"], record["length"], digest)
        told = (trailer["frames"], trailer["plain"], trailer["length"], trailer["digest"])
        demand(told == wanted, f"the trailer says {told}, the record {wanted}")
        rows = row.size * trailer["frames"] if trailer["frames"] > 1 else 0
        tail = raw[-layout.size - rows :]
        demand(blake3(tail[:-8]).digest()[:8] == trailer["check"], "the trailer fails its check")
        plain = b"".join(
            self._frames(raw[: -len(tail)], trailer, [tail[at : at + row.size] for at in range(0, rows, row.size)])
        )
        demand(blake3(plain).digest() == digest, "an object does not match its digest")
        return plain

    def _frames(self, raw: bytes, trailer: Fields, rows: list[bytes]) -> Iterator[bytes]:
        size, left = self.page.number("frame_size"), trailer["plain"]
        table = [self.page.layouts["frame_row"].read(row) for row in rows] or [{"stored": len(raw), "check": None}]
        start = 0
        for row in table:
            stored = raw[start : start + row["stored"]]
            demand(len(stored) == row["stored"], "a frame is not all there")
            start += row["stored"]
            length = min(size, left)
            frame = stored if len(stored) == length else self._decoded(stored)
            demand(len(frame) == length, f"a frame has {len(frame)} bytes instead of {length}")
            checksum = b"" if len(stored) == length else stored[-4:]
            demand(zstandard.get_frame_parameters(stored).has_checksum if checksum else True, "a frame has no checksum")
            demand(row["check"] in (None, (checksum + blake3(frame).digest())[:16]), "a frame fails its check")
            left -= length
            yield frame
        demand((left, start) == (0, len(raw)), "the frames are not the whole object")

    def _decoded(self, stored: bytes) -> bytes:
        number = zstandard.get_frame_parameters(stored).dict_id
        learned = zstandard.ZstdCompressionDict(self.dictionary(number)[1]) if number else None
        return zstandard.ZstdDecompressor(dict_data=learned).decompress(stored)

    def dictionary(self, number: int) -> tuple[Fields, bytes]:
        """The head of a dictionary's file, and the dictionary."""
        raw, check = _split_end(self._path("dictionary", number).read_bytes(), 16)
        demand(blake3(raw).digest()[:16] == check, "a dictionary fails its check")
        layout = self.page.layouts["dictionary_head"]
        head = layout.read(raw, prefix=True)
        demand(head["magic"] == self.page.constants["dictionary_magic"], "a dictionary has another magic")
        demand(head["number"] == number, "a dictionary has another number")
        return head, zstandard.ZstdDecompressor().decompress(raw[layout.size :])

    def listing(self, folder: int) -> tuple[Fields, list[tuple[bytes, Fields]]]:
        """The head of a listing's file, and each name with its record."""
        raw, check = _split_end(self._path("listing", folder).read_bytes(), 4)
        demand(zlib.crc32(raw) == int.from_bytes(check, "little"), "a listing fails its check")
        layout, found = self.page.layouts["listing_head"], []
        head, rest = layout.read(raw, prefix=True), raw[layout.size :]
        demand(head["magic"] == self.page.constants["listing_magic"], "a listing has another magic")
        demand(head["folder"] == folder, "a listing has another folder")
        raw_cookies, rest = _split(rest, 8 * head["records"])
        raw_starts, records = _split(rest, 4 * (head["records"] + 1))
        cookies = [int.from_bytes(raw_cookies[at : at + 8], "little") for at in range(0, len(raw_cookies), 8)]
        starts = [int.from_bytes(raw_starts[at : at + 4], "little") for at in range(0, len(raw_starts), 4)]
        demand(cookies == sorted(cookies), "the cookies of a listing are out of order")
        demand((starts[0], starts[-1]) == (0, len(records)), "the records of a listing are not all there are")
        layout = self.page.layouts["listing_record"]
        for cookie, start, end in zip(cookies, starts[:-1], starts[1:], strict=True):
            record = layout.read(records[start:end], prefix=True)
            demand(record["cookie"] == cookie, "a record of a listing has another cookie")
            name, padding = _split(records[start + layout.size : end], record["length"])
            demand(end % 8 == 0 and padding == bytes(len(padding)) and len(padding) < 8, "a record is padded otherwise")
            found.append((name, record))
        return head, found

    def _volume(self, number: int) -> bytes:
        if number not in self._volumes:
            path = self._path("volume", number)
            self._volumes[number] = (path if path.exists() else self._path("incoming", number)).read_bytes()
        return self._volumes[number]

    def volume_size(self, number: int) -> int:
        return len(self._volume(number))


def _used(raw: bytes, size: int) -> Iterator[int]:
    """The pieces of this size that are not all zeros, by their numbers. Most are, so many are looked at together."""
    for first in range(0, len(raw), 64 * size):
        several = raw[first : first + 64 * size]
        if several != bytes(len(several)):
            for start in range(first, first + len(several), size):
                if any(raw[start : start + size]):
                    yield start // size


def _split_end(raw: bytes, length: int) -> tuple[bytes, bytes]:
    return _split(raw, len(raw) - length)


def _split(raw: bytes, length: int) -> tuple[bytes, bytes]:
    demand(len(raw) >= length, f"{length} bytes are missing {length - len(raw)}")
    return raw[:length], raw[length:]
