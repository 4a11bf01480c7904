"""What is explained besides kernels and graphs: models of vLLM, the CUDA driver's programs, library caches."""

from __future__ import annotations

from collections.abc import Sequence

from kcachefs.insight import driver_cache, library_entries, models
from kcachefs.insight.causes import Cause
from kcachefs.insight.driver_cache import DriverProgram
from kcachefs.insight.library_entries import LibraryEntry
from kcachefs.insight.models import Model

Other = Model | DriverProgram | LibraryEntry


def explain(new: Other, older: Sequence[Other]) -> tuple[str | None, list[Cause]]:
    """The path of the nearest older one, and what differs."""
    nearest: Other | None
    if isinstance(new, LibraryEntry):
        nearest, causes = library_entries.explain(new, [one for one in older if isinstance(one, LibraryEntry)])
    elif isinstance(new, Model):
        nearest, causes = models.explain(new, [one for one in older if isinstance(one, Model)])
    else:
        nearest, causes = driver_cache.explain(new, [one for one in older if isinstance(one, DriverProgram)])
    return nearest.path if nearest is not None else None, causes
