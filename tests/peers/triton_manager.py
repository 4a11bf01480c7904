"""The Triton cache manager of kcachefs under the name of Triton's own."""

from __future__ import annotations

import triton.runtime.cache

from kcachefs.triton import CacheManager


def install() -> None:
    """Replace Triton's."""
    triton.runtime.cache.FileCacheManager = CacheManager
