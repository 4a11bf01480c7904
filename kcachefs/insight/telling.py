"""Explanations in words: a run's causes with how much was compiled for each, and each entry with all of its causes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kcachefs.core.insight_info import RunInfo
from kcachefs.insight.causes import ADVICE, Kind
from kcachefs.insight.explaining import Explanation, Told
from kcachefs.printable import printable

_NAMES_SHOWN = 4


@dataclass(slots=True)
class Group:
    """Entries with the same first cause."""

    cause: Told
    members: list[Explanation] = field(default_factory=list)

    @property
    def counts(self) -> str:
        """How much was compiled because of the cause.

        >>> Group(Told("new", "", True), [Explanation("", "graph", "", []), Explanation("", "kernel", "", [])]).counts
        '1 graph, 1 kernel'
        """
        found = []
        for kind in ("model", "program", "graph", "kernel", "call", "value", "helper"):
            number = sum(one.kind == kind for one in self.members)
            if number:
                found.append(f"{number:,} {kind}{'' if number == 1 else 's'}")
        return ", ".join(found)

    @property
    def names(self) -> str:
        every = list(dict.fromkeys(one.name for one in self.members))
        more = f" and {len(every) - _NAMES_SHOWN} more" if len(every) > _NAMES_SHOWN else ""
        return ", ".join(every[:_NAMES_SHOWN]) + more


def grouped(explanations: Iterable[Explanation]) -> list[Group]:
    """The causes, most entries first; a cause that concerns only helpers comes last, because nobody can change it."""
    found: dict[tuple[str, str], Group] = {}
    for one in explanations:
        if one.causes:
            first = one.causes[0]
            found.setdefault((first.kind, first.words), Group(first)).members.append(one)
    return sorted(found.values(), key=lambda one: (_is_of_helpers(one), -len(one.members)))


def _is_of_helpers(group: Group) -> bool:
    return all(one.kind == "helper" for one in group.members)


def lines(groups: Sequence[Group], limit: int | None = None) -> list[str]:
    """One or two lines for each cause."""
    shown = groups[:limit]
    width = max((len(group.counts) for group in shown), default=0)
    found = []
    for group in shown:
        found.append(f"{group.counts:>{width}}  {said(group.cause)}  [{printable(group.names)}]")
    if len(groups) > len(shown):
        rest = sum(len(group.members) for group in groups[len(shown) :])
        found.append(f"{'':>{width}}  and {len(groups) - len(shown)} more causes, of {rest} entries")
    return found


def advice(groups: Sequence[Group]) -> list[str]:
    """The advice on each kind of cause, once."""
    kinds = dict.fromkeys(Kind(group.cause.kind) for group in groups)
    return [f"{kind.value}: {ADVICE[kind]}" for kind in kinds if kind in ADVICE]


def said(cause: Told) -> str:
    """A cause in words; a guess is marked as one."""
    return printable(cause.words if cause.certain else f"likely: {cause.words}")


def in_full(one: Explanation) -> list[str]:
    """An entry with everything known about why it is new."""
    cost = f", {one.seconds:.1f} s" if one.seconds is not None else ""
    found = [f"{one.kind} {printable(one.name)}{cost}", f"    {printable(one.path)}"]
    if one.nearest is not None:
        found.append(f"    compared with {printable(one.nearest)}")
    if one.graph is not None:
        found.append(f"    compiled for {printable(one.graph)}")
    if one.tuned is not None:
        found.append(f"    autotuning chose {printable(one.tuned)}")
    return found + [f"    {number}. {said(cause)}" for number, cause in enumerate(one.causes, 1)]


def heading(explanations: Sequence[Explanation], run: RunInfo | None, otherwise: str = "nothing") -> str:
    """What was compiled, and by which run; `otherwise` where there is nothing to explain."""
    counts = Group(Told("", "", True), list(explanations)).counts or otherwise
    known = [one.seconds for one in explanations if one.seconds is not None]
    took = f", {sum(known):.1f} s of compiling" if known else ""
    if run is None:
        return f"compiled: {counts}{took}"
    command = f": {printable(run.argv)}" if run.argv else f" (process {run.pid})"
    return f"run {run.run}{command}\ncompiled: {counts}{took}"
