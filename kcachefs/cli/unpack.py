"""`kcachefs unpack`: brings the entries of a pack into a mount, or into a store that is not mounted."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kcachefs import config
from kcachefs.cli import ending, target
from kcachefs.cli.pack import AllowUnsigned, Trust, mounted_at, pack_file
from kcachefs.cli.printing import INTERRUPTED, bar, brought_in, complain, counted, print_json
from kcachefs.cli.usage import a_path
from kcachefs.errors import UsageError
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.fleet.manifest import PackedEntry
    from kcachefs.fleet.targets import Target
    from kcachefs.fleet.unpacking import Unpacked

Into = Annotated[
    Path | None,
    typer.Option(
        "--mount",
        metavar="DIR",
        help="The mount; needed if there are several. With a --store that is not mounted: where it will be.",
        parser=a_path,
    ),
]


def unpack(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DIR|URL",
            help="A pack, an OCI image layout that holds one, or where to fetch it: s3://..., gs://..., az://..., "
            "https://...",
            show_default=False,
        ),
    ],
    trust: Trust = None,
    allow_unsigned: AllowUnsigned = False,
    mount: Into = None,
    store: target.Store = None,
    as_json: target.Json = False,
) -> None:
    """Bring in the entries of a pack. Changes nothing unless a trusted key signed the pack and every byte checks out.

    You can interrupt this and run it again: entries that are there already are left alone.
    """
    from kcachefs.fleet import packfile, signing, unpacking

    done, stopping = unpacking.Unpacked(), Stopping()
    keys = signing.trusted(trust or ())
    with pack_file(file) as path, packfile.opened(path, keys, allow_unsigned=allow_unsigned) as pack:
        with target_of(mount, store, stopping) as where, bar("unpacking", pack.manifest.bytes) as advance:

            def progress(entry: PackedEntry) -> None:
                advance(sum(one.size for one in entry.files))
                stopping.check()

            try:
                with stopping:
                    unpacking.unpack(pack, where, done, progress)
            except KeyboardInterrupt:
                _report(done, where, mount, as_json, interrupted=True)
                sys.exit(INTERRUPTED)
            gone = unpacking.gone(pack, where)
    _report(done, where, mount, as_json, gone)


class Stopping:
    """Turns a signal into a stop between two entries, so that only whole entries remain."""

    def __init__(self) -> None:
        self._asked = self._is_at_once = False

    def __enter__(self) -> None:
        wanted = [one for one in (signal.SIGINT, *ending.NUMBERS) if signal.getsignal(one) is not signal.SIG_IGN]
        self._before = {one: signal.signal(one, self._ask) for one in wanted}

    def __exit__(self, *error: object) -> None:
        for one, before in self._before.items():
            signal.signal(one, before)

    def _ask(self, number: int, frame: object) -> None:
        self._asked = True
        if self._is_at_once:
            self._is_at_once = False  # the next signal must not interrupt the clean-up
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A scope in which nothing can be left half done: a signal ends it immediately."""
        self._is_at_once = True
        try:
            self.check()
            yield
        finally:
            self._is_at_once = False

    def check(self) -> None:
        if self._asked:
            raise KeyboardInterrupt


@contextmanager
def target_of(mount: Path | None, store: Path | None, stopping: Stopping) -> Iterator[Target[Any]]:
    """The target for entries: the mount, or a store that is not mounted, with the path where it will be mounted."""
    from kcachefs.core.report import Statistics
    from kcachefs.fleet.targets import MountTarget, StoreTarget
    from kcachefs.mounts import places

    mounted, place = _mounted_or_place(mount, store)
    if mounted is not None:

        def ask() -> Statistics:
            with stopping.at_once():  # others' reports may have to be waited for
                return target.call(mounted, None, "stats", Statistics, settle=True)

        yield MountTarget(mounted, ask)
        return
    location = Path(os.path.abspath(store or config.default_store()))
    places.check_places(str(place), str(location))
    with target.store_at_rest(store, create=True) as fs:
        where = StoreTarget(fs, place)
        complaint = places.moved(location, place)
        try:
            yield where
        finally:
            if where.has_grown:
                places.remember(location, place)
        if complaint:
            complain(f"kcachefs: {printable(complaint)}")


def _mounted_or_place(mount: Path | None, store: Path | None) -> tuple[Path | None, Path]:
    """The chosen mount, if there is one, and the path at which programs see it, or will see it."""
    from kcachefs.mounts.finding import mount_at
    from kcachefs.mounts.places import place_for

    if mount is None or store is None or mount_at(mount) is not None:
        mounted = mounted_at(mount, store)
        return mounted, mounted or Path(os.path.realpath(place_for(store)))
    if (already := target.find_mount(None, store)) is not None:
        raise UsageError(f"--mount {mount}: the store {store} is mounted at {already}; leave out --mount")
    return None, Path(os.path.realpath(mount))


def where_to_mount(done: Unpacked, where: Target[Any], mount: Path | None) -> str:
    """The message about entries that were brought into a store that is not mounted; empty if it is mounted."""
    from kcachefs.fleet.targets import StoreTarget

    if not done.unpacked or not isinstance(where, StoreTarget):
        return ""
    otherwise = "; for another place, begin with a new store and --mount DIR" if mount is None else ""
    return printable(f"these entries refer to files below {where.home}: mount the store there{otherwise}")


def _report(
    done: Unpacked,
    where: Target[Any],
    mount: Path | None,
    as_json: bool,
    gone: int = 0,
    *,
    interrupted: bool = False,
) -> None:
    if as_json:
        counts = {"unpacked": done.unpacked, "present": done.present, "files": done.files, "bytes": done.bytes}
        print_json({**counts, "evicted": gone, "interrupted": interrupted, "mount": str(where.home)})
        return
    size = f"{counted(done.files, 'file')}, {config.format_size(done.bytes)}"
    print(brought_in(done.unpacked, "unpacked", size, done.present, gone, interrupted=interrupted))
    if hint := where_to_mount(done, where, mount):
        print(hint)
