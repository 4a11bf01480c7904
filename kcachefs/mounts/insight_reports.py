"""Asks a mount to explain its misses: how entries were made, their artefacts, runs, tombstones, events, history.

    reports = InsightReports.of(Path("/mnt/kernels"))
    entries = reports.entries(settle=True)
    for artifact in reports.artifacts([one.entry for one in entries], ["*.json"]):
        ...

Asking is not a use: no hit is counted and no entry becomes young. The mount's owner and root see everything; all others
see only their own entries and runs. A command that also works on a store at rest brings its own `ask`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kcachefs import reports
from kcachefs.core.insight_info import (
    Artifact,
    Artifacts,
    Event,
    MadeEntry,
    RunInfo,
    Sample,
    Tombstone,
    path_hash,
)
from kcachefs.daemon import control, registry
from kcachefs.mounts.finding import not_ours

Ask = Callable[[str, dict[str, Any]], bytes]
"""Sends a verb with its arguments to a mount or store, and returns the result as JSON."""

_T = TypeVar("_T")
_BATCH = 1000
"""The most entries that one request names."""


class InsightReports:
    """The reports of one mount, or of one store at rest."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    @classmethod
    def of(cls, mount: Path) -> InsightReports:
        """The reports of a mount: from its daemon if it is this user's, else through the mount."""
        return cls(asking_daemon(mount) if registry.read(str(mount)) is not None else asking_folder(mount))

    def entries(self, *, settle: bool = False, run: int | None = None, since: float | None = None) -> list[MadeEntry]:
        """Entries and how they were made; with `settle`, including those that were written a moment ago.

        With `run`, only the entries that this run made or wrote into; with `since`, only those written since then; with
        both, the entries that meet either condition.
        """
        return self._told("entries", list[MadeEntry], settle=settle, run=run, since=since)

    def artifacts(
        self,
        entries: Iterable[int],
        files: Sequence[str] | None = None,
        *,
        max_file: int = 64 << 20,
        head: int | None = None,
    ) -> Iterator[Artifact]:
        """Files of these entries (by `MadeEntry.entry`) with their bytes, requested as they are needed.

        `files` are shell patterns for names or for paths in the entry. Files larger than `max_file` come with None for
        their bytes; with `head`, each comes with only this many of its first bytes. Entries that were evicted meanwhile
        are left out.
        """
        left = list(entries)
        while left:
            batch, left = left[:_BATCH], left[_BATCH:]
            patterns = list(files) if files is not None else None
            told = self._told("artifacts", Artifacts, entries=batch, files=patterns, max_file=max_file, head=head)
            yield from told.found
            left = told.rest + left

    def runs(self, *, settle: bool = False) -> list[RunInfo]:
        """The last 2,000 runs, the oldest first; `MadeEntry.run` refers to `RunInfo.run`.

        With `settle`, what was written a moment ago is counted as well.
        """
        return self._told("runs", list[RunInfo], settle=settle)

    def tombstones(self) -> dict[bytes, Tombstone]:
        """By `path_hash` of each path: when the entry there last went, and why."""
        return {one.path_hash: one for one in self._told("tombstones", list[Tombstone])}

    def tombstone_of(self, path: str) -> Tombstone | None:
        """When the entry at that path last went, and why; None if none did, or too long ago to be remembered.

        For many paths call `tombstones` once instead.
        """
        return self.tombstones().get(path_hash(path))

    def events(self, since: float = 0.0) -> list[Event]:
        """Events since then, the oldest first: evictions, damage, failovers, reloads, rewrites, resets."""
        return [one for one in self._told("events", list[Event], since=since) if one.when >= since]

    def history(self, since: float = 0.0) -> list[Sample]:
        """Samples of what was used, made and evicted since then, the oldest first."""
        return [one for one in self._told("history", list[Sample], since=since) if one.start + one.seconds > since]

    def note_costs(self, seconds: Mapping[int, float], parts: Mapping[int, float] | None = None) -> int:
        """Note how long entries (by `MadeEntry.entry`) took to make, as their artefacts say; returns how many existed.

        `seconds` include the cost of other entries that were compiled within that time; `parts` leave it out. From then
        on, a hit on one of these entries saves that much. Only the mount's owner and root may note costs.
        """
        costs, own = ({str(entry): cost for entry, cost in told.items()} for told in (seconds, parts or {}))
        noted = self._told("note_costs", int, costs=costs)
        # Parts go in a request of their own: an older daemon does not know them, and would refuse the costs as well.
        return noted + (self._told("note_costs", int, costs={}, parts=own) if own else 0)

    def _told(self, verb: str, kind: type[_T], **arguments: Any) -> _T:
        return reports.decoded(self._ask(verb, arguments), kind, verb)


def asking_daemon(mount: Path, seconds: float | None = None) -> Ask:
    """Asks over the control socket of a mount that is this user's; gives up if the daemon is silent for `seconds`."""
    socket = registry.socket_path(str(mount))
    return lambda verb, arguments: control.ask(socket, verb, arguments, seconds=seconds)


def asking_folder(mount: Path) -> Ask:
    """Reads the `.kcachefs` folder of a mount, which shows each user their own reports."""

    def ask(verb: str, arguments: dict[str, Any]) -> bytes:
        if verb == "artifacts":
            return _read_artifacts(mount, **arguments)
        if verb == "entries":
            return _read_entries(mount, arguments.get("run"), arguments.get("since"))
        if verb not in _FILES:
            raise not_ours(mount, f"ask for {verb}")
        return reports.read(mount, _FILES[verb])

    return ask


_FILES = {
    "entries": "made.json",
    "runs": "runs.json",
    "tombstones": "tombstones.json",
    "events": "events.json",
    "history": "history.json",
}
"""By verb: the file in that folder with the answer."""


def _read_entries(mount: Path, run: int | None, since: float | None) -> bytes:
    raw = reports.read(mount, _FILES["entries"])
    if run is None and since is None:
        return raw
    found = [
        one
        for one in reports.decoded(raw, list[MadeEntry], "entries")
        if (since is not None and max(one.began or one.created, one.ended or 0.0, one.rewritten or 0.0) >= since)
        or (run and run in (one.run, one.rewriter))
    ]
    return msgspec.json.encode(found)


def _read_artifacts(
    mount: Path, entries: list[int], files: list[str] | None, max_file: int, head: int | None = None
) -> bytes:
    raw = reports.read(mount, f"artifacts.{entries[0]}.json")
    found = [
        msgspec.structs.replace(one, content=None if one.content is None else one.content[:head])
        if one.size <= max_file or head is not None
        else msgspec.structs.replace(one, content=None)
        for one in reports.decoded(raw, Artifacts, "artifacts").found
        if files is None or any(fnmatchcase(one.file, p) or fnmatchcase(one.file.rpartition("/")[2], p) for p in files)
    ]
    return msgspec.json.encode(Artifacts(found=found, rest=entries[1:]))
