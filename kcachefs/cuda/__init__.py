"""Caches for programs compiled with cuda-python: `ProgramCache` for cuda.core, `NvrtcCache` for bare NVRTC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcachefs.cuda.nvrtc import Compiled as Compiled
    from kcachefs.cuda.nvrtc import NvrtcCache as NvrtcCache
    from kcachefs.cuda.program import ProgramCache as ProgramCache

_OFFERED = {"Compiled": "nvrtc", "NvrtcCache": "nvrtc", "ProgramCache": "program"}


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module 'kcachefs.cuda' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"kcachefs.cuda.{_OFFERED[name]}"), name)
