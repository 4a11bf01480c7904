"""Names for people: what the entry behind a key is called, read from its own files. Nothing is unpickled.

Entries of the same name (one kernel for several types or block sizes) are told apart by the facts that differ.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from kcachefs import foreign_json

Read = Callable[[tuple[bytes, ...]], bytes | None]
"""Gives the bytes of a file of an entry, by its path relative to the entry's folder."""

_NAMED_ALREADY = ("name", "hash", "target", "arch", "backend_name", "num_warps", "num_stages", "extern_libs")
_ARGUMENTS, _BLOCKS = "arguments", "blocks of"
"""Facts that are read from a kernel's IR; all other facts are its options."""
_SHOWN_FACTS = 3
_NAME_MAX = 200
_FACT_MAX = 400
_FACTS_MAX = 100
_FILES_MAX = 16
"""Files of an entry that are searched for its name, at most."""
_JSON_MAX = 1 << 20
_FUNCTION = b"tt.func public @"
_FUNCTION_MAX = 64 << 10
_SIGNATURE = re.compile(rb"tt\.func public @[^(]*\((.*?)\)(?: attributes)? *\{")
"""Matched at one place in a text of bounded length: a search takes time that grows with the square of the length."""
_ARGUMENT = re.compile(rb"%[\w.]+: (?:!tt\.(ptr)<([\w!.]+)|(\w+))")
_TENSOR = re.compile(rb"tensor<((?:\d+x)+)")
_AOT_ID = re.compile(rb"AOT ID: \['(\d{1,9})_(\w{1,60})'\]")
_ENVIRONMENT = re.compile(r"-[0-9a-f]{4,16}(?:-[0-9]+)?$")
"""What follows the cache tag in the name of an environment: its digest, and perhaps a user's number."""
_STANDARD_LIBRARY = re.compile(rb"python[0-9.]+t?")
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
    read: Read,
    names: Sequence[bytes] = (),
) -> str:
    """What a person calls the entry at `path` (of a group: its folder and stem).

    `names` are the files of the entry (of a tree: those at its top), and `read` gives the bytes of one of them, by
    its path relative to the entry's folder. Without names, or if nothing in them helps, the result is the path.
    """
    kernel = _triton_kernel(read, names)
    if kernel is not None:
        return kernel
    if namespace == b"inductor":
        return _inductor_name(path, read, names)
    return _text(path)


def bytecode_name(path: tuple[bytes, ...], description: bytes | None) -> str:
    """What a person calls an entry of bytecode: the distribution and its version, or the folder of the sources.

    `path` begins with the environment, and `description` is that environment's own file; without it, the name of the
    package is used.

    >>> told = b'{"python": "3.11", "packages": {"yaml": "PyYAML 6.0"}}'
    >>> bytecode_name((b"cpython-311-4f05", b"opt", b"site-packages", b"yaml"), told)
    'PyYAML 6.0, python 3.11'
    >>> bytecode_name((b"cpython-311-4f05", b"home", b"ann", b"cpython-311"), None)
    '/home/ann, cpython-311'
    """
    facts: Any = None
    with contextlib.suppress(ValueError):
        facts = foreign_json.decoded(description or b"", _JSON_MAX)
    facts = facts if isinstance(facts, dict) else {}
    packages = facts.get("packages") if isinstance(facts.get("packages"), dict) else {}
    above, own, tag = path[1:-1], _text(path[-1:]), _ENVIRONMENT.sub("", _text(path[:1]))
    if above and above[-1] in (b"site-packages", b"dist-packages"):
        what = str(packages.get(own, own))[:_NAME_MAX]
    elif above and _STANDARD_LIBRARY.fullmatch(above[-1]):
        what = "standard library" if own == tag else f"standard library, {own}"
    else:
        what = "/" + _text(above)
    python = facts.get("python")
    return f"{what}, python {python[:_NAME_MAX]}" if isinstance(python, str) else f"{what}, {tag}"


