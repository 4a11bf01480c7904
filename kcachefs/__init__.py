"""A virtual cache filesystem for compiled GPU kernels: one directory, stored once, bounded, shared by a whole host."""

from __future__ import annotations

TYPE_CHECKING = False  # known to type checkers; importing typing would cost more than everything else here
if TYPE_CHECKING:
    from kcachefs import keys as keys
    from kcachefs.caches.cache import Cache as Cache
    from kcachefs.caches.decorator import cached as cached
    from kcachefs.caches.objects import ObjectCache as ObjectCache
    from kcachefs.caches.record import Entry as Entry
    from kcachefs.session.init import TooLate as TooLate
    from kcachefs.session.init import init as init
    from kcachefs.store.async_content import AsyncContentStore as AsyncContentStore
    from kcachefs.store.content import ContentStore as ContentStore

__version__ = "0.1.0"

__all__ = [
    "AsyncContentStore",
    "Cache",
    "ContentStore",
    "Entry",
    "ObjectCache",
    "TooLate",
    "__version__",
    "cached",
    "init",
    "keys",
]

_PLACES = {
    "AsyncContentStore": "kcachefs.store.async_content",
    "Cache": "kcachefs.caches.cache",
    "ContentStore": "kcachefs.store.content",
    "Entry": "kcachefs.caches.record",
    "ObjectCache": "kcachefs.caches.objects",
    "TooLate": "kcachefs.session.init",
    "cached": "kcachefs.caches.decorator",
    "init": "kcachefs.session.init",
}
"""Public names and where they live: imported on first use, so that each costs only what it needs."""


def __getattr__(name: str) -> object:
    import importlib

    if name == "keys":
        return importlib.import_module("kcachefs.keys")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
