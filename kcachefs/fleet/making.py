"""Makes a pack of entries. The same entries give the same bytes, whichever mount or store they are read from.

Whole entries are put into frames in the order of their names. A frame stores each content once, and keeps files of one
kind together: they resemble each other more than the files of one kernel do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from blake3 import blake3

import kcachefs
from kcachefs.errors import PackError, UsageError
from kcachefs.fleet import moving, packfile
from kcachefs.fleet.finding import FoundEntry, Say
from kcachefs.fleet.manifest import Frame, Manifest, PackedEntry, PackedFile
from kcachefs.fleet.rules import FACT_LENGTH_MAX, FACTS_MAX, FILES_MAX, THING_MAX, TOTAL_MAX, is_database
from kcachefs.fleet.signing import Signer
from kcachefs.fleet.views import View
from kcachefs.frameworks.copying import Skipped
from kcachefs.printable import printable

LEVEL = 19
"""The zstd level for packs that are made once and fetched often."""
QUICK_LEVEL = 9
"""The level for packs that are made while others wait for the processor."""
FRAME_BYTES = 128 << 20
"""A frame ends before the entry that would make it larger than this. The zstd window reaches over a whole frame."""

Progress = Callable[[int], None]


class _Content(NamedTuple):
    kind: str
    name: str
    digest: str
    content: bytes


class _File(NamedTuple):
    name: str
    mode: int
    mtime: int
    digest: str
    size: int
    moves: bool


def make(
    view: View,
    entries: Sequence[FoundEntry],
    out: Path,
    *,
    level: int = LEVEL,
    signer: Signer | None = None,
    say: Say = lambda skipped: None,
    progress: Progress = lambda count: None,
) -> Manifest:
    """Write the pack of these entries to `out`; `progress` is called with the number of bytes done.

    If no entry can be packed, nothing is written: `out` may already be a good pack.
    """
    _check_amount(entries)
    facts = _Facts()
    with packfile.scratch_file(out) as file:
        frames, filling = [], _Filling()
        for found in entries:
            try:
                read = _read(view, found)
            except Skipped as skipped:
                say(skipped)
                progress(found.bytes)
                continue
            if filling.bytes and filling.bytes + sum(len(one.content) for _, one in read) > FRAME_BYTES:
                frames.append(filling.close(file, level, progress))
                filling = _Filling()
            filling.add(found, read)
            facts.learn(read)
        if filling.entries:
            frames.append(filling.close(file, level, progress))
        manifest = Manifest(facts=facts.told(), frames=frames)
        if frames:
            packfile.write(out, manifest, file, signer)
    return manifest


def _check_amount(entries: Sequence[FoundEntry]) -> None:
    if sum(len(found.files) for found in entries) > FILES_MAX or sum(found.bytes for found in entries) > TOTAL_MAX:
        raise UsageError(
            f"this is too much for one pack, which has at most {FILES_MAX:,} files and {TOTAL_MAX >> 30} GiB; "
            "choose entries with a pattern"
        )


def _read(view: View, found: FoundEntry) -> list[tuple[_File, _Content]]:
    """The files of an entry, each with its content."""
    read, left = [], THING_MAX
    for name in found.files:
        seen = view.read((found.namespace, *found.path_in, *name.split("/")))
        content, moves = seen.content, False
        left -= len(content)
        label = printable(found.path)
        if left < 0:
            raise Skipped(f"{label}: is not packed: it has more than {THING_MAX >> 20} MiB")
        if is_database(name, content):
            raise Skipped(f"{label}: is not packed: {printable(name)} is a database, which is changed in place")
        try:
            moved = moving.to_placeholder(content, PurePosixPath(found.namespace, *found.path_in, name))
        except PackError as error:
            raise Skipped(f"{label}: is not packed: {printable(str(error))}") from None
        if moved is not None:
            content, moves = moved, True
        digest, last = blake3(content).hexdigest(), name.rpartition("/")[2]
        kind = last.rpartition(".")[2] if "." in last else ""
        file = _File(name, seen.mode, seen.mtime, digest, len(content), moves)
        read.append((file, _Content(kind, last, digest, content)))
    return read


class _Filling:
    """A frame that entries are added to."""

    def __init__(self) -> None:
        self.bytes = 0
        self.entries: list[tuple[FoundEntry, list[_File]]] = []
        self._contents: dict[str, _Content] = {}

    def add(self, found: FoundEntry, read: Sequence[tuple[_File, _Content]]) -> None:
        self.entries.append((found, [file for file, _ in read]))
        for file, content in read:
            if file.digest not in self._contents:
                self._contents[file.digest] = content
                self.bytes += len(content.content)

    def close(self, file: IO[bytes], level: int, progress: Progress) -> Frame:
        """Compress the frame and append it to the file."""
        order = sorted(self._contents.values(), key=lambda one: (one.kind, one.name, one.digest))
        offsets, end = {}, 0
        for one in order:
            offsets[one.digest] = end
            end += len(one.content)
        stored = packfile.compress(b"".join(one.content for one in order), level, progress)
        file.write(stored)
        progress(sum(found.bytes for found, _ in self.entries) - end)
        return Frame(
            stored=len(stored),
            plain=end,
            digest=blake3(stored).hexdigest(),
            entries=[
                PackedEntry(
                    namespace=found.namespace,
                    path=list(found.path_in),
                    group=found.group,
                    files=[
                        PackedFile(one.name, one.mode, one.mtime, one.size, offsets[one.digest], one.digest, one.moves)
                        for one in files
                    ],
                )
                for found, files in self.entries
            ],
        )


class _Facts:
    """What the artefacts say about themselves, without anything that depends on when or where they are packed."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {"kcachefs": {kcachefs.__version__}}

    def learn(self, read: Sequence[tuple[_File, _Content]]) -> None:
        names = {content.name for _, content in read}
        for file, content in read:
            if content.kind == "json" and not file.moves and "__grp__" + content.name in names:
                self._learn_kernel(content.content)

    def _learn_kernel(self, raw: bytes) -> None:
        try:
            told: Any = json.loads(raw)
            target = told["target"]
            self._add("target", f"{target['backend']} {target['arch']}")
            self._add("triton", told["triton_version"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return

    def _add(self, name: str, value: object) -> None:
        if not isinstance(value, str) or not value.isprintable() or len(value) > FACT_LENGTH_MAX:
            return
        if sum(1 + len(values) for values in self._known.values()) < FACTS_MAX - 1:
            self._known.setdefault(name, set()).add(value)

    def told(self) -> dict[str, list[str]]:
        return {name: sorted(values) for name, values in sorted(self._known.items())}
