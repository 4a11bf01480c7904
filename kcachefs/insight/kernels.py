"""A Triton kernel as its entry shows it: the ingredients of its key, and the result.

The facts are read from the json, the first IR and the cubin; nothing is executed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from kcachefs.errors import ArtefactGarbled
from kcachefs.insight import cubins, triton_ir
from kcachefs.insight.cubins import CubinFacts
from kcachefs.insight.json_objects import json_object
from kcachefs.insight.triton_ir import Argument, Function, Operation, Place

ReadFile = Callable[[str], bytes]
"""Returns a file of the entry by its name; b"" if it has none."""

_GROUP = "__grp__"
_RESULTS = frozenset(
    (
        "hash",
        "name",
        "shared",
        "tmem_size",
        "global_scratch_size",
        "global_scratch_align",
        "profile_scratch_size",
        "profile_scratch_align",
        "tensordesc_meta",
        "cluster_dims",
        "triton_version",
        "target",
        "ids_of_folded_args",
        "warp_size",
        "backend_name",
        "extern_libs",
        "src_hash",
    )
)
"""Fields of the json besides options: results of compiling, and values that are explained in another way."""
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")
_PTX_VERSION = re.compile(rb"^\.version (\S{1,12})", re.M)
_PTX_PLACES = re.compile(rb"^\s*(?://|\.loc\b|\.file\b|\.version\b|\.target\b).*$", re.M)
_JSON_MAX = 4 << 20
_IR_MAX = 16 << 20
_BINARIES = (".cubin", ".hsaco")


@dataclass(slots=True)
class TritonKernel:
    """One compiled kernel."""

    path: str
    created: float
    name: str
    version: str = ""
    backend: str = ""
    arch: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that Triton takes into its key."""
    options: dict[str, Any] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    """Libraries that are linked: name and path."""
    functions: list[Function] = field(default_factory=list)
    ptx_version: str = ""
    binary: CubinFacts | None = None
    binary_bytes: int = 0
    shared: int | None = None
    missing: tuple[str, ...] = ()
    """Files that Triton needs and the entry's list names, but that do not exist."""
    lists_folder: str = ""
    """The folder of the entry's files according to its own list: the cache's location when the list was written."""
    digest: str = ""
    """Triton's own hash over all of the key."""
    ptx_digest: str = ""
    """A hash of the PTX without its places in the source."""

    @property
    def main(self) -> Function | None:
        """The kernel itself, as opposed to the functions that it calls."""
        return next((one for one in self.functions if one.public), None)

    @property
    def arguments(self) -> dict[str, Argument]:
        return self.main.arguments if self.main else {}

    @property
    def place(self) -> Place:
        return self.main.place if self.main else triton_ir.NOWHERE

    @property
    def target(self) -> str:
        """The GPU as people write it.

        >>> TritonKernel("", 0, "", backend="cuda", arch="90").target
        'sm_90'
        """
        return f"sm_{self.arch}" if self.backend == "cuda" else f"{self.backend}:{self.arch}".strip(":")

    def operations(self) -> list[tuple[Function, Operation]]:
        return [(function, operation) for function in self.functions for operation in function.operations]


def name_of(names: Collection[str]) -> str | None:
    """The name of the kernel whose files have these names."""
    return next((one[len(_GROUP) : -len(".json")] for one in sorted(names) if is_kernel((one,))), None)


def is_kernel(names: Collection[str]) -> bool:
    """Whether files of these names are a Triton kernel."""
    return any(name.startswith(_GROUP) and name.endswith(".json") for name in names)


def read(path: str, created: float, names: Collection[str], file: ReadFile) -> TritonKernel:
    """The kernel with these files; `ArtefactGarbled` if nothing can be read from them."""
    group = next((name for name in sorted(names) if name.startswith(_GROUP) and name.endswith(".json")), None)
    if group is None:
        raise ArtefactGarbled("it has no list of its files (__grp__*.json)")
    stem = group[len(_GROUP) : -len(".json")]
    told = json_object(file(stem + ".json"), stem + ".json", _JSON_MAX)
    kernel = TritonKernel(path, created, str(told.get("name", stem))[:500])
    _take_told(kernel, told)
    listed = json_object(file(group), group, _JSON_MAX).get("child_paths")
    if isinstance(listed, dict):
        needed = (name for name in listed if str(name).endswith((".json", *_BINARIES)))
        kernel.missing = tuple(sorted(str(name)[:200] for name in needed if name not in names))
        first = next(iter(listed.values()), "")
        kernel.lists_folder = os.path.dirname(first)[:1000] if isinstance(first, str) else ""
    source = next((name for name in (stem + ".source", stem + ".ttir") if name in names), None)
    if source is not None:
        kernel.functions = triton_ir.read(file(source)[:_IR_MAX].decode("utf-8", "replace"))
    if stem + ".ptx" in names:
        ptx = file(stem + ".ptx")
        version = _PTX_VERSION.search(ptx[:4096])
        kernel.ptx_version = version[1].decode("ascii", "replace") if version else ""
        code = _PTX_PLACES.sub(b"", ptx.partition(b".section")[0])
        kernel.ptx_digest = hashlib.blake2b(code, digest_size=12).hexdigest()
    binary = next((stem + end for end in _BINARIES if stem + end in names), None)
    if binary is not None:
        data = file(binary)
        kernel.binary_bytes = len(data)
        if binary.endswith(".cubin"):
            kernel.binary = cubins.read(data)
    return kernel


def _take_told(kernel: TritonKernel, told: dict[str, Any]) -> None:
    target = told.get("target")
    if isinstance(target, dict):
        kernel.backend, kernel.arch = str(target.get("backend", ""))[:40], str(target.get("arch", ""))[:40]
    kernel.version = str(told.get("triton_version", ""))[:60]
    kernel.digest = str(told.get("hash", ""))[:200]
    shared = told.get("shared")
    kernel.shared = shared if isinstance(shared, int) else None
    libraries = told.get("extern_libs")
    for one in libraries if isinstance(libraries, list) else ():
        if isinstance(one, list) and len(one) == 2:
            kernel.libraries[str(one[0])] = str(one[1])
    for name, value in told.items():
        if name in _RESULTS:
            continue
        if _VARIABLE.fullmatch(name):
            kernel.environment[name] = str(value)
        else:
            kernel.options[name] = value


def base(path: str) -> str:
    """The last part of a path: people know a source file by that."""
    return os.path.basename(path) or "?"


def shown(place: Place) -> str:
    """`file:line`, as an editor wants it."""
    return f"{base(place.file)}:{place.line}" if place.line else "an unknown line"
