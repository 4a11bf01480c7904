"""The short forms that are compared to find the nearest older entry: small enough to keep one per entry in an index."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Collection, Iterable
from typing import Any
from zlib import crc32

import msgspec

from kcachefs.insight.constants import NUMBER
from kcachefs.insight.graphs import Graph
from kcachefs.insight.kernels import TritonKernel


class KernelSketch(msgspec.Struct, frozen=True, array_like=True):
    """A Triton kernel, in short."""

    name: str
    ingredients: dict[str, str]
    file: str
    line: int
    types: list[str]
    texts: bytes
    """One number for each operation, constants and sizes included."""
    shapes: bytes
    """One number for each operation, without constants and sizes."""
    lists_folder: str
    """The folder of the entry's files according to its own list."""
    facts: dict[str, Any]


class HelperSketch(msgspec.Struct, frozen=True, array_like=True):
    """A library for the host that Triton compiled beside its kernels."""

    name: str


class GraphSketch(msgspec.Struct, frozen=True, array_like=True):
    """A compiled graph, in short."""

    name: str
    kind: str
    ingredients: dict[str, str]
    """Groups of ingredients, each by one number."""
    settings: bytes
    """The members of these groups, in the form that `_spread` returns."""
    files: list[str]
    """File names, in the form that `files_of` returns."""
    code: str
    inputs: list[str]
    operations: dict[str, int]
    kernels: list[str]
    key: str
    facts: dict[str, Any]


def of_kernel(kernel: TritonKernel) -> KernelSketch:
    ingredients = {"version": kernel.version, "target": kernel.target}
    ingredients |= {f"variable {name}": value for name, value in kernel.environment.items()}
    ingredients |= {f"option {name}": json.dumps(value) for name, value in kernel.options.items()}
    ingredients |= {f"argument {name}": f"{one.type} {one.divisible}" for name, one in kernel.arguments.items()}
    texts = {one.text + one.given for _, one in kernel.operations()}
    binary = kernel.binary
    return KernelSketch(
        kernel.name,
        ingredients,
        kernel.place.file,
        kernel.place.line,
        [one.type for one in kernel.arguments.values()],
        _numbers(texts),
        _numbers({NUMBER.sub("#", one) for one in texts}),
        kernel.lists_folder,
        {
            "target": kernel.target,
            "version": kernel.version,
            "warps": kernel.options.get("num_warps"),
            "stages": kernel.options.get("num_stages"),
            "shared": kernel.shared,
            "registers": binary.registers if binary else None,
            "stack": binary.stack if binary else None,
            "ptxas": binary.ptxas if binary else "",
            "ptx": kernel.ptx_digest,
            "binary_bytes": kernel.binary_bytes,
            "signature": ", ".join(f"{name}: {one.type}" for name, one in kernel.arguments.items())[:1000],
        },
    )


def of_graph(graph: Graph) -> GraphSketch:
    groups: dict[str, list[str]] = {}
    for name, (digest, _) in graph.ingredients.items():
        if not name.startswith(("gm", "example_inputs[")):
            groups.setdefault(name.partition("[")[0], []).append(f"{name}={digest}")
    operations = graph.operations()
    operations.pop("return", None)
    return GraphSketch(
        graph.name,
        graph.kind,
        {
            "version": graph.version,
            **{name: str(crc32("\n".join(sorted(ones)).encode())) for name, ones in groups.items()},
        },
        _spread(one for ones in groups.values() for one in ones),
        sorted(files_of(graph))[:_FILES_MAX],
        graph.ingredients.get("gm", ("", ""))[0][:100],
        graph.inputs[:2000],
        dict(operations),
        graph.kernels,
        graph.key,
        {
            "seconds": graph.seconds,
            "version": graph.version,
            "nodes": len(graph.nodes),
            "gpu": graph.gpu,
            "model": next((f"{place.file}:{place.line}" for place, _ in graph.places.values()), ""),
        },
    )


_SPREAD = 256
_FILES_MAX = 50


def _spread(ingredients: Iterable[str]) -> bytes:
    """Hundreds of `NAME=DIGEST`, folded into a few bytes: about as many bytes differ as ingredients do."""
    found = bytearray(_SPREAD)
    for one in ingredients:
        name = one.partition("=")[0]
        found[crc32(name.encode("utf-8", "replace")) % _SPREAD] ^= crc32(one.encode("utf-8", "replace")) & 0xFF
    return bytes(found)


def files_of(graph: Graph) -> set[str]:
    """The names of the files that a graph's operations come from: the program's, and libraries' other than torch's."""
    return {
        os.path.basename(file)
        for file in {place.file for place, _ in graph.places.values()}
        if not any(one in file for one in _NO_PROGRAM)
    }


_NO_PROGRAM = ("<", "/torch/", "/ipykernel_")
"""Files that any program may share, or whose names change with every edit."""


def are_strangers(new: Collection[str], old: Collection[str]) -> bool:
    """Whether two graphs come from different programs, by the names of their files."""
    return bool(new) and bool(old) and not set(new) & set(old)


def _numbers(texts: Iterable[str]) -> bytes:
    return array("I", sorted({crc32(one.encode("utf-8", "replace")) for one in texts})).tobytes()


def kernel_distance(new: KernelSketch, old: KernelSketch) -> float:
    """The number of ingredients that differ, and the share of the body that does."""
    ours, theirs = new.ingredients, old.ingredients
    score = float(sum(ours.get(name) != theirs.get(name) for name in ours.keys() | theirs.keys()))
    score += 4 * (1 - _shared(new.texts, old.texts)) + 2 * (1 - _shared(new.shapes, old.shapes))
    return round(score, 4)


def _shared(ours: bytes, theirs: bytes) -> float:
    if ours == theirs:
        return 1.0
    x, y = set(array("I", ours)), set(array("I", theirs))
    union = len(x | y)
    return len(x & y) / union if union else 1.0


def alike(new: GraphSketch, old: GraphSketch) -> float:
    """The share of operations that both have, or most of the smaller one's where it may be a part of the other."""
    ours, theirs = new.operations, old.operations
    common = sum(min(count, theirs.get(name, 0)) for name, count in ours.items())
    x, y = sum(ours.values()), sum(theirs.values())
    union = x + y - common
    if not union:
        return 1.0
    smaller = min(x, y)
    return max(common / union, 0.8 * common / smaller if smaller >= _PART_MIN else 0.0)


_PART_MIN = 4
"""With fewer operations, every graph would count as a part of some other."""


def graph_distance(new: GraphSketch, old: GraphSketch) -> float:
    """How much operations, ingredients, inputs and files differ."""
    ours, theirs = new.ingredients, old.ingredients
    apart = sum(ours.get(name) != theirs.get(name) for name in ours.keys() | theirs.keys())
    settings = sum(x != y for x, y in zip(new.settings, old.settings, strict=False))
    inputs = len(set(new.inputs) ^ set(old.inputs)) / max(1, len(new.inputs))
    score = 6 * (1 - alike(new, old)) + (new.code != old.code) + 2 * (new.kind != old.kind) + apart / 2 + inputs
    score += 0.5 * settings / (settings + 10)  # however many differ, they count less than one differing group
    score += are_strangers(new.files, old.files)
    return round(score, 4)
