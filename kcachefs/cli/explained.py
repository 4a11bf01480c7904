"""Shared by the commands that look into entries: finding the entries, and parsing how long ago something was."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs import config
from kcachefs.cli import target
from kcachefs.cli.prune import parse_age
from kcachefs.cli.usage import a_path
from kcachefs.errors import MountError, UsageError

if TYPE_CHECKING:
    from kcachefs.core.insight_info import MadeEntry
    from kcachefs.insight.artefacts import Cache
    from kcachefs.insight.explaining import Explainer

Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder", metavar="DIR", help="A cache folder of Triton or Inductor that is not a mount.", parser=a_path
    ),
]


def open_cache(mount: Path | None, store: Path | None, folder: Path | None) -> Cache:
    """The entries of the chosen cache: a mount, a store at rest, or a plain folder."""
    from kcachefs.insight.artefacts import FolderCache
    from kcachefs.insight.mounted import MountedCache

    if folder is not None:
        if mount is not None or store is not None:
            raise UsageError("--folder is for a cache that is not a mount; leave out --mount and --store")
        return FolderCache(folder)
    return MountedCache(target.insight(mount, store), place_of(mount, store))


def place_of(mount: Path | None, store: Path | None) -> str:
    """The name under which the index of a mount or store is kept."""
    try:
        mounted = target.find_mount(mount, store)
    except MountError:  # somebody else's
        mounted = None
    return mounted or str((mount or store or config.configured_mount() or config.default_store()).absolute())


def the_one(pattern: str, explainer: Explainer) -> MadeEntry:
    """The chosen entry, by its path or a kernel's name; several of one name are told apart by their paths."""
    from kcachefs.core.entry_patterns import meant_by

    wanted = pattern.strip("/")
    found = [one for one in explainer.entries if wanted == one.path or wanted.startswith(one.path + "/")]
    if not found:
        found = explainer.reader.kernels_by_name(explainer.entries).get(wanted, [])
    if not found:
        found = meant_by([pattern], explainer.entries)
    if len(found) > 1:
        paths = ", ".join(sorted(one.path for one in found)[:3]) + (" …" if len(found) > 3 else "")
        raise UsageError(f"{pattern}: means {len(found)} entries ({paths}); give the path of one, see: kcachefs ls")
    return found[0]


def moment(text: str) -> float:
    """The time that long ago.

    >>> round(time.time() - moment("90m"))
    5400
    """
    return time.time() - parse_age(text)
