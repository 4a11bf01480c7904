"""`kcachefs show`: shows what is known of one entry."""

from __future__ import annotations

from typing import Annotated

import typer

from kcachefs.cli import target
from kcachefs.cli.explained import Folder, open_cache, the_one
from kcachefs.errors import UsageError


def show(
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help="As `ls` shows it: triton/KEY, or a kernel's name.")],
    source: Annotated[
        bool, typer.Option("--source", help="Print a kernel's first IR with its source lines, or a graph's code.")
    ] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="Print its PTX.")] = False,
    ttir: Annotated[bool, typer.Option("--ttir", help="Print its Triton IR.")] = False,
    graph: Annotated[bool, typer.Option("--graph", help="Print the graph, with the model's lines.")] = False,
    mount: target.Mount = None,
    store: target.Store = None,
    folder: Folder = None,
    as_json: target.Json = False,
) -> None:
    """Show what is known of one entry: a kernel or a compiled graph."""
    from kcachefs.cli.printing import print_json
    from kcachefs.insight.describing import describe, text_of
    from kcachefs.insight.explaining import Explainer
    from kcachefs.insight.index import Index
    from kcachefs.printable import printable

    chosen = [name for name, on in (("source", source), ("ptx", ptx), ("ttir", ttir), ("graph", graph)) if on]
    if len(chosen) > 1:
        raise UsageError("give only one of --source, --ptx, --ttir and --graph")
    cache = open_cache(mount, store, folder)
    explainer = Explainer(cache, Index(cache.place))
    wanted = the_one(entry, explainer)
    if chosen:
        text = text_of(explainer, wanted, chosen[0])
        if as_json:
            print_json({"path": wanted.path, chosen[0]: text})
            return
        for line in text.splitlines():
            print(printable(line.replace("\t", "    ")))
        return
    facts = describe(explainer, wanted)
    if as_json:
        print_json(facts)
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {printable(value)}")
