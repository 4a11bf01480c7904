"""Triton's compilations for the host besides kernels: launchers, and helpers for the driver, known by file names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kcachefs.insight.causes import Cause, Kind

FILES = ("*",)
IS_NEW = Cause(Kind.NEW, "new: launchers and driver helpers, which Triton compiles for the host beside its kernels")
_LAUNCHER = "__triton_launcher"
_DRIVER = ("cuda_utils", "hip_utils")
_LIBRARY = (".so", ".pyd")


@dataclass(frozen=True, slots=True)
class Helper:
    """An entry that holds nothing but a library for the host."""

    path: str
    name: str

    @property
    def words(self) -> str:
        """What the helper is.

        >>> Helper("", "cuda_utils").words
        "Triton's helper for the GPU's driver, compiled for the host"
        """
        if self.name == _LAUNCHER:
            return "a launcher, which Triton compiled for the host to start kernels of one signature"
        if self.name in _DRIVER:
            return "Triton's helper for the GPU's driver, compiled for the host"
        return "a library that Triton compiled for the host"


def read(path: str, names: Collection[str]) -> Helper | None:
    """The helper whose files have these names; None if they belong to something else.

    >>> read("triton/ABC", ["__triton_launcher.cpython-312-x86_64-linux-gnu.so"]).name
    '__triton_launcher'
    """
    if not names or not all(name.endswith(_LIBRARY) for name in names):
        return None
    return Helper(path, min(names).partition(".")[0])
