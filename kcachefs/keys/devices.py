"""Device classes: the devices that a compiled artefact runs on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kcachefs.errors import UsageError

_SM = re.compile(r"(?:cuda:)?(?:sm_?|compute_?)?(\d+?)\.?(\d)([af]?)")


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Any CUDA device, CUDA devices of one compute capability, or the CPU.

    >>> DeviceClass.cuda(9, 0).tag, DeviceClass.parse("sm_90a").tag, DeviceClass.any_cuda().tag, DeviceClass.cpu().tag
    ('cuda-sm90', 'cuda-sm90a', 'cuda', 'cpu')
    """

    kind: str
    major: int = 0
    minor: int = 0
    # `a` and `f` code runs on one architecture or family only; for a CPU, the features it needs beyond the baseline.
    variant: str = ""

    @classmethod
    def any_cuda(cls) -> DeviceClass:
        """Runs on every CUDA device, like a Triton source or a PTX of the lowest virtual architecture."""
        return cls("cuda")

    @classmethod
    def cuda(cls, major: int, minor: int, variant: str = "") -> DeviceClass:
        """Runs on devices of one compute capability."""
        if major < 1 or not 0 <= minor <= 9 or variant not in ("", "a", "f"):
            raise UsageError(f"compute capability {major}.{minor}{variant} does not exist; give it like (9, 0, 'a')")
        return cls("cuda-sm", major, minor, variant)

    @classmethod
    def cpu(cls, isa: str = "") -> DeviceClass:
        """Runs on the CPU; `isa` names the machine and its extensions where the code depends on them."""
        return cls("cpu", variant=isa)

    @classmethod
    def parse(cls, text: str) -> DeviceClass:
        """From `cpu`, `cuda`, `sm_90a`, `compute_80` or `9.0`."""
        if text == "cpu" or text.startswith("cpu:"):
            return cls.cpu(text[4:])
        if text == "cuda":
            return cls.any_cuda()
        match = _SM.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not a device class; write cpu, cuda, sm_90a or 9.0")
        return cls.cuda(int(match[1]), int(match[2]), match[3])

    @property
    def tag(self) -> str:
        """A short name for people; the key itself is made of `fields`."""
        if self.kind == "cuda-sm":
            return f"cuda-sm{self.major}{self.minor}{self.variant}"
        return self.kind

    def fields(self) -> tuple[str, int, int, str]:
        """What the key is made of."""
        return (self.kind, self.major, self.minor, self.variant)
