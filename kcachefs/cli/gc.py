"""`kcachefs gc`: frees disk space that deleted entries still occupy."""

from __future__ import annotations

import contextlib
from pathlib import Path

from kcachefs import config
from kcachefs.cli import target
from kcachefs.config import format_size
from kcachefs.errors import StoreBusy


def gc(
    mount: target.Mount = None,
    store: target.Store = None,
    dry_run: target.DryRun = False,
    as_json: target.Json = False,
) -> None:
    """Free the disk space that deleted entries still occupy.

    If the store is not mounted, also rewrites a catalog that is mostly free.
    """
    import msgspec

    from kcachefs.cli.printing import print_json
    from kcachefs.core.entry_info import Outcome

    at_rest = None if dry_run or target.find_mount(mount, store) is not None else store or config.default_store()
    before = _catalog_bytes(at_rest)
    outcome = target.call(mount, store, "gc", Outcome, dry_run=dry_run)
    if at_rest is not None:
        from kcachefs.store.header import locked
        from kcachefs.store.lmdb_file import compact_lmdb

        with contextlib.suppress(StoreBusy), locked(at_rest):  # the store may have been mounted meanwhile
            compact_lmdb(at_rest / "catalog")
        freed = outcome.freed_bytes + max(0, before - _catalog_bytes(at_rest))
        outcome = msgspec.structs.replace(outcome, freed_bytes=freed)
    if as_json:
        print_json(outcome, on_one_line=True)
    else:
        print(f"{'would free' if dry_run else 'freed'} {format_size(outcome.freed_bytes)}")


def _catalog_bytes(store: Path | None) -> int:
    with contextlib.suppress(OSError):
        return (store / "catalog" / "data.mdb").stat().st_size if store is not None else 0
    return 0
