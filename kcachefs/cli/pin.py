"""`kcachefs pin` and `kcachefs unpin`: protect entries from eviction."""

from __future__ import annotations

from kcachefs.cli import target
from kcachefs.cli.outcome import show


def pin(
    entries: target.Entries, mount: target.Mount = None, store: target.Store = None, as_json: target.Json = False
) -> None:
    """Protect entries from eviction."""
    _pin(entries, mount, store, as_json, pinned=True)


def unpin(
    entries: target.Entries, mount: target.Mount = None, store: target.Store = None, as_json: target.Json = False
) -> None:
    """Let pinned entries be evicted again."""
    _pin(entries, mount, store, as_json, pinned=False)


def _pin(entries: list[str], mount: target.Mount, store: target.Store, as_json: bool, *, pinned: bool) -> None:
    from kcachefs.core.entry_info import Outcome

    outcome = target.call(mount, store, "pin", Outcome, patterns=entries, pinned=pinned)
    show(outcome, "pin" if pinned else "unpin", "pinned" if pinned else "unpinned", as_json)
