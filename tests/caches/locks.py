"""The locks of the library, for tests that hold them."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any


def locks_of_the_library() -> list[Any]:
    """Every lock that a module or an object of the library has now, and nobody holds."""
    kinds = type(threading.Lock()), type(threading.RLock())
    holders = [vars(module) for name, module in sys.modules.items() if name.startswith("kcachefs.caches.")]
    for value in gc.get_objects():
        if str(type(value).__module__).startswith("kcachefs.caches."):
            slots = [name for base in type(value).__mro__ for name in getattr(base, "__slots__", ())]
            holders += [getattr(value, "__dict__", {}), {name: getattr(value, name, None) for name in slots}]
    found = {id(held): held for holder in holders for held in holder.values() if isinstance(held, kinds)}
    free = [lock for lock in found.values() if lock.acquire(blocking=False)]
    for lock in free:
        lock.release()
    return free
