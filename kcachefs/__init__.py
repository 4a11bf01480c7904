"""A virtual cache filesystem for compiled GPU kernels: one directory, stored once, bounded, shared by a whole host."""

from __future__ import annotations

TYPE_CHECKING = False  # known to type checkers; importing typing would cost more than all else here
if TYPE_CHECKING:
    from kcachefs import keys as keys
    from kcachefs.caches import Cache as Cache
    from kcachefs.caches import Entry as Entry
    from kcachefs.caches import ObjectCache as ObjectCache
    from kcachefs.caches import cached as cached
    from kcachefs.session.init import TooLate as TooLate
    from kcachefs.session.init import init as init
    from kcachefs.store import ContentStore as ContentStore

__version__ = "0.1.0"

_PUBLIC = {
    "Cache": "kcachefs.caches",
    "ContentStore": "kcachefs.store",
    "Entry": "kcachefs.caches",
    "ObjectCache": "kcachefs.caches",
    "cached": "kcachefs.caches",
    "TooLate": "kcachefs.session.init",
    "init": "kcachefs.session.init",
}
"""Public names and where they live: imported on first use, so that `import kcachefs` costs next to nothing."""


def __getattr__(name: str) -> object:
    import importlib

    if name == "keys":
        return importlib.import_module("kcachefs.keys")
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
