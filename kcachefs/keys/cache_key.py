"""`CacheKey`: the key of a compiled graph, from the graph, what goes into it and the device class."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kcachefs.errors import UsageError
from kcachefs.keys.devices import DeviceClass
from kcachefs.keys.dtypes import dtype_name
from kcachefs.keys.encoding import SCHEMA, digest, encode


@dataclass(frozen=True, slots=True)
class Dim:
    """A symbolic dimension: any size within its bounds, the same wherever the name is the same.

    The name counts: the graph may mention it, and two graphs whose names are swapped are different graphs.
    """

    name: str
    low: int = 0
    high: int | None = None
    multiple_of: int = 1

    def fields(self) -> tuple[Any, ...]:
        return ("symbol", self.name, self.low, self.high, self.multiple_of)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input: its shape, each dimension a size, a `Dim` or a symbol's name; and its element type, in any spelling.

    >>> InputSpec(["batch", 128], "torch.float16") == InputSpec((Dim("batch"), 128), "fp16")
    True
    """

    shape: Sequence[int | str | Dim]
    dtype: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(dimension(size) for size in self.shape))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    def fields(self) -> tuple[Any, ...]:
        return (tuple(size.fields() if isinstance(size, Dim) else size for size in self.shape), self.dtype)


@dataclass(frozen=True)
class CacheKey:
    """The key of a graph compiled for inputs and a device class.

    >>> key = CacheKey("8f3a", [InputSpec(("batch", 128), "float16")], DeviceClass.cuda(9, 0))
    >>> key.to_storage_key()[:22]
    'k6-cuda-sm90-778de4192'
    """

    graph_hash: str | bytes
    inputs: Iterable[InputSpec] = ()
    device: DeviceClass = field(default_factory=DeviceClass.any_cuda)
    # Anything else the result depends on: compiler version, flags, layout; plain data.
    extra: Any = None

    def __post_init__(self) -> None:
        if not self.graph_hash:
            raise UsageError(
                "a cache key needs the hash of its graph, because an empty one would be shared by all graphs; "
                "pass graph_hash"
            )
        object.__setattr__(self, "inputs", tuple(self.inputs))

    def digest(self) -> bytes:
        """The key's 32 bytes."""
        inputs = tuple(spec.fields() for spec in self.inputs)
        return digest("graph", encode((self.graph_hash, inputs, self.device.fields(), self.extra)))

    def to_storage_key(self) -> str:
        """The key as text that is safe as a file name: schema, device class for people, digest."""
        return f"k{SCHEMA}-{self.device.tag}-{self.digest().hex()}"


def dimension(size: int | str | Dim) -> int | Dim:
    """A size, or a symbol for one."""
    if isinstance(size, Dim):
        return size
    if isinstance(size, str):
        return Dim(size)
    try:
        number = operator.index(size)
    except TypeError:
        number = -1
    if number < 0:
        raise UsageError(f"{size!r} is not a size; give a whole number, or name a symbolic dimension with text or Dim")
    return number
