"""What Inductor's autotuning chose for a kernel, as a `.best_config` file shows it: block sizes, warps, stages."""

from __future__ import annotations

from dataclasses import dataclass

from kcachefs.errors import ArtefactGarbled
from kcachefs.insight.causes import clipped
from kcachefs.insight.json_objects import json_object

FILES = ("*.best_config",)
_SIZE_MAX = 1 << 16
_NOT_CHOSEN = ("configs_hash", "found_by_coordesc", "time_taken_ms", "triton_cache_hash")
_CHOSEN_MAX = 32


@dataclass(frozen=True, slots=True)
class Tuning:
    path: str
    kernel: str
    """The key of the Triton kernel that was chosen; empty if torch did not record it."""
    chosen: dict[str, str]
    milliseconds: float | None
    """How long the tuning took."""
    is_descent: bool
    """Whether tuning went on from the best configuration by changing one setting at a time."""

    @property
    def seconds(self) -> float | None:
        """The cost beyond its kernels; a descent compiles further kernels, and does not record how long that took."""
        return self.milliseconds / 1e3 if self.milliseconds is not None and not self.is_descent else None

    @property
    def words(self) -> str:
        """What was chosen.

        >>> Tuning("", "", {"XBLOCK": "1024", "num_warps": "4"}, 84, False).words
        'XBLOCK=1024, num_warps=4 (tuned in 84 ms)'
        """
        chosen = ", ".join(f"{name}={value}" for name, value in self.chosen.items())
        how = ", by coordinate descent" if self.is_descent else ""
        took = f"tuned in {self.milliseconds:.0f} ms" if self.milliseconds is not None else ""
        return f"{chosen} ({(took + how).removeprefix(', ')})" if took or how else chosen


def read(path: str, data: bytes) -> Tuning:
    """The choice in such a file; `ArtefactGarbled` if the file holds none."""
    found = json_object(data, ".best_config", _SIZE_MAX)
    if len(found) > _CHOSEN_MAX:
        raise ArtefactGarbled(".best_config has too many settings")
    took, kernel = found.get("time_taken_ms"), found.get("triton_cache_hash")
    return Tuning(
        path,
        kernel if isinstance(kernel, str) else "",
        {clipped(name, 40): clipped(value, 40) for name, value in found.items() if name not in _NOT_CHOSEN},
        float(took) if isinstance(took, int | float) and 0 <= took < 1e9 else None,
        found.get("found_by_coordesc") is True,
    )
