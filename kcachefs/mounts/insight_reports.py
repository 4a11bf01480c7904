"""Asks a mount what explains its misses: how entries were made, their artefacts, runs, tombstones, events, history.

    reports = InsightReports.of(Path("/mnt/kernels"))
    entries = reports.entries(settle=True)
    for artifact in reports.artifacts([one.entry for one in entries], ["*.json"]):
        ...

Asking uses nothing: no hit is counted and no entry becomes young. The mount's owner and root are told of everything;
everyone else of their own entries and runs only. A command that also works on a store at rest brings its own `ask`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kcachefs.core.insight_info import Artifact, Artifacts, MadeEntry
from kcachefs.daemon import control, registry
from kcachefs.errors import MountDenied
from kcachefs.mounts import reports

Ask = Callable[[str, dict[str, Any]], bytes]
"""Sends a verb with its arguments to a mount or store, and returns the result as JSON."""

_T = TypeVar("_T")
_BATCH = 1000
"""Entries named in one request."""


class InsightReports:
    """What one mount, or one store at rest, tells."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    @classmethod
    def of(cls, mount: Path) -> InsightReports:
        """Those of a mount: from its daemon if it is this user's, else through the mount."""
        return cls(asking_daemon(mount) if registry.read(str(mount)) is not None else asking_folder(mount))

    def entries(self, *, settle: bool = False) -> list[MadeEntry]:
        """Every entry and how it was made; with `settle` also what was written a moment ago."""
        return self._told("entries", list[MadeEntry], settle=settle)

    def artifacts(
        self, entries: Iterable[int], files: Sequence[str] | None = None, *, max_file: int = 64 << 20
    ) -> Iterator[Artifact]:
        """Files of these entries (by `MadeEntry.entry`) with their bytes, asked for as they are needed.

        `files` are shell patterns for names or for paths in the entry. Files larger than `max_file` come with None for
        their bytes. Entries that were evicted meanwhile are left out.
        """
        left = list(entries)
        while left:
            batch, left = left[:_BATCH], left[_BATCH:]
            patterns = list(files) if files is not None else None
            told = self._told("artifacts", Artifacts, entries=batch, files=patterns, max_file=max_file)
            yield from told.found
            left = told.rest + left

    def _told(self, verb: str, kind: type[_T], **arguments: Any) -> _T:
        return msgspec.json.decode(self._ask(verb, arguments), type=kind)


def asking_daemon(mount: Path) -> Ask:
    """Asks over the control socket of a mount of this user's."""
    socket = registry.socket_path(str(mount))
    return lambda verb, arguments: control.ask(socket, verb, arguments)


def asking_folder(mount: Path) -> Ask:
    """Reads the `.kcachefs` folder of a mount, which shows everybody their own."""

    def ask(verb: str, arguments: dict[str, Any]) -> bytes:
        if verb == "artifacts":
            return _read_artifacts(mount, **arguments)
        if verb not in _FILES:
            raise MountDenied(f"{mount}: is somebody else's mount; only its owner and root may ask for {verb} there")
        return reports.read(mount, _FILES[verb])

    return ask


_FILES = {"entries": "made.json"}
"""The file of the folder that answers a verb."""


def _read_artifacts(mount: Path, entries: list[int], files: list[str] | None, max_file: int) -> bytes:
    raw = reports.read(mount, f"artifacts.{entries[0]}.json")
    found = [
        one if one.size <= max_file else msgspec.structs.replace(one, content=None)
        for one in msgspec.json.decode(raw, type=Artifacts).found
        if files is None or any(fnmatchcase(one.file, p) or fnmatchcase(one.file.rpartition("/")[2], p) for p in files)
    ]
    return msgspec.json.encode(Artifacts(found=found, rest=entries[1:]))
