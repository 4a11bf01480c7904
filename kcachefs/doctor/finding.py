"""One line of the doctor's report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and what to do about it."""

    level: str
    subject: str
    message: str
    remedy: str = ""
    mend: Callable[[], None] | None = None
    """What `doctor --fix` does about it, where that is safe to do without asking."""
