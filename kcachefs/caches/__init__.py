"""Two-level caches of compiled things: memory, and a folder of the mount or any directory.

Names are imported on first use: `Cache` alone needs neither the keys nor an event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcachefs.caches.cache import Cache as Cache
    from kcachefs.caches.cache import Stats as Stats
    from kcachefs.caches.decorator import CachedFunction as CachedFunction
    from kcachefs.caches.decorator import CacheInfo as CacheInfo
    from kcachefs.caches.decorator import cached as cached
    from kcachefs.caches.objects import ObjectCache as ObjectCache
    from kcachefs.caches.objects import ObjectStats as ObjectStats
    from kcachefs.caches.record import Entry as Entry

_PLACES = {
    "Cache": "cache",
    "CacheInfo": "decorator",
    "CachedFunction": "decorator",
    "Entry": "record",
    "ObjectCache": "objects",
    "ObjectStats": "objects",
    "Stats": "cache",
    "cached": "decorator",
}

__all__ = ["Cache", "CacheInfo", "CachedFunction", "Entry", "ObjectCache", "ObjectStats", "Stats", "cached"]


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
