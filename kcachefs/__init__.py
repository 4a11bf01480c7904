"""A virtual cache filesystem for compiled GPU kernels: one directory, stored once, bounded, shared by a whole host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcachefs.frameworks.startup import TooLate as TooLate
    from kcachefs.frameworks.startup import init as init
    from kcachefs.store import ContentStore as ContentStore

__version__ = "0.1.0"

_PUBLIC = {
    "ContentStore": "kcachefs.store",
    "TooLate": "kcachefs.frameworks.startup",
    "init": "kcachefs.frameworks.startup",
}
"""Public names and where they live: imported on first use, so that `import kcachefs` costs next to nothing."""


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)
