"""A program that the CUDA driver compiled from PTX, as its file shows it: the driver's build, the GPU, the PTX."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kcachefs.errors import ArtefactGarbled
from kcachefs.insight.causes import Cause, Kind, in_order

FILES = ("*",)
IS_NEW = Cause(Kind.NEW, "new: the driver compiled no program like it before")
_HEAD = re.compile(rb"([A-Z][a-z]{2} [ \d]\d \d{4}\d\d:\d\d:\d\d)HOST\d{2}(sm_\d{2,3}\w?)\n")
_HEAD_MAX = 512
_ENTRY = re.compile(rb"\.entry\s+([\w$]{1,300})")
_VERSION = re.compile(rb"^\s*\.version\s+(\S{1,12})", re.M)
_ENTRIES_MAX = 1000


@dataclass(frozen=True, slots=True)
class DriverProgram:
    path: str
    created: float
    build: str
    arch: str
    ptx_version: str
    ptx: str
    """A hash of the PTX."""
    kernels: tuple[str, ...]

    @property
    def name(self) -> str:
        return ", ".join(self.kernels[:3]) or "a program"


def read(path: str, created: float, data: bytes) -> DriverProgram:
    """The program in a file of the driver's cache; `ArtefactGarbled` if the file holds none."""
    head = _HEAD.search(data[:_HEAD_MAX])
    if head is None:
        raise ArtefactGarbled("it is not the driver's, or of a format that is not known")
    ptx = data[head.end() :].partition(b"\0")[0]
    version = _VERSION.search(ptx[:4096])
    names = [found[1].decode("ascii") for found in _ENTRY.finditer(ptx)][:_ENTRIES_MAX]
    built = head[1].decode("ascii")
    return DriverProgram(
        path,
        created,
        f"{built[:-8]} {built[-8:]}",
        head[2].decode("ascii"),
        version[1].decode("ascii", "replace") if version else "",
        hashlib.blake2b(ptx, digest_size=16).hexdigest(),
        tuple(dict.fromkeys(names)),
    )


def explain(new: DriverProgram, older: Sequence[DriverProgram]) -> tuple[DriverProgram | None, list[Cause]]:
    """The nearest of `older` with the same kernels, and what differs; None if there is no such program."""
    same = [one for one in older if one.kernels == new.kernels]
    nearest = min(same, key=lambda one: (len(differences(new, one)), -one.created), default=None)
    if nearest is None:
        return None, [IS_NEW]
    unknown = Cause(Kind.UNKNOWN, "all that the driver wrote down is the same", certain=False)
    return nearest, differences(new, nearest) or [unknown]


def differences(new: DriverProgram, old: DriverProgram) -> list[Cause]:
    found = []
    if new.build != old.build:
        found.append(Cause(Kind.VERSION, f"the driver's compiler of {old.build} → that of {new.build}"))
    if new.arch != old.arch:
        found.append(Cause(Kind.ARCHITECTURE, f"GPU architecture {old.arch} → {new.arch}"))
    if new.ptx != old.ptx:
        versions = f" (PTX {old.ptx_version} → {new.ptx_version})" if new.ptx_version != old.ptx_version else ""
        found.append(Cause(Kind.SOURCE, f"the program gave the driver other PTX for {new.name}{versions}"))
    return in_order(found)
