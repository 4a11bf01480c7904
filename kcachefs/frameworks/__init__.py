"""The frameworks that cache compiled kernels: their variables and folders, and how to point them at a mount."""

from __future__ import annotations

from kcachefs.frameworks.environment import environment, make_folders
from kcachefs.frameworks.framework import Framework
from kcachefs.frameworks.records import FRAMEWORKS

__all__ = ["FRAMEWORKS", "Framework", "environment", "make_folders"]
