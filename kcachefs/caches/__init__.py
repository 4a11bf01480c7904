"""Two-level caches of compiled things: memory, and a folder of the mount or any directory."""

from kcachefs.caches.cache import Cache, Stats
from kcachefs.caches.decorator import cached
from kcachefs.caches.record import Entry

__all__ = ["Cache", "Entry", "Stats", "cached"]
