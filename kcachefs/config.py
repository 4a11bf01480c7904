"""Configuration: the only place that reads the environment, a file or defaults of the platform."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def default_store() -> Path:
    """Where the store is unless a flag says otherwise: `$KCACHEFS_STORE`, else in the user's cache directory."""
    chosen = os.environ.get("KCACHEFS_STORE")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir()) / "kcachefs"
