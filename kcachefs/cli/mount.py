"""`kcachefs mount`: the options, and the start of a daemon with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def mount(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to mount; created if it does not exist.")],
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The store's directory.", show_default="$KCACHEFS_STORE or the user's cache directory"
        ),
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Quota for the stored bytes.", show_default="20GiB")
    ] = None,
    max_files: Annotated[
        int | None, typer.Option(metavar="N", help="Quota for the number of files; 0: none.", show_default="0")
    ] = None,
    min_free: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Space to leave free on the disk.", show_default="64MiB")
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long an entry is safe from eviction after a use.", show_default="30"),
    ] = None,
    floor: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMESPACE=SIZE", help="Evict nothing from a namespace below this size. Repeatable."),
    ] = None,
    ceiling: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMESPACE=SIZE", help="Keep a namespace below this size. Repeatable."),
    ] = None,
    max_size_per_uid: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Quota for the files of each user; 0: none.", show_default="0")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="shared, publish, private or read-only; see the README.", show_default="shared"),
    ] = None,
    writers: Annotated[
        list[str] | None,
        typer.Option(metavar="uid:N,gid:N,…", help="Who may write where others may only read. Repeatable."),
    ] = None,
    base: Annotated[
        bool | None, typer.Option("--base/--no-base", help="Show a shared base tree beneath each user's private tree.")
    ] = None,
    uid: Annotated[int | None, typer.Option(metavar="N", help="Show every file as owned by this user.")] = None,
    gid: Annotated[int | None, typer.Option(metavar="N", help="Show every file as owned by this group.")] = None,
    umask: Annotated[
        str | None, typer.Option(metavar="OCTAL", help="Permission bits to hide from every file's mode.")
    ] = None,
    idmap: Annotated[
        bool | None, typer.Option("--idmap/--no-idmap", help="Allow idmapped mounts of this mount (Linux 6.12).")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="direct, or pyfuse3: the slower reference engine.", show_default="direct")
    ] = None,
    read_only: Annotated[bool | None, typer.Option("--read-only", help="Short for --policy read-only.")] = None,
    allow_other: Annotated[
        bool | None,
        typer.Option("--allow-other/--no-allow-other", help="Let other users in, or keep them out.", show_default="in"),
    ] = None,
    hang_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Replace a worker that sends no heartbeat for this long.", show_default="30"
        ),
    ] = None,
    metrics_gid: Annotated[
        int | None,
        typer.Option(metavar="N", help="Let members of this group read the metrics of the whole mount."),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(help="text, or json: one object per line.", show_default="text")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")] = None,
    foreground: Annotated[
        bool, typer.Option("-f", "--foreground", help="Stay in the foreground, for a service manager.")
    ] = False,
) -> None:
    """Mount a cache at DIR and return once it answers.

    What is not given here is taken from what `kcachefs set` left in the store, then from the configuration files.
    """
    given = {name: value for name, value in locals().items() if value not in (None, [])}
    from kcachefs.mounts.making import serve_in_background, serve_in_foreground, shortage
    from kcachefs.mounts.settings import mount_settings

    for name in ("directory", "store", "foreground"):
        given.pop(name, None)
    settings = mount_settings(directory, store, given)
    if not foreground:
        serve_in_background(settings)
    if complaint := shortage(settings):
        print(f"kcachefs: {complaint}", file=sys.stderr, flush=True)
    if foreground:
        serve_in_foreground(settings)
