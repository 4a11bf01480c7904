"""`kcachefs prune`: evicts entries by age, use or size."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from kcachefs.cli import evicting, target
from kcachefs.cli.outcome import show
from kcachefs.config import parse_size
from kcachefs.errors import UsageError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def prune(
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Evict entries not used for this long: 30d, 12h, 90m.")
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Evict the oldest entries until the rest fits in this size.")
    ] = None,
    unused: Annotated[bool, typer.Option("--unused", help="Evict entries not used since they were written.")] = False,
    mount: target.Mount = None,
    store: target.Store = None,
    dry_run: target.DryRun = False,
    as_json: target.Json = False,
) -> None:
    """Evict entries that are old, unused, or beyond a size."""
    from kcachefs.core.entry_info import Outcome

    if older_than is None and max_size is None and not unused:
        raise UsageError("nothing to prune by; give --older-than, --max-size or --unused")
    seconds = parse_age(older_than) if older_than is not None else None
    size = parse_size(max_size) if max_size is not None else None
    with evicting.shown(mount, store, quiet=as_json):
        outcome = target.call(
            mount, store, "prune", Outcome, older_than=seconds, max_size=size, unused=unused, dry_run=dry_run
        )
    show(outcome, "prune", "pruned", as_json)


def parse_age(text: str) -> float:
    """The seconds in an age such as people write.

    >>> parse_age("30d"), parse_age("90m")
    (2592000.0, 5400.0)
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhdwSHDW])", text.strip(), re.ASCII)
    if match is None and re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?\s*M", text.strip(), re.ASCII):
        number = text.strip()[:-1].strip()
        raise UsageError(f"{text!r}: M could mean months; write {number}m for minutes, or days, as in 180d")
    if match is None:
        raise UsageError(f"{text!r} is not an age; write it like 30d, 12h or 90m")
    return float(match[1]) * _UNITS[match[2].lower()]
