"""What an administrator does with the entries of a mount or of a store at rest: list, pin, evict, prune, collect."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from kcachefs.bounded import BoundedDict
from kcachefs.core import Filesystem
from kcachefs.core.entry_info import EntryInfo as EntryInfo
from kcachefs.core.entry_info import EvictionProgress
from kcachefs.core.entry_info import Outcome as Outcome
from kcachefs.core.entry_patterns import are_paths, meant_by
from kcachefs.core.readable_names import bytecode_name, kernel_facts, readable, told_apart
from kcachefs.core.report import Statistics
from kcachefs.errors import FsError, KcachefsError, StoreError, UsageError
from kcachefs.store.entry_records import EntryRecord
from kcachefs.store.records import Content, number_of

SORTS: dict[str, Callable[[EntryInfo], float]] = {
    "used": lambda info: -info.used,
    "size": lambda info: -info.stored_bytes,
    "hits": lambda info: -info.hits,
    "age": lambda info: info.created,
}


DESCRIPTION = b"environment.json"
"""The file in which an environment names the distributions of its bytecode; frameworks/bytecode.py writes it."""
_READ_MAX = 1 << 20
_NAMES_KEPT = 10_000
_COMPARED = 64
"""Up to this many entries with the same name are told apart: among more, nobody could see how they differ."""


def select(
    infos: Iterable[EntryInfo], namespace: str = "", sort: str = "used", patterns: list[str] | None = None
) -> list[EntryInfo]:
    """The entries that the patterns mean, of one namespace or of all, sorted as `sort` says."""
    if sort not in SORTS:
        raise UsageError(f"--sort {sort}: unknown; choose one of {', '.join(SORTS)}")
    chosen = [info for info in infos if not namespace or info.namespace == namespace.strip("/")]
    if patterns:
        chosen = meant_by(patterns, chosen, parts=True)
    return sorted(chosen, key=SORTS[sort])


class Administration:
    """Commands on one filesystem. Any thread; each command sees what was sealed when it began."""

    def __init__(self, fs: Filesystem) -> None:
        self._fs = fs
        self.store = fs.store.path
        self._names: BoundedDict[int, tuple[int, int, str, str]] = BoundedDict(_NAMES_KEPT)
        """The readable names of entries, with the files, bytes and path they had when their names were read."""

    def stats(self, settle: bool = False) -> Statistics:
        """The statistics. With `settle`, waiting files are sealed first, so that everything written so far counts."""
        if settle:
            self._fs.settle()
        self._fs.uses.flush_if_possible()
        return self._fs.statistics()

    def ls(
        self,
        namespace: str = "",
        sort: str = "used",
        names: bool = True,
        patterns: list[str] | None = None,
        uid: int | None = None,
        limit: int | None = None,
    ) -> list[EntryInfo]:
        """The entries of one namespace and user, or of all; with `patterns`, only those that any pattern means.

        With `limit`, only the first `limit`. Names are read only for the entries that the answer needs, and told apart
        only among those.
        """
        infos = select(self._entries(uid), namespace, sort)
        if not names or not patterns or are_paths(patterns, infos):
            chosen = select(infos, namespace, sort, patterns)[:limit]
            return self._told_apart(self._named(chosen)) if names else chosen
        named = self._named(infos)
        try:
            return self._told_apart(select(named, namespace, sort, patterns)[:limit])
        except UsageError:  # perhaps a pattern means an addition that tells entries apart, which takes longer to read
            return select(self._told_apart(named), namespace, sort, patterns)[:limit]

    def pin(self, patterns: list[str], pinned: bool = True) -> Outcome:
        found = self._matching(patterns)
        for info in found:
            with self._fs.nodes.change() as txn:
                self._fs.table.pin(txn, info.entry, pinned)
        return Outcome(entries=[info.path for info in found], stored_bytes=sum(info.stored_bytes for info in found))

    def evict(self, patterns: list[str], dry_run: bool = False) -> Outcome:
        return self._evict(self._matching(patterns), dry_run, "evicted")

    def prune(
        self, older_than: float | None = None, max_size: int | None = None, unused: bool = False, dry_run: bool = False
    ) -> Outcome:
        """Evict entries not used for `older_than` seconds, or never hit (`unused`), or the oldest down to `max_size`.

        Pinned entries count towards `max_size` and stay: if evicting all others is not enough, they are reported as
        refused.
        """
        everything = sorted(self._entries(), key=self._used_at)
        infos = [info for info in everything if not info.pinned]
        chosen: dict[int, EntryInfo] = {}
        if older_than is not None:
            chosen |= {info.entry: info for info in infos if info.used < time.time() - older_than}
        if unused:
            chosen |= {info.entry: info for info in infos if info.hits == 0}
        if max_size is not None:
            held = sum(info.stored_bytes for info in everything if info.entry not in chosen)
            for info in (*infos, *(info for info in everything if info.pinned)):
                if held <= max_size:
                    break
                if info.entry not in chosen:
                    chosen[info.entry] = info
                    held -= info.stored_bytes
        return self._evict(list(chosen.values()), dry_run, "pruned")

    def gc(self, dry_run: bool = False) -> Outcome:
        """Give back wasted space: dead bytes in volumes, and files that dead writers left."""
        totals = self._fs.store.objects.totals()
        if dry_run:
            return Outcome(freed_bytes=totals.volumes - totals.live, dry_run=True)
        before = self._fs.store.used_bytes()
        self._fs.reaper.reap()
        self._fs.store.compact()
        return Outcome(freed_bytes=max(0, before - self._fs.store.used_bytes()))

    def progress(self) -> EvictionProgress:
        """How far an evicting command in another thread has come."""
        done, entries = self._fs.evictor.progress
        return EvictionProgress(done=done, entries=entries)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _evict(self, infos: Iterable[EntryInfo], dry_run: bool, why: str) -> Outcome:
        chosen = list(infos)
        free_to_go = [info.entry for info in chosen if not info.pinned]
        taken = set(free_to_go)
        if not dry_run:
            taken = self._fs.evictor.evict_all(free_to_go, why)
            self._fs.store.compact()
        left = [info for info in chosen if info.entry not in taken]
        there = {info.entry for info in left if self._is_there(info.entry)}
        return Outcome(
            entries=[info.path for info in chosen if info.entry in taken],
            stored_bytes=sum(info.stored_bytes for info in chosen if info.entry in taken),
            refused=[info.path for info in left if info.entry in there],
            gone=[info.path for info in left if info.entry not in there],
            dry_run=dry_run,
        )

    def _used_at(self, info: EntryInfo) -> int:
        """The last use, to the nanosecond: uses noted while the clock was ahead are only nanoseconds apart."""
        record = self._fs.table.get(info.entry)
        return record.used if record is not None else 0

    def _is_there(self, entry: int) -> bool:
        record = self._fs.table.get(entry)
        return record is not None and not record.flags & EntryRecord.LEAVING

    def _matching(self, patterns: list[str]) -> list[EntryInfo]:
        by_path = self._entries()
        try:
            return meant_by(patterns, by_path)
        except UsageError:  # reading all names takes longer, so it is done only if a pattern is not a path
            return meant_by(patterns, self._told_apart(self._named(by_path)))

    def _named(self, infos: Iterable[EntryInfo]) -> list[EntryInfo]:
        """The same entries with their readable names."""
        found = []
        for info in infos:
            record = self._fs.table.get(info.entry)
            if record is not None:
                with contextlib.suppress(FsError):  # evicted while we looked
                    name = self._name(info.entry, record, info.namespace, info.path)
                    found.append(msgspec.structs.replace(info, name=name))
        return found

    def _told_apart(self, infos: list[EntryInfo]) -> list[EntryInfo]:
        """The same entries, with equal names made different as far as their kernels differ."""
        equal: dict[tuple[str, str], list[int]] = {}
        for number, info in enumerate(infos):
            if not info.path.endswith(info.name):
                equal.setdefault((info.namespace, info.name), []).append(number)
        for numbers in equal.values():
            if 1 < len(numbers) <= _COMPARED:
                group = [infos[number] for number in numbers]
                facts = [self._facts(info) for info in group]
                additions = told_apart(facts, [info.path.rpartition("/")[2] for info in group])
                for number, info, addition in zip(numbers, group, additions, strict=True):
                    infos[number] = msgspec.structs.replace(info, name=f"{info.name}, {addition}")
        return infos

    def _facts(self, info: EntryInfo) -> dict[str, str]:
        if info.namespace == "python":
            return {"environment": info.path.partition("/")[2].partition("/")[0].rpartition("-")[2]}
        files = self._fs.walk.files_at_top(info.entry)
        return kernel_facts(partial(self._read, files), list(files))

    def _entries(
        self, uid: int | None = None, is_wanted: Callable[[int, EntryRecord], bool] | None = None
    ) -> list[EntryInfo]:
        """Entries with their paths, but without readable names."""
        self._fs.uses.flush_if_possible()
        try:
            self._fs.store.fold()
        except (StoreError, OSError) as error:  # what a disk holds that refuses writes can still be listed
            if not self._fs.store.catalog.trouble and getattr(error, "errno", 0) != errno.EROFS:
                raise
        infos = []
        for key, raw in self._fs.store.catalog.walk(b"e"):
            record = EntryRecord.unpack(raw) if raw is not None else None
            if record is None or not record.files or record.flags & EntryRecord.LEAVING:
                continue
            if uid in (None, record.uid) and (is_wanted is None or is_wanted(number_of(key), record)):
                try:
                    infos.append(self._info(number_of(key), record))
                except FsError:
                    continue  # evicted while we looked
        return infos

    def _info(self, entry: int, record: EntryRecord) -> EntryInfo:
        path = self._fs.namespaces.path_of(record)
        text = b"/".join(path).decode(errors="replace")
        namespace = self._fs.namespaces.label_of(record.namespace)
        return EntryInfo(
            path=text,
            name=text,
            namespace=namespace,
            uid=record.uid,
            files=record.files,
            plain_bytes=record.plain,
            stored_bytes=record.stored,
            hits=record.hits,
            created=record.created / 1e9,
            used=record.used / 1e9,
            pinned=bool(record.flags & EntryRecord.PINNED),
            entry=entry,
        )

    def _name(self, entry: int, record: EntryRecord, namespace: str, path: str) -> str:
        known = self._names.get(entry)
        if known is None or known[:3] != (record.files, record.plain, path):
            inside = self._fs.namespaces.path_in(record)
            is_bytecode = namespace == "python" and len(inside) > 1
            name = self._of_bytecode(record, inside) if is_bytecode else self._readable(entry, namespace, inside)
            known = self._names[entry] = (record.files, record.plain, path, name)
        return known[3]

    def _readable(self, entry: int, namespace: str, path: tuple[bytes, ...]) -> str:
        files = self._fs.walk.files_at_top(entry)
        return readable(namespace.encode(), path, partial(self._read, files), list(files))

    def _of_bytecode(self, record: EntryRecord, path: tuple[bytes, ...]) -> str:
        environment = self._fs.tree.find(record.namespace, path[0])
        described = self._fs.tree.find(environment, DESCRIPTION) if environment is not None else None
        files = {DESCRIPTION: described} if described is not None else {}
        return bytecode_name(path, self._read(files, (DESCRIPTION,)))

    def _read(self, files: dict[bytes, int], relative: tuple[bytes, ...]) -> bytes | None:
        ino = files.get(relative[-1])
        try:
            node = self._fs.nodes.get(ino) if ino is not None else None
            if ino is None or node is None or node.content == Content.NONE or node.size > _READ_MAX:
                return None
            return self._fs.files.read(ino, 0, node.size)
        except KcachefsError:
            return None
