"""`kcachefs explain`: says why something had to be compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs.cli import target
from kcachefs.cli.explained import Folder, moment, open_cache, the_one
from kcachefs.errors import UsageError

if TYPE_CHECKING:
    from kcachefs.core.insight_info import MadeEntry, RunInfo
    from kcachefs.insight.explaining import Explainer, Explanation


def explain(
    entry: Annotated[
        str | None,
        typer.Argument(
            metavar="[ENTRY]",
            help="As `ls` shows it: triton/KEY, or a kernel's name. Without it, the last run that compiled.",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        int | None, typer.Option("--run", metavar="N", help="Explain what this run compiled; see `kcachefs runs`.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="AGE", help="Explain what was compiled within this time: 30m, 2h, 7d."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show each entry with everything that differs.")] = False,
    waste: Annotated[
        bool,
        typer.Option(
            "--waste", help="Show duplicates instead: kernels with the same PTX, graphs that compute the same."
        ),
    ] = False,
    mount: target.Mount = None,
    store: target.Store = None,
    folder: Folder = None,
    as_json: target.Json = False,
) -> None:
    """Say why something had to be compiled.

    Each new kernel or graph is compared with the nearest one that was there before the run. The first difference is the
    cause: evicted, damaged, moved, version, GPU, environment, options, types, constants, source, text. "Likely" marks a
    guess.
    """
    if (entry is not None) + (run is not None) + (since is not None) + waste > 1:
        raise UsageError("give only one of ENTRY, --run, --since and --waste")
    from kcachefs.insight.explaining import Explainer
    from kcachefs.insight.index import Index

    cache = open_cache(mount, store, folder)
    explainer = Explainer(cache, Index(cache.place))
    if waste:
        _show_waste(explainer, as_json=as_json)
        return
    made, of_run, boundary = _chosen(explainer, entry, run, since)
    found = explainer.explain(made, boundary)
    if as_json:
        _print_json(found, of_run)
    else:
        _show(found, of_run, len(made), everything=everything or entry is not None)


def _chosen(
    explainer: Explainer, entry: str | None, run: int | None, since: str | None
) -> tuple[list[MadeEntry], RunInfo | None, float | None]:
    """The entries to explain, the run that made them, and since when they were made, as far as these were asked for."""
    if entry is not None:
        return [the_one(entry, explainer)], None, None
    if since is not None:
        when = moment(since)
        return explainer.made_since(when), None, when
    if run is not None:
        chosen = next((one for one in explainer.cache.runs() if one.run == run), None)
        if chosen is None:
            raise UsageError(f"--run {run}: no such run; see: kcachefs runs")
    else:
        chosen = explainer.last_run()
    if chosen is None:
        raise UsageError("no run is known here; give --since 1h, or an entry")
    return explainer.made_by(chosen), chosen, None


def _print_json(found: list[Explanation], run: RunInfo | None) -> None:
    from kcachefs.cli.printing import print_json
    from kcachefs.insight.telling import grouped

    causes = [
        {
            "kind": group.cause.kind,
            "words": group.cause.words,
            "certain": group.cause.certain,
            "entries": len(group.members),
        }
        for group in grouped(found)
    ]
    print_json({"run": run, "causes": causes, "entries": found})


def _show(found: list[Explanation], run: RunInfo | None, made: int, *, everything: bool) -> None:
    from kcachefs.cli.printing import counted
    from kcachefs.insight.telling import advice, grouped, heading, in_full, lines

    print(heading(found, run, counted(made, "entry", "entries") if made else "nothing"))
    if not found:
        if made:
            print("None can be read: there is no kernel, graph, model or driver program among them.")
        return
    groups = grouped(found)
    if everything:
        for one in found:
            print("\n".join(["", *in_full(one)]))
        return
    print("\n".join(["", *lines(groups)]) if groups else "")
    for line in advice(groups):
        print(f"  {line}")


def _show_waste(explainer: Explainer, *, as_json: bool) -> None:
    from kcachefs.cli.printing import print_json
    from kcachefs.config import format_size
    from kcachefs.insight.waste import find_waste
    from kcachefs.printable import printable

    found = find_waste(explainer)
    if as_json:
        print_json(found)
        return
    if not found:
        print("there are no duplicates")
    for one in found:
        print(f"{format_size(one.bytes):>10}  {printable(one.words)}")
        for path in one.entries[:4]:
            print(f"{'':>12}{printable(path)}")
