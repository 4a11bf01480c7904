"""`kcachefs pack`: makes a pack of entries, lists what is in one, and checks one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
import typer.core

from kcachefs import config
from kcachefs.cli import target
from kcachefs.cli.printing import bar, complain, counted, print_json
from kcachefs.cli.usage import a_path
from kcachefs.errors import StoreError, UsageError
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.fleet.manifest import Manifest
    from kcachefs.fleet.packfile import Pack
    from kcachefs.fleet.views import View
    from kcachefs.frameworks.copying import Skipped

LEVEL = 19

Patterns = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATTERN]...",
        help="Only these: a namespace (triton), an entry, or a part of its name (softmax); * matches anything.",
        show_default=False,
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Sign with this secret key.",
        show_default="the one that kcachefs fleet keygen made",
        parser=a_path,
    ),
]
Level = Annotated[int, typer.Option(min=1, max=19, help="How hard to compress; 9 is far quicker.")]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY",
        help="Trust this public key, given as text or as a file. Repeatable; keys in the folders trusted/ of "
        "~/.config/kcachefs and /etc/kcachefs are trusted too.",
    ),
]
AllowUnsigned = Annotated[
    bool, typer.Option("--allow-unsigned", help="Take a pack that nobody signed. What is in it becomes code.")
]


class _MakesByDefault(typer.core.TyperGroup):
    """`pack OUT …` means `pack make OUT …`, unless OUT is the name of another command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        asks_for_help = not args or args[0] in ctx.help_option_names
        if not asks_for_help and args[0] not in self.commands:
            args = ["make", *args]
        return super().parse_args(ctx, args)


pack_app = typer.Typer(
    cls=_MakesByDefault,
    name="pack",
    no_args_is_help=True,
    subcommand_metavar="OUT.kcp [PATTERN]... | COMMAND [ARGS]...",
    short_help="Pack entries into one signed file; list and check such files.",
    help="Pack entries into one signed file: kcachefs pack OUT.kcp [PATTERN]..., which is short for "
    "kcachefs pack make. List and check such files with kcachefs pack ls and kcachefs pack verify. "
    "Bring them in elsewhere with kcachefs unpack.",
)


@pack_app.command("make")
def make(
    out: Annotated[
        Path, typer.Argument(metavar="OUT.kcp", help="The pack to write.", show_default=False, parser=a_path)
    ],
    wanted: Patterns = None,
    key: Key = None,
    oci: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write an OCI image layout whose layer holds the pack.", parser=a_path),
    ] = None,
    level: Level = LEVEL,
    mount: target.Mount = None,
    store: target.Store = None,
    as_json: target.Json = False,
) -> None:
    """Pack entries of a mount, or of a store that is not mounted. The same entries give the same bytes.

    Exits with 3 if some could not be read; the pack then holds the others.
    """
    with view_of(mount, store) as view:
        written = _write(view, out, wanted or [], key=key, oci=oci, level=level)
    if as_json:
        counts = {name: getattr(written.manifest, name) for name in ("files", "bytes")}
        lines = [printable(str(one)) for one in written.left_out]
        facts = {"pack": str(out), "entries": len(written.manifest.entries), **counts}
        print_json({**facts, "packed_bytes": written.size, "key": written.key, "left_out": lines})
    else:
        print(written.line)
        if not written.key:
            print("not signed: unpacking it needs --allow-unsigned; make a key with: kcachefs fleet keygen")
        _say_all(written.left_out)
    refuse_unread(written.left_out)


@pack_app.command("ls")
def ls(
    file: Annotated[
        str, typer.Argument(metavar="FILE|URL", help="A pack, or an OCI image layout.", show_default=False)
    ],
    as_json: target.Json = False,
) -> None:
    """List the entries of a pack. Any pack is listed, whoever signed it."""
    from kcachefs.cli.tables import Table, show
    from kcachefs.fleet import packfile, signing

    with pack_file(file) as path, packfile.opened(path, signing.trusted(), to_look=True) as pack:
        manifest, facts = pack.manifest, _facts(pack)
        rows = [(entry.label, len(entry.files), sum(one.size for one in entry.files)) for entry in manifest.entries]
    if as_json:
        entries = [{"path": label, "files": files, "bytes": size} for label, files, size in rows]
        print_json({**facts, "facts": manifest.facts, "entries": entries})
        return
    table = Table(("entry",), ("files", "size"))
    for label, files, size in rows:
        table.add(printable(label), str(files), config.format_size(size))
    show(table)
    known = "; ".join(f"{name} {', '.join(values)}" for name, values in manifest.facts.items())
    print(printable(f"{_summary(manifest)}; {known}"))
    print(f"signed by {facts['key']}" if facts["key"] else "not signed")


@pack_app.command("verify")
def verify(
    file: Annotated[
        str, typer.Argument(metavar="FILE|URL", help="A pack, or an OCI image layout.", show_default=False)
    ],
    trust: Trust = None,
    allow_unsigned: AllowUnsigned = False,
    as_json: target.Json = False,
) -> None:
    """Check a pack: that a trusted key signed it, and every byte. Exits with 1 if it is damaged, 6 if not trusted."""
    from kcachefs.fleet import packfile, signing

    with pack_file(file) as path:
        with packfile.opened(path, signing.trusted(trust or ()), allow_unsigned=allow_unsigned) as pack:
            for _ in pack.decoded():
                pass
            facts = _facts(pack)
    if as_json:
        print_json({**facts, "entries": len(pack.manifest.entries), "files": pack.manifest.files})
        return
    print(f"intact: {_summary(pack.manifest)}")
    print(f"signed by {facts['key']}, which is trusted" if facts["key"] else "not signed")


