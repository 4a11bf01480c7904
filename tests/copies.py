"""Copies of kcachefs that a test may change."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.cli.scene import PACKAGE


def copy_package(target: Path) -> None:
    """With the bytecode of this Python, which stays good for each module that is not changed, and no other's: that
    would be two thousand files, and creating a file takes ext4 long where many were just deleted."""
    shutil.copytree(PACKAGE, target, ignore=_bytecode_of_others, dirs_exist_ok=True)


def _bytecode_of_others(folder: str, names: list[str]) -> set[str]:
    if Path(folder).name != "__pycache__":
        return set()
    return {name for name in names if not name.endswith(f".{sys.implementation.cache_tag}.pyc")}
