"""`kcachefs mount`: the options, and the start of a daemon with them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs import config
from kcachefs.cli import target
from kcachefs.cli.printing import complain, print_json
from kcachefs.cli.usage import a_path
from kcachefs.errors import UsageError
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.daemon.registry import MountConfig

_OF_COMMAND = ("directory", "store", "foreground", "quiet", "as_json")
"""Parameters of the command that are not options of the mount."""


def mount(
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            parser=a_path,
            help="Where to mount; created if it does not exist. If omitted: $KCACHEFS_MOUNT (ignored with --store), "
            "else where the store was mounted last, else /mnt/kcache (root) or kcache in the user's cache directory "
            "for the default store, or STORE.mount for any other.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The store's directory.",
            show_default="$KCACHEFS_STORE or the user's cache directory",
            parser=a_path,
        ),
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Quota for the stored bytes.", show_default="20GiB")
    ] = None,
    max_files: Annotated[
        int | None, typer.Option(metavar="N", help="Quota for the number of files; 0 means no limit.", show_default="0")
    ] = None,
    min_free: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Space to leave free on the disk.", show_default="64MiB")
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="How long an entry is safe from eviction after a use; at most 3 while a limit is exceeded.",
            show_default="30",
        ),
    ] = None,
    floor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMESPACE=SIZE", help="Evict nothing from a namespace that holds no more than this. Repeatable."
        ),
    ] = None,
    ceiling: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMESPACE=SIZE", help="Keep a namespace below this size. Repeatable."),
    ] = None,
    max_size_per_uid: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Quota for the files of each user; 0: none.", show_default="0")
    ] = None,
    tenant_range: Annotated[
        list[str] | None,
        typer.Option(metavar="FIRST:COUNT", help="Count a user namespace's users as one user. Repeatable."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="shared: as modes and owners say. publish: nobody changes what others published. private: each user "
            "sees only their own files. read-only: only --writers write.",
            show_default="shared",
        ),
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
        typer.Option(
            "--allow-other/--no-allow-other",
            help="Let other users into the mount, or keep them out.",
            show_default="yes for root, or if /etc/fuse.conf has user_allow_other",
        ),
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
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]:PORT",
            help="Serve the metrics of the whole mount over HTTP, at /metrics, to whoever can connect.",
            show_default="off; without ADDRESS, to this host only",
        ),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Fetch what other hosts compiled from this bucket: s3://bucket/prefix."),
    ] = None,
    fleet_mode: Annotated[
        str | None,
        typer.Option(help="read, or publish: put what is compiled here into the bucket, too.", show_default="read"),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Trust what was signed with this public key (text or a file). Repeatable."),
    ] = None,
    fleet_key: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The secret key that signs what is published.", show_default="that of fleet keygen"
        ),
    ] = None,
    fleet_writers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="uid:N,gid:N,…", help="Whose entries are published. Repeatable.", show_default="the mount owner's"
        ),
    ] = None,
    fleet_scope: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The part of the bucket to use.", show_default="by machine and GPU"),
    ] = None,
    bytecode: Annotated[
        str | None,
        typer.Option(help="Python's bytecode in the mount: auto (where it helps), on or off.", show_default="auto"),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(help="text, or json: one object per line.", show_default="text")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")] = None,
    foreground: Annotated[
        bool, typer.Option("-f", "--foreground", help="Stay in the foreground, for a service manager.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing after success.")] = False,
    as_json: target.Json = False,
) -> None:
    """Mount a cache at DIR and return once it answers.

    What is not given here is taken from what `kcachefs set` left in the store, then from the configuration files.
    """
    given = {name: value for name, value in locals().items() if value not in (None, []) and name not in _OF_COMMAND}
    from kcachefs.mounts.making import serve_in_background, serve_in_foreground, shortage
    from kcachefs.mounts.places import place_for
    from kcachefs.mounts.settings import mount_settings

    if foreground and as_json:
        raise UsageError("--json: does not work with --foreground, which prints its log; leave out one of the two")
    settings = mount_settings(directory or place_for(store), store, given)
    moved = "" if foreground else serve_in_background(settings)
    for complaint in filter(None, (moved, shortage(settings))):
        complain(f"kcachefs: {printable(complaint)}")
    if foreground:
        serve_in_foreground(settings)
    elif as_json:
        print_json({"mountpoint": settings.mountpoint, "store": settings.store, "max_bytes": settings.limits.max_size})
    elif not quiet:
        print(_success(settings))


def _success(settings: MountConfig) -> str:
    """The message after mounting: where the mount is, how large it may grow, and how to use it."""
    import shlex

    from kcachefs.daemon import registry

    named = config.configured_mount()
    is_meant = len(registry.all_mounts()) == 1 if named is None else os.path.realpath(named) == settings.mountpoint
    chosen = "" if is_meant else f" --mount {shlex.quote(settings.mountpoint)}"
    size = config.format_size(settings.limits.max_size)
    return (
        printable(f"mounted at {settings.mountpoint}; it may grow to {size} in {settings.store}")
        + "\n"
        + printable(
            f'next: eval "$(kcachefs env{chosen})" and start your program, or: kcachefs run{chosen} -- python train.py'
        )
    )