def kernel_facts(read: Read, names: Sequence[bytes]) -> dict[str, str]:
    """What is known about a Triton kernel besides its name: the types of its arguments, its blocks, its options."""
    facts: dict[str, str] = {}
    source = next((read((name,)) or b"" for name in names if name.endswith(b".ttir")), b"")
    at = max(0, source.find(_FUNCTION))
    if found := _SIGNATURE.match(source[at : at + _FUNCTION_MAX]):
        types = [
            f"*{kind.decode()}" if pointer else plain.decode() for pointer, kind, plain in _ARGUMENT.findall(found[1])
        ]
        facts[_ARGUMENTS] = " ".join(types)[:_FACT_MAX]
    if shapes := Counter(_TENSOR.findall(source)):
        facts[_BLOCKS] = max(shapes, key=lambda shape: (shapes[shape], shape)).decode().strip("x")[:_FACT_MAX]
    for options in _options_of(read, names):
        for name, value in islice(options.items(), _FACTS_MAX):
            if name not in _NAMED_ALREADY and value is not None:
                facts[name[:_NAME_MAX]] = (value if isinstance(value, str) else json.dumps(value))[:_FACT_MAX]
        break
    return facts


def told_apart(kernels: Sequence[dict[str, str]], keys: Sequence[str]) -> list[str]:
    """What to add to each of several equal names: the facts in which the kernels differ, else a part of the key.

    >>> told_apart([{"shared": "0", "debug": "false"}, {"shared": "64", "debug": "false"}], ["AB12", "CD34"])
    ['shared 0', 'shared 64']

    An option that is missing is called unset; a fact of the IR is unknown if there is no IR.

    >>> told_apart([{"maxnreg": "64"}, {"blocks of": "128"}], ["AB12", "CD34"])
    ['maxnreg 64, blocks of unknown', 'maxnreg unset, blocks of 128']
    """
    titles = dict.fromkeys(title for facts in kernels for title in facts)
    differing = [title for title in titles if len({facts.get(title) for facts in kernels}) > 1][:_SHOWN_FACTS]
    absent = {title: "unknown" if title in (_ARGUMENTS, _BLOCKS) else "unset" for title in differing}
    added = [", ".join(f"{title} {facts.get(title, absent[title])}" for title in differing) for facts in kernels]
    counts = Counter(added)
    return [
        text if counts[text] == 1 else ", ".join(filter(None, (text, f"key {key[:8]}")))
        for text, key in zip(added, keys, strict=True)
    ]


def _triton_kernel(read: Read, names: Sequence[bytes]) -> str | None:
    """Name, target, warps and stages of the kernel whose files these are, from its json."""
    for facts in _options_of(read, names):
        try:
            target = facts["target"]
            arch = target["arch"]
            chip = f"sm_{arch}" if target["backend"] == "cuda" else str(arch)
            name, warps, stages = (str(facts[one])[:_NAME_MAX] for one in ("name", "num_warps", "num_stages"))
            return f"{name} {chip[:_NAME_MAX]}, {warps} warps, {stages} stages"
        except (KeyError, TypeError):
            continue
    return None


def _options_of(read: Read, names: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """The json that Triton wrote for each kernel among the files, decoded."""
    groups = (name for name in names if name.startswith(b"__grp__") and name.endswith(b".json"))
    for name in islice(groups, _FILES_MAX):
        try:
            found = foreign_json.decoded(read((name.removeprefix(b"__grp__"),)) or b"", _JSON_MAX)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def _inductor_name(path: tuple[bytes, ...], read: Read, names: Sequence[bytes]) -> str:
    """The kind of a graph and its number, forward or backward, then enough of the key to find it."""
    kind = _INDUCTOR_KINDS.get(path[0]) or next(
        (label for suffix, label in _INDUCTOR_SUFFIXES if any(name.endswith(suffix) for name in names)), None
    )
    if kind is None:
        return _text(path)
    graph = ""
    if kind in ("compiled graph", "generated code"):
        # The source that a graph became is in its pickle too, as plain bytes: nothing is unpickled to find it.
        found = next(filter(None, (_AOT_ID.search(read((name,)) or b"") for name in names[:_FILES_MAX])), None)
        if found is not None:
            graph = f" {int(found[1])}, {found[2].decode()}"
    return f"{kind}{graph} {_text(path[-1:])[:12]}"


def _text(path: tuple[bytes, ...]) -> str:
    return b"/".join(path).decode("utf-8", "backslashreplace")
