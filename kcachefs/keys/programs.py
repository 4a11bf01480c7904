"""`program_key`: the key of a program for a run-time compiler such as NVRTC or NVVM."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from kcachefs.errors import UsageError
from kcachefs.keys.encoding import digest, encode, flat
from kcachefs.keys.includes import as_bytes, include_closure

OptionOrder = Literal["preserved", "normalised"]

# One bucket per option whose spellings are several; and one for all that act in the order they are written.
_IN_ORDER = "in order"
_SAME_OPTION = {
    "-I": _IN_ORDER,
    "--include-path": _IN_ORDER,
    "-D": _IN_ORDER,
    "--define-macro": _IN_ORDER,
    "-U": _IN_ORDER,
    "--undefine-macro": _IN_ORDER,
    "-include": _IN_ORDER,
    "--pre-include": _IN_ORDER,
    "-X": _IN_ORDER,
    "--ptxas-options": _IN_ORDER,
    "-L": _IN_ORDER,
    "--library-path": _IN_ORDER,
    "-l": _IN_ORDER,
    "--library": _IN_ORDER,
}


def program_key(
    code: str | bytes,
    options: Sequence[str | bytes] = (),
    *,
    target: str,
    arch: str,
    compiler_version: str,
    language: str = "c++",
    name: str = "",
    name_expressions: Iterable[str | bytes] = (),
    extra_sources: Sequence[tuple[str, str | bytes]] = (),
    headers: Mapping[str, str | bytes] | None = None,
    include_paths: Sequence[str | os.PathLike[str]] = (),
    pre_includes: Sequence[str] = (),
    option_order: OptionOrder = "preserved",
    extra: Any = None,
) -> str:
    """The key of `code` compiled with `options` for `arch` into `target` by the compiler of `compiler_version`.

    Options count in their order unless `option_order="normalised"`: then options of different names may change places,
    while macros, include paths, and repetitions of one option keep theirs. The contents of `headers`, and of all that
    the code or one of `pre_includes` can include from `include_paths`, are part of the key. The order of name
    expressions is not; that of extra sources is, for linking depends on it.

    >>> with_n = dict(target="cubin", arch="sm_90", compiler_version="13.4")
    >>> one = program_key("__global__ void k() {}", ["-lineinfo", "--std=c++17"], **with_n)
    >>> two = program_key("__global__ void k() {}", ["--std=c++17", "-lineinfo"], **with_n)
    >>> one == two
    False
    """
    if not compiler_version:
        raise UsageError("a program's key needs its compiler's version; another version may compile it otherwise")
    if option_order not in ("preserved", "normalised"):
        raise UsageError(f"option_order is {option_order!r}; it can be 'preserved' or 'normalised'")
    source = as_bytes(code)
    told = [
        flat([language.encode(), target.encode(), arch.encode(), compiler_version.encode(), name.encode(), source]),
        flat(_options(options, option_order)),
        # Text and bytes are kept apart: a compiler's answer is looked up by the very object that asked.
        flat(sorted(encode(expression) for expression in name_expressions)),
        flat([encode((label, as_bytes(text))) for label, text in extra_sources]),
        encode(include_closure(source, include_paths, headers, pre_includes)),
        encode(extra),
    ]
    return digest("program", *told).hex()


def _options(options: Sequence[str | bytes], order: OptionOrder) -> list[bytes]:
    if isinstance(options, str | bytes):
        raise UsageError(f"options is {options!r}; pass a list with one item for each option")
    words = [option.decode() if isinstance(option, bytes) else option for option in options]
    if order == "preserved":
        return [b"preserved", *(word.encode() for word in words)]
    return [b"normalised", *(flat([word.encode() for word in group]) for group in sorted(_groups(words), key=_bucket))]


def _groups(words: list[str]) -> list[list[str]]:
    """Each option with the words after it that are no options of their own: `-D N=4` is one thing."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def _bucket(group: list[str]) -> str:
    """Options of one bucket keep their order. A short option's first letter is its bucket, which can only keep more."""
    word = group[0]
    for name, bucket in _SAME_OPTION.items():
        attached = not name.startswith("--") and word.startswith(name)
        if attached or word.partition("=")[0] == name:
            return bucket
    return word.partition("=")[0] if word.startswith("--") else word[:2]
