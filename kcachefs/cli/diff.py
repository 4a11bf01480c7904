"""`kcachefs diff`: shows how two entries differ."""

from __future__ import annotations

from typing import Annotated

import typer

from kcachefs.cli import target
from kcachefs.cli.explained import Folder, open_cache, the_one

SAME = 0
DIFFERENT = 1


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="An entry, as `ls` shows it: triton/KEY.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    mount: target.Mount = None,
    store: target.Store = None,
    folder: Folder = None,
    as_json: target.Json = False,
) -> None:
    """Show how entry B differs from entry A, ingredient by ingredient. Exits with 1 if they differ."""
    from kcachefs.cli.printing import print_json
    from kcachefs.insight.describing import compare
    from kcachefs.insight.explaining import Explainer
    from kcachefs.insight.index import Index
    from kcachefs.insight.telling import said

    cache = open_cache(mount, store, folder)
    explainer = Explainer(cache, Index(cache.place))
    found = compare(explainer, the_one(first, explainer), the_one(second, explainer))
    if as_json:
        print_json(found)
    else:
        print("\n".join(f"{one.kind}: {said(one)}" for one in found) or "they do not differ in anything that is stored")
    raise typer.Exit(DIFFERENT if found else SAME)