def pack_used(where: Path, out: Path, since: float) -> tuple[str, list[Skipped]]:
    """Pack the entries used since then, in seconds since 1970; returns a line about the pack, and the skipped entries.

    The list may be passed to `refuse_unread`: an entry that could not be read does not keep others from being packed.
    """
    from kcachefs.core.entry_info import EntryInfo
    from kcachefs.fleet.views import FolderView

    infos = target.call(where, None, "ls", list[EntryInfo], names=False)
    used = {info.path for info in infos if info.used >= since}
    written = _write(FolderView(where), out, [], only=used)
    _say_all(written.left_out)
    return written.line + ("" if written.key else ", not signed"), written.left_out


def refuse_unread(left_out: list[Skipped]) -> None:
    """Raise if some of the entries could not be read because of the disk or the mount."""
    from kcachefs.frameworks.copying import Unreadable

    if unread := sum(isinstance(one, Unreadable) for one in left_out):
        raise StoreError(
            f"left out because reading failed: {counted(unread, 'entry', 'entries')}; see: kcachefs doctor"
        )


def check_place(out: Path) -> None:
    """Raise if no pack can be written there."""
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{out.absolute().parent}: is not a folder; the pack needs one")
    if out.exists() and not out.is_file():
        raise UsageError(f"{out}: is not an ordinary file; a pack needs a file of its own")


class _Written(NamedTuple):
    """A pack that was made."""

    manifest: Manifest
    size: int
    key: str
    """The public key; empty if it is not signed."""
    left_out: list[Skipped]

    @property
    def line(self) -> str:
        plain = self.manifest.bytes
        times = f", {plain / self.size:.0f} times smaller" if plain > self.size else ""
        return f"packed {_summary(self.manifest)} into {config.format_size(self.size)}{times}"


def _write(
    view: View,
    out: Path,
    wanted: list[str],
    *,
    only: set[str] | None = None,
    key: Path | None = None,
    oci: Path | None = None,
    level: int = LEVEL,
) -> _Written:
    """Write a pack, and an image if requested."""
    from kcachefs.fleet import finding, making, signing
    from kcachefs.fleet import oci as images

    if key is None and signing.default_key().exists():
        key = signing.default_key()
    signer = signing.Signer(key) if key is not None else None
    check_place(out)
    if oci is not None:
        images.check_place(oci)  # before an existing pack is replaced
    left_out: list[Skipped] = []
    entries = finding.find(view, wanted, left_out.append, only)
    if not entries:
        _say_all(left_out)
        refuse_unread(left_out)
        raise UsageError("there is nothing to pack; see: kcachefs ls")
    with bar("packing", sum(found.bytes for found in entries)) as advance:
        manifest = making.make(view, entries, out, level=level, signer=signer, say=left_out.append, progress=advance)
    if not manifest.entries:
        _say_all(left_out)
        refuse_unread(left_out)
        raise UsageError("there is nothing to pack; see: kcachefs ls")
    if oci is not None:
        images.write(oci, out, manifest)
    return _Written(manifest, out.stat().st_size, signing.public_text(signer.public) if signer else "", left_out)


@contextmanager
def pack_file(given: str) -> Iterator[Path]:
    """The pack in a file, in an image layout, or at a URL."""
    from kcachefs.fleet import downloads, oci

    if downloads.is_url(given):
        with bar("fetching", 0) as advance, downloads.fetched(given, advance) as path:
            yield path
    elif oci.is_layout(Path(given)):
        with oci.pack_in(Path(given)) as path:
            yield path
    elif Path(given).is_dir():
        raise UsageError(f"{given}: is a folder, but not an OCI image layout")
    else:
        if not Path(given).exists():
            downloads.refuse_unknown_scheme(given)
        yield Path(given)


@contextmanager
def view_of(mount: Path | None, store: Path | None) -> Iterator[View]:
    """The view to read from: the mount, or the store if it is not mounted."""
    from kcachefs.fleet.views import FolderView, StoreView

    mounted = mounted_at(mount, store)
    if mounted is not None:
        yield FolderView(mounted)
        return
    with target.store_at_rest(store) as fs:
        yield StoreView(fs)


def mounted_at(mount: Path | None, store: Path | None) -> Path | None:
    """The chosen mount, whoever owns it; None if the command means a store that is not mounted."""
    from kcachefs.mounts.finding import find

    if mount is not None and store is None:
        return find(mount)
    found = target.find_mount(mount, store)
    return Path(found) if found is not None else None


def _facts(pack: Pack) -> dict[str, str]:
    from kcachefs.fleet import signing

    return {"key": signing.public_text(pack.public) if pack.public else ""}


def _summary(manifest: Manifest) -> str:
    files, size = counted(manifest.files, "file"), config.format_size(manifest.bytes)
    return f"{counted(len(manifest.entries), 'entry', 'entries')} ({files}, {size})"


def _say_all(left_out: list[Skipped]) -> None:
    for one in left_out:
        complain(f"kcachefs: {printable(str(one))}")
