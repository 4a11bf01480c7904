"""The older Triton kernel that a new one is most like."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from kcachefs.insight.causes import Cause, Kind
from kcachefs.insight.constants import NUMBER
from kcachefs.insight.kernel_differences import differences
from kcachefs.insight.kernels import Kernel, shown
from kcachefs.insight.sources import Read, read_file

_NEAR_LINES = 3


def explain(new: Kernel, older: Iterable[Kernel], read: Read = read_file) -> tuple[Kernel | None, list[Cause]]:
    """The nearest of `older` and what differs, the most telling first; no kernel if none is like it."""
    candidates = list(older)
    named = [one for one in candidates if one.name == new.name]
    if named:
        nearest = min(named, key=lambda one: distance(new, one))
        causes = differences(new, nearest, read)
        return nearest, causes or [unexplained(new)]
    renamed = [one for one in candidates if _at_same_place(new, one)]
    if not renamed:
        return None, [Cause(Kind.NEW, f"new: no kernel called {new.name} was here before")]
    nearest = min(renamed, key=lambda one: distance(new, one))
    words = f"the kernel is called {new.name} now, was {nearest.name} ({shown(nearest.place)})"
    return nearest, [Cause(Kind.SOURCE, words), *differences(new, nearest, read)]


def unexplained(new: Kernel) -> Cause:
    words = f"all that Triton {new.version} wrote down is the same; what differs is not in the files"
    return Cause(Kind.UNKNOWN, words, certain=False)


def _at_same_place(new: Kernel, old: Kernel) -> bool:
    return (
        bool(new.place.line)
        and os.path.basename(old.place.file) == os.path.basename(new.place.file)
        and abs(old.place.line - new.place.line) <= _NEAR_LINES
        and [one.type for one in old.arguments.values()] == [one.type for one in new.arguments.values()]
    )


def distance(new: Kernel, old: Kernel) -> tuple[float, float]:
    """How many ingredients differ and how much of the body; then how long ago."""
    score = float((new.version != old.version) + (new.target != old.target))
    score += _differing(new.environment, old.environment) + _differing(new.options, old.options)
    score += _differing(new.arguments, old.arguments)
    ours, theirs = _texts(new), _texts(old)
    score += 4 * (1 - _shared(ours, theirs))
    score += 2 * (1 - _shared({NUMBER.sub("#", one) for one in ours}, {NUMBER.sub("#", one) for one in theirs}))
    return round(score, 4), -old.created


def _differing(ours: Mapping[str, object], theirs: Mapping[str, object]) -> int:
    return sum(ours.get(name) != theirs.get(name) for name in ours.keys() | theirs.keys())


def _texts(kernel: Kernel) -> set[str]:
    return {one.text + one.given for _, one in kernel.operations()}


def _shared(ours: set[str], theirs: set[str]) -> float:
    union = len(ours | theirs)
    return len(ours & theirs) / union if union else 1.0
