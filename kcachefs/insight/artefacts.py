"""Where entries and their artefacts come from: a mount or a store, or a plain cache folder.

Looking does not count as use: a mount hands artefacts over without counting a hit.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from kcachefs.core.insight_info import Artifact, MadeEntry, RunInfo, Tombstone
from kcachefs.errors import UsageError

FILE_MAX = 64 << 20
KINDS = ("graph", "kernel", "autograd", "tuning", "model", "driver", "library", "other")
_TREE = re.compile(r"\.tenants/[^/]+/")
"""Same as `store.records.TENANTS`, which is not imported because the whole store would come with it."""
_TUNING = re.compile(r"../[0-9a-f]{64}")


class Cache(Protocol):
    """Entries that can be explained."""

    @property
    def place(self) -> str:
        """Identifies the cache: each has an index of its own."""

    def entries(self, run: int | None = None, since: float | None = None) -> list[MadeEntry]:
        """All entries; or at least those that a run made or wrote into, and those written since some time."""

    def artefacts(
        self, entries: Sequence[MadeEntry], files: Sequence[str], head: int | None = None
    ) -> Iterator[Artifact]:
        """The files whose names match one of the patterns, entry by entry; with `head` their first bytes only."""

    def runs(self, *, settle: bool = False) -> list[RunInfo]:
        """The runs, the newest last; none where none are recorded. With `settle`, pending numbers are counted first."""

    def tombstones(self) -> list[Tombstone]: ...

    def note_costs(self, seconds: Mapping[int, float], parts: Mapping[int, float]) -> None:
        """Report what entries cost according to their artefacts, so that a hit on one counts as saving that much.

        `parts` are the costs that no other entry accounts for.
        """


def kind_of(path: str) -> str:
    """The kind of an entry, by its path.

    >>> kind_of("triton/ABC"), kind_of("inductor/fxgraph/ab/fabc"), kind_of("inductor/triton/0/ABC"), kind_of("jax/x")
    ('kernel', 'graph', 'kernel', 'other')
    """
    namespace, _, rest = path.removeprefix(tree_of(path)).partition("/")
    if namespace == "triton" or (namespace == "inductor" and rest.startswith("triton/")):
        return "kernel"
    if namespace == "inductor":
        if _TUNING.fullmatch(rest.removesuffix(".best_config")):
            return "tuning"
        return {"fxgraph": "graph", "aotautograd": "autograd"}.get(rest.partition("/")[0], "other")
    return {"vllm": "model", "cuda": "driver", "library": "library"}.get(namespace, "other")


def tree_of(path: str) -> str:
    """The user tree that an entry is in under the policy `private`, as a prefix of its path; empty for all others.

    >>> tree_of(".tenants/1000/triton/ABC"), tree_of("triton/ABC")
    ('.tenants/1000/', '')
    """
    found = _TREE.match(path)
    return found[0] if found is not None else ""


class FolderCache:
    """A plain folder: a mount's layout, or the cache folder of Triton or of Inductor alone."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise UsageError(f"{root}: is not a folder")
        self._root = root
        self._folders: dict[int, Path] = {}
        self._found: list[MadeEntry] | None = None

    @property
    def place(self) -> str:
        return os.path.realpath(self._root)

    def entries(self, run: int | None = None, since: float | None = None) -> list[MadeEntry]:
        if self._found is None:  # listed only once: a number must keep meaning the same entry
            self._found = []
            for prefix, top in self._tops():
                for folder in _entry_folders(top):
                    path = f"{prefix}/{_text(folder.relative_to(top))}"
                    with contextlib.suppress(OSError):
                        self._found.append(self._entry(len(self._found) + 1, path, folder))
        return self._found

    def artefacts(
        self, entries: Sequence[MadeEntry], files: Sequence[str], head: int | None = None
    ) -> Iterator[Artifact]:
        for entry in entries:
            folder = self._folders[entry.entry]
            for file in sorted(_files(folder)):
                if any(fnmatchcase(file.name, one) for one in files):
                    with contextlib.suppress(OSError):
                        told = file.stat()
                        content = _content(file, told.st_size, head)
                        name, size = _text(file.name), told.st_size
                        yield Artifact(entry=entry.entry, file=name, size=size, modified=told.st_mtime, content=content)

    def runs(self, *, settle: bool = False) -> list[RunInfo]:
        return []

    def tombstones(self) -> list[Tombstone]:
        return []

    def note_costs(self, seconds: Mapping[int, float], parts: Mapping[int, float]) -> None:
        pass

    def _tops(self) -> list[tuple[str, Path]]:
        named = [(name, self._root / name) for name in ("triton", "inductor") if (self._root / name).is_dir()]
        if (self._root / "fxgraph").is_dir() or (self._root / "aotautograd").is_dir():
            return [("inductor", self._root)]
        return named or [("triton", self._root)]

    def _entry(self, number: int, path: str, folder: Path) -> MadeEntry:
        told = [one.stat() for one in _files(folder)]
        self._folders[number] = folder
        times = [one.st_mtime for one in told] or [folder.stat().st_mtime]
        size = sum(one.st_size for one in told)
        return MadeEntry(
            path=path,
            name=path,
            namespace=path.partition("/")[0],
            files=len(told),
            plain_bytes=size,
            stored_bytes=size,
            hits=0,
            created=min(times),
            used=max(one.st_atime for one in told) if told else time.time(),
            pinned=False,
            uid=told[0].st_uid if told else os.getuid(),
            entry=number,
            began=min(times),
            ended=max(times),
        )


def _entry_folders(top: Path) -> Iterator[Path]:
    """The folders below `top` that are kernels or graphs."""
    for pattern in ("*", "triton/*/*", "fxgraph/*/*", "aotautograd/*"):
        for folder in sorted(top.glob(pattern)):
            inside = folder.relative_to(top).parts
            if folder.is_dir() and (len(inside) > 1 or any(folder.glob("__grp__*.json"))):
                yield folder
    yield from sorted(top.glob("??/*.best_config"))


def _text(name: str | Path) -> str:
    """A name on the disk, which need not be UTF-8, in the form in which a mount would report it."""
    return os.fsencode(name).decode(errors="replace")


def _content(file: Path, size: int, head: int | None) -> bytes | None:
    if head is not None:
        with file.open("rb") as opened:
            return opened.read(head)
    return file.read_bytes() if size <= FILE_MAX else None


def _files(folder: Path) -> list[Path]:
    """The files of an entry: those in its folder, or the entry itself if it is a file."""
    if not folder.is_dir():
        return [folder]
    found = []
    with contextlib.suppress(OSError):
        for one in os.scandir(folder):
            if stat.S_ISREG(one.stat(follow_symlinks=False).st_mode):
                found.append(Path(one.path))
    return found
