"""Kept for those who import it from here: see `files`."""

from __future__ import annotations

from kcachefs.keys.files import file_digest as file_digest
