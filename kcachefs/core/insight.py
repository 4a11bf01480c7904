"""Explains the misses of a mount: how its entries were made, and their artefacts. Reading this is not a use.

Nothing here counts a hit, moves an entry in the order of use, or opens files that a user of another tree has stored.
With `uid`, a method returns only what belongs to that user.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial

import msgspec

from kcachefs.core.administration import Administration
from kcachefs.core.entry_patterns import PATTERN_MAX
from kcachefs.core.insight_info import (
    LONGEST_SECONDS,
    Artifact,
    Artifacts,
    Event,
    MadeEntry,
    RunInfo,
    Sample,
    Tombstone,
)
from kcachefs.errors import FsError, KcachefsError, UsageError
from kcachefs.store.inode_numbers import GROUP_BASE
from kcachefs.store.records import Content, Inode

REPLY_MAX = 16 << 20
"""A reply takes no further entry once it has this many bytes of artefacts."""
FILE_MAX = 64 << 20
"""The largest file whose bytes a reply includes."""
_NUMBER_MAX = (1 << 64) - 1


class Insight(Administration):
    """Answers the commands that explain misses. Any thread."""

    def entries(
        self, settle: bool = False, uid: int | None = None, run: int | None = None, since: float | None = None
    ) -> list[MadeEntry]:
        """Entries and how they were made, of one user or of all. With `settle`, waiting files are sealed first.

        With `run`, only the entries that this run made or wrote into; with `since`, only those written since then; with
        both, the entries that meet either condition.
        """
        if settle:
            self._fs.settle()
        self._fs.runs.load()
        is_wanted = None
        if run is not None or since is not None:
            is_wanted = partial(self._fs.makings.is_of, run=run, since=since)
        found = (MadeEntry(**msgspec.structs.asdict(info)) for info in self._entries(uid, is_wanted))
        return [self._fs.makings.tell(info) for info in found]

    def runs(self, settle: bool = False, uid: int | None = None) -> list[RunInfo]:
        """The last runs, of one user or of all, the oldest first. With `settle`, waiting files are sealed first.

        They include the command lines that the mount's owner may read. Root may ask as well, and gets the same.
        """
        if settle:
            self._fs.settle()
        return self._runs_for_reader(self._fs.options.uid, uid)

    def _runs_for_reader(self, reader: int, uid: int | None) -> list[RunInfo]:
        self._fs.write_down()
        return self._fs.runs.all(uid, reader)

    def tombstones(self, uid: int | None = None) -> list[Tombstone]:
        """When the entry at each path last went, and why; for one user's entries or for all."""
        return self._fs.history.tombstones(uid)

    def events(self, since: float = 0.0, uid: int | None = None) -> list[Event]:
        """Events since then, the oldest first; with `uid`, only those of this user's entries."""
        return self._fs.history.events(since, uid)

    def history(self, since: float = 0.0, uid: int | None = None) -> list[Sample]:
        """Samples of what one user or all used, made and lost to eviction since then, the oldest first."""
        self._fs.write_down()
        return self._fs.history.samples(since, uid)

    def reset(self) -> float:
        """Count hits, misses and evictions from 0 again; returns the time of the reset, in seconds since 1970."""
        return self._fs.reset_statistics()

    def note_costs(self, costs: dict[str, float], parts: dict[str, float] | None = None) -> int:
        """Note how many seconds entries took to make, by number, as their artefacts say; returns how many exist.

        `costs` include other entries that were compiled in that time; `parts` leave out what other entries account for.
        From then on a hit on such an entry saves that much.
        """
        parts = parts or {}
        if any(not 0 <= cost <= LONGEST_SECONDS for cost in (*costs.values(), *parts.values())):
            raise UsageError("a cost is a number of seconds, at most six hours")
        if not all(one.isdecimal() and one.isascii() and len(one) < 20 for one in (*costs, *parts)):
            raise UsageError("costs are given by the numbers of entries, in digits only")
        whole, part = ({int(entry): int(cost * 1e9) for entry, cost in told.items()} for told in (costs, parts))
        return self._fs.makings.set_costs(whole, part)

    def artifacts(
        self,
        entries: list[int],
        files: list[str] | None = None,
        max_bytes: int = REPLY_MAX,
        max_file: int = FILE_MAX,
        uid: int | None = None,
        head: int | None = None,
    ) -> Artifacts:
        """The files of these entries whose names match a pattern, with their bytes; one user's files or all.

        Files larger than `max_file` come without their bytes; with `head`, each comes with only its first bytes. Once
        the reply has `max_bytes`, the remaining entries are left for the next request. Entries that are gone are left
        out.
        """
        if any(not 0 <= one <= _NUMBER_MAX for one in entries):
            raise UsageError("the number of an entry cannot be negative, and has at most 64 bits")
        if any(len(one) > PATTERN_MAX for one in files or ()):
            raise UsageError(f"a pattern for files has at most {PATTERN_MAX} characters")
        found: list[Artifact] = []
        size = 0
        for number, entry in enumerate(entries):
            if size >= max_bytes:
                return Artifacts(found=found, rest=entries[number:])
            with contextlib.suppress(FsError):
                for one in self._artifacts_of(entry, files, min(max_file, FILE_MAX), uid, head):
                    found.append(one)
                    size += len(one.content or b"")
        return Artifacts(found=found)

    def _artifacts_of(
        self, entry: int, patterns: list[str] | None, max_file: int, uid: int | None, head: int | None
    ) -> Iterator[Artifact]:
        record = self._fs.table.get(entry)
        if record is None or uid not in (None, record.uid):
            return
        paths: dict[int, str] = {}
        for ino, parent, raw in self._fs.walk.members(entry):
            name = raw.decode(errors="replace")
            above = paths.get(parent, "")
            path = paths[ino] = "" if entry < GROUP_BASE and ino == entry else f"{above}/{name}" if above else name
            node = self._fs.nodes.get(ino)
            if not node.is_file or (uid is not None and node.uid != uid):
                continue
            if patterns is None or any(fnmatchcase(path, one) or fnmatchcase(name, one) for one in patterns):
                node = self._fs.files.attributes(ino)
                size = node.size if head is None else min(node.size, max(0, head))
                content = self._bytes_of(ino, node, size) if size <= max_file else None
                yield Artifact(entry=entry, file=path, size=node.size, modified=node.mtime / 1e9, content=content)

    def _bytes_of(self, ino: int, node: Inode, size: int) -> bytes | None:
        if node.content == Content.NONE:
            return b""
        try:
            return self._fs.files.read(ino, 0, size)
        except KcachefsError:
            return None
