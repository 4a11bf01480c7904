"""The store: objects by digest, a catalog in LMDB, a journal in front of it. Knows neither mounts nor frameworks."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcachefs.store.content import ContentStore as ContentStore
    from kcachefs.store.content import StoreStatistics as StoreStatistics
    from kcachefs.store.store import Options as Options
    from kcachefs.store.store import Store as Store

_MODULES = {"ContentStore": "content", "StoreStatistics": "content", "Options": "store", "Store": "store"}


def __getattr__(name: str) -> object:
    """Import names on first use: a command that only asks a daemon needs a module of this package, but no store."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
