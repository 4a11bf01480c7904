"""Prints the result of a command on entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcachefs.cli.printing import counted, print_json
from kcachefs.config import format_size
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.core.entry_info import Outcome


def show(outcome: Outcome, verb: str, participle: str, as_json: bool) -> None:
    """Print for example "evicted 3 entries, 1.2 MiB", or "would evict …" after a dry run."""
    if as_json:
        print_json(outcome, on_one_line=True)
        return
    for path in outcome.entries:
        print(printable(path))
    done = f"would {verb}" if outcome.dry_run else participle
    print(f"{done} {counted(len(outcome.entries), 'entry', 'entries')}, {format_size(outcome.stored_bytes)}")
    for paths, why in ((outcome.refused, "left alone, in use or pinned"), (outcome.gone, "gone already")):
        if paths:
            print(printable(f"{why}: {', '.join(paths[:10])}"))
        if len(paths) > 10:
            print(f"and {len(paths) - 10} more")
