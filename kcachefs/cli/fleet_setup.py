"""`kcachefs fleet init`, `check` and `gc`: the commands for an administrator of a bucket."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs import config
from kcachefs.cli import target
from kcachefs.cli.printing import counted, print_json
from kcachefs.errors import UsageError
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.fleet.checking import Tried

Url = Annotated[
    str | None,
    typer.Argument(
        metavar="[URL]",
        help="The bucket: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER. "
        "Add ?endpoint=http://HOST:PORT for a server of your own. By default, the one in the configuration.",
        show_default=False,
    ),
]


def chosen_url(url: str | None) -> str:
    """The chosen bucket: the given URL, else the one in the configuration files."""
    from kcachefs.mounts import config_files

    if url is not None:
        return url
    for _, values in config_files.read_all():
        if values.get("fleet"):
            return str(values["fleet"])
    raise UsageError("no bucket given; name one, or write fleet = 's3://…' into the configuration file")


def chosen_url_and(url: str | None, names: list[str] | None) -> tuple[str, list[str]]:
    """Like `chosen_url`, for commands whose URL is followed by names: a first word that is not a URL is a name."""
    if url is not None and "://" not in url:
        return chosen_url(None), [url, *(names or [])]
    return chosen_url(url), names or []


Scope = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The part of the bucket to use.",
        show_default="the machine and its GPUs, like x86_64-cuda90",
    ),
]
Days = Annotated[int, typer.Option(min=3, max=3650, help="How long the bucket keeps what nobody uses.")]

_DAYS = 30


def init(
    url: Url = None,
    days: Days = _DAYS,
    print_only: Annotated[bool, typer.Option("--print-only", help="Write nothing into the bucket.")] = False,
    as_json: target.Json = False,
) -> None:
    """Prepare a bucket, and print the lifecycle rule to give it and the rights that readers and publishers need."""
    import msgspec

    from kcachefs.fleet import cloud_rules
    from kcachefs.fleet.bucket import Settings
    from kcachefs.fleet.bucket_layout import SETTINGS
    from kcachefs.fleet.object_storage import open_storage

    url = chosen_url(url)
    storage = open_storage(url, retries=2)
    if not print_only:
        storage.put(SETTINGS, msgspec.json.encode(Settings(days=days)))
    rules = cloud_rules.rules(url, days)
    if as_json:
        print_json({"url": url, "days": days, "written": not print_only, "rules": [one._asdict() for one in rules]})
        return
    for rule in rules:
        print(f"# {rule.title}")
        if rule.command:
            print("".join(f"#   {line}\n" for line in rule.command.splitlines()), end="")
        print(rule.content, end="\n\n")
    print(f"next: kcachefs fleet check {url}")


def check(
    url: Url = None,
    role: Annotated[
        str, typer.Option("--for", metavar="read|publish|gc", help="What these credentials are meant for.")
    ] = "publish",
    scope: Scope = None,
    as_json: target.Json = False,
) -> None:
    """Try every operation that a fleet needs of a bucket. Exits with 1 if one is missing."""
    from kcachefs.fleet import checking, scopes
    from kcachefs.fleet.bucket_layout import Layout
    from kcachefs.fleet.object_storage import open_storage

    if role not in checking.ROLES:
        raise UsageError(f"--for {role}: choose one of {', '.join(checking.ROLES)}")
    url = chosen_url(url)
    needed = checking.ROLES[: checking.ROLES.index(role) + 1]
    layout = Layout(scope or scopes.default_scope())
    tried = []
    for one in checking.check(open_storage(url), layout):
        tried.append(one)
        if not as_json:
            print(printable(_line(one, one.role in needed)), flush=True)
    missing = [one.operation for one in tried if not one.works and one.role in needed]
    if not set(needed) <= {one.role for one in tried}:
        missing.append("and whatever comes after it, which was not tried")
    if as_json:
        operations = [one._asdict() for one in tried]
        print_json({"url": url, "scope": layout.scope, "for": role, "operations": operations, "missing": missing})
    elif missing:
        print(printable(f"not enough to {role}: missing {', '.join(missing)}"))
    else:
        print(f"enough to {role}")
    if missing:
        sys.exit(1)


def _line(tried: Tried, is_needed: bool) -> str:
    mark = "ok" if tried.works else "FAILS" if is_needed else "no"
    return f"{mark:<6} {tried.operation}" + (f": {tried.said}" if tried.said else "")


def gc(
    url: Url = None,
    days: Annotated[
        int | None,
        typer.Option(min=1, help="Delete what is older than this many days.", show_default="what fleet init set"),
    ] = None,
    scope: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this part of the bucket.", show_default="all of them")
    ] = None,
    dry_run: target.DryRun = False,
    as_json: target.Json = False,
) -> None:
    """Delete what is old or of no use, where the bucket has no lifecycle rule. Needs the right to delete.

    Nodes republish packs that are still in use before they expire.
    """
    from kcachefs.fleet import collecting, object_storage
    from kcachefs.fleet.bucket import read_settings
    from kcachefs.fleet.bucket_layout import Layout, scopes_in
    from kcachefs.fleet.claims import Claims

    url = chosen_url(url)
    storage = object_storage.open_storage(url, retries=2)
    limit = days if days is not None else read_settings(storage).days
    found: list[collecting.Garbage] = []
    scopes = scopes_in(storage)
    if scope is not None and scope not in scopes:
        has = f"it has {', '.join(scopes)}" if scopes else "it has none yet"
        raise UsageError(f"{scope}: the bucket has no such scope; {has}")
    for name in [scope] if scope is not None else scopes:
        layout = Layout(name)
        # A dry run writes nothing, so it has to use this machine's clock instead of the store's.
        now = time.time() if dry_run else Claims(storage, layout).now()
        is_there = partial(object_storage.is_there, storage)
        found += collecting.garbage(layout, storage.objects(layout.root), now, limit, is_there)
        found += collecting.leftovers(storage.unfinished(layout.root), now)
    size = sum(one.stored.size for one in found)
    if not dry_run:
        for start in range(0, len(found), 500):
            storage.delete([one.stored.key for one in found[start : start + 500]])
    if as_json:
        listed = [{"key": one.stored.key, "bytes": one.stored.size, "why": one.why} for one in found]
        print_json({"objects": listed, "bytes": size, "dry_run": dry_run})
        return
    if dry_run:
        for one in found:
            print(printable(f"{one.stored.key}: {one.why}"))
    done = "would be deleted" if dry_run else "deleted"
    print(f"{counted(len(found), 'object')} {done} ({config.format_size(size)})")
