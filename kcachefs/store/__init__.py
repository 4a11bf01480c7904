"""The store: objects by digest, a catalog in LMDB, a journal before it. Knows neither mounts nor frameworks."""

from kcachefs.store.content import ContentStore, StoreStatistics
from kcachefs.store.store import Options, Store

__all__ = ["ContentStore", "Options", "Store", "StoreStatistics"]
