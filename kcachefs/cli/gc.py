"""`kcachefs gc`: frees disk space that deleted entries still occupy."""

from __future__ import annotations

from kcachefs.cli import target
from kcachefs.config import format_size


def gc(
    mount: target.Mount = None,
    store: target.Store = None,
    dry_run: target.DryRun = False,
    as_json: target.Json = False,
) -> None:
    """Free the disk space that deleted entries still occupy."""
    from kcachefs.cli.printing import print_json
    from kcachefs.core.entry_info import Outcome

    outcome = target.call(mount, store, "gc", Outcome, dry_run=dry_run)
    if as_json:
        print_json(outcome, on_one_line=True)
    else:
        print(f"{'would free' if dry_run else 'freed'} {format_size(outcome.freed_bytes)}")
