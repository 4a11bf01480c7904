"""`kcachefs evict`: evicts entries by name."""

from __future__ import annotations

import typer

from kcachefs.cli import evicting, target
from kcachefs.cli.outcome import show


def evict(
    entries: target.Entries,
    mount: target.Mount = None,
    store: target.Store = None,
    dry_run: target.DryRun = False,
    as_json: target.Json = False,
) -> None:
    """Evict entries now, except those in use or pinned."""
    from kcachefs.core.entry_info import Outcome

    with evicting.shown(mount, store, quiet=as_json):
        outcome = target.call(mount, store, "evict", Outcome, patterns=entries, dry_run=dry_run)
    show(outcome, "evict", "evicted", as_json)
    if outcome.refused:
        raise typer.Exit(1)
