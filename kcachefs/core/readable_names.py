"""Names for people: what the entry behind a key is called, read from its own files. Nothing is unpickled."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

_AOT_ID = re.compile(rb"AOT ID: \['(\d+)_(\w+)'\]")
_INDUCTOR_KINDS = {
    b"fxgraph": "compiled graph",
    b"aotautograd": "autograd graph",
    b"dynamo": "traced code",
    b"cache": "autotuning results",
    b"triton": "Triton kernel",
    b"cutedsl_compile_cache": "CuTe kernel",
    b"precompiled_headers": "precompiled header",
}
_INDUCTOR_SUFFIXES = (
    (b".best_config", "autotuning result"),
    (b".so", "C++ kernel"),
    (b".cpp", "C++ kernel"),
    (b".cubin", "CUDA kernel"),
    (b".py", "generated code"),
)


def readable(
    namespace: bytes,
    path: tuple[bytes, ...],
    read: Callable[[tuple[bytes, ...]], bytes | None],
    names: Sequence[bytes] = (),
) -> str:
    """What a person calls the entry at `path` (of a group: its folder and stem).

    `names` are the files of the entry (of a tree: those at its top), and `read` gives the bytes of one of them, by
    its path relative to the entry's folder. Without names, or when nothing in them tells, it is the path.
    """
    kernel = _triton_kernel(read, names)
    if kernel is not None:
        return kernel
    if namespace == b"inductor":
        return _inductor_name(path, read, names)
    return _text(path)


def _triton_kernel(read: Callable[[tuple[bytes, ...]], bytes | None], names: Sequence[bytes]) -> str | None:
    """Name, target, warps and stages of the kernel whose files these are, as its json tells them."""
    for name in names:
        if not (name.startswith(b"__grp__") and name.endswith(b".json")):
            continue
        try:
            facts = json.loads(read((name.removeprefix(b"__grp__"),)) or b"")
            target = facts["target"]
            arch = target["arch"]
            chip = f"sm_{arch}" if target["backend"] == "cuda" else str(arch)
            return f"{facts['name']} {chip}, {facts['num_warps']} warps, {facts['num_stages']} stages"
        except (ValueError, KeyError, TypeError):
            continue
    return None


def _inductor_name(
    path: tuple[bytes, ...], read: Callable[[tuple[bytes, ...]], bytes | None], names: Sequence[bytes]
) -> str:
    """The kind of a graph and its number, forward or backward, then enough of the key to find it."""
    kind = _INDUCTOR_KINDS.get(path[0]) or next(
        (label for suffix, label in _INDUCTOR_SUFFIXES if any(name.endswith(suffix) for name in names)), None
    )
    if kind is None:
        return _text(path)
    graph = ""
    if kind in ("compiled graph", "generated code"):
        # The source that a graph became is in its pickle too, as plain bytes: nothing is unpickled to find it.
        found = next(filter(None, (_AOT_ID.search(read((name,)) or b"") for name in names)), None)
        if found is not None:
            graph = f" {int(found[1])}, {found[2].decode()}"
    return f"{kind}{graph} {_text(path[-1:])[:12]}"


def _text(path: tuple[bytes, ...]) -> str:
    return b"/".join(path).decode("utf-8", "backslashreplace")
