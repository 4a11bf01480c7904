"""`program_key`: the key of a program for a run-time compiler such as NVRTC or NVVM."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kcachefs.errors import UsageError
from kcachefs.keys.encoding import digest, encode, flat
from kcachefs.keys.includes import as_bytes, read_includes
from kcachefs.keys.program_options import OptionOrder as OptionOrder
from kcachefs.keys.program_options import defined_macros, encode_options


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

    Options count in their order unless `option_order="normalised"`: then options that are known to act by themselves
    may change places, while repetitions of one option keep their order, and so does everything else. The contents of
    `headers`, and of every file that the code or one of `pre_includes` can include from `include_paths`, are part of
    the key. The include paths themselves are not, unless the compiled program would hold them. The order of name
    expressions does not count; the order of extra sources does, because linking depends on it.

    >>> with_n = dict(target="cubin", arch="sm_90", compiler_version="13.4")
    >>> one = program_key("__global__ void k() {}", ["-lineinfo", "--std=c++17"], **with_n)
    >>> two = program_key("__global__ void k() {}", ["--std=c++17", "-lineinfo"], **with_n)
    >>> one == two
    False
    """
    if not compiler_version:
        raise UsageError(
            "a program's key needs its compiler's version, because another version may compile it differently; "
            "pass compiler_version"
        )
    if option_order not in ("preserved", "normalised"):
        raise UsageError(f"option_order is {option_order!r}; pass 'preserved' or 'normalised'")
    lists = {"name_expressions": name_expressions, "include_paths": include_paths, "pre_includes": pre_includes}
    for what, given in lists.items():
        if isinstance(given, str | bytes):
            raise UsageError(f"{what} is {given!r}; pass a list of such texts")
    source = as_bytes(code)
    folders = [os.fspath(folder) for folder in include_paths]
    includes = read_includes(source, folders, headers, pre_includes, functools.partial(defined_macros, options))
    told = [
        flat([language.encode(), target.encode(), arch.encode(), compiler_version.encode(), name.encode(), source]),
        flat(encode_options(options, option_order, folders, includes.tells_paths)),
        # Text and bytes are kept apart: a compiler's answer is looked up by the very object that asked.
        flat(sorted(encode(expression) for expression in name_expressions)),
        flat([encode((label, as_bytes(text))) for label, text in extra_sources]),
        encode(includes.told),
        encode(extra),
    ]
    if includes.tells_paths:
        told.append(flat([os.fsencode(folder) for folder in folders]))
    return digest("program", *told).hex()
