"""One line of the doctor's report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was checked, what was found, and how to fix it."""

    level: str
    subject: str
    message: str
    remedy: str = ""
    mend: Callable[[], None] | None = None
    """The fix that `doctor --fix` applies, if one is safe to apply without asking."""
