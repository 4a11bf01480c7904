"""Refuses an interpreter that the daemon would not be safe on."""

from __future__ import annotations

import sys

from kcachefs.errors import FreeThreaded


def refuse_free_threading(*, gil_enabled: bool | None = None) -> None:
    """Raise FreeThreaded if this process runs without the GIL; `gil_enabled` overrides what the interpreter says.

    The engine's thread reads tables without a lock while others change them, which only the GIL makes safe.
    docs/concurrency.md lists what would have to change.
    """
    if gil_enabled is None:
        gil_enabled = getattr(sys, "_is_gil_enabled", lambda: True)()
    if not gil_enabled:
        raise FreeThreaded(
            "kcachefs cannot serve a mount on free-threaded Python yet; set PYTHON_GIL=1, or use a Python with the GIL"
        )
