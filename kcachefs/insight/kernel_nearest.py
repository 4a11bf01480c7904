"""The older Triton kernel that a new one is most like."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kcachefs.insight.causes import Cause, Kind
from kcachefs.insight.kernel_differences import differences
from kcachefs.insight.kernels import TritonKernel, shown
from kcachefs.insight.sketches import KernelSketch, kernel_distance, of_kernel
from kcachefs.insight.sources import Read, read_file

IS_NEW = Cause(Kind.NEW, "new: no kernel of that name was here before")
_NEAR_LINES = 3


def explain(
    new: TritonKernel, older: Sequence[TritonKernel], read: Read = read_file
) -> tuple[TritonKernel | None, list[Cause]]:
    """The nearest of `older` and what differs, the most telling first; no kernel if none is similar."""
    nearest = find_nearest(of_kernel(new), [(of_kernel(one), one.created) for one in older])
    if nearest is None:
        return None, [IS_NEW]
    return older[nearest], causes(new, older[nearest], read)


def find_nearest(new: KernelSketch, older: Sequence[tuple[KernelSketch, float]]) -> int | None:
    """The index of the nearest older kernel, of the same name or else the same place; each has the time it was made."""
    named = [at for at, (one, _) in enumerate(older) if one.name == new.name]
    candidates = named or [at for at, (one, _) in enumerate(older) if _at_same_place(new, one)]
    return min(candidates, key=lambda at: (kernel_distance(new, older[at][0]), -older[at][1]), default=None)


def causes(new: TritonKernel, old: TritonKernel, read: Read = read_file) -> list[Cause]:
    """Why `new` is not `old`, the most telling first; never empty."""
    found = differences(new, old, read)
    if new.name != old.name:
        words = f"the kernel is called {new.name} now, was {old.name} ({shown(old.place)})"
        return [Cause(Kind.SOURCE, words), *found]
    return found or [_unexplained(new)]


def _unexplained(new: TritonKernel) -> Cause:
    words = f"all that Triton {new.version} wrote down is the same; what differs is not in the files"
    return Cause(Kind.UNKNOWN, words, certain=False)


def _at_same_place(new: KernelSketch, old: KernelSketch) -> bool:
    return (
        new.line > 0
        and os.path.basename(old.file) == os.path.basename(new.file)
        and abs(old.line - new.line) <= _NEAR_LINES
        and old.types == new.types
    )
