"""The ingredients of the key of a CUDA program: source, architecture, compiler, options, each header."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import kcachefs
from kcachefs.caches.ingredients import Ingredient, of_bytes, of_text
from kcachefs.cuda.compiler import compiler_version
from kcachefs.cuda.options import debug_folder, include_folders, pre_includes, precompiled_headers
from kcachefs.keys.files import file_digest
from kcachefs.keys.includes import as_bytes, read_includes
from kcachefs.keys.program_options import defined_macros

_KERNEL = re.compile(rb"__global__[^;{(]{0,200}?\b(\w{1,200})\s*\(")
_KERNELS_SHOWN = 3


def of_program(
    source: str | bytes,
    options: Sequence[str],
    *,
    arch: str,
    name: str,
    headers: Mapping[str, str | bytes] | None = None,
    name_expressions: Sequence[str | bytes] = (),
    target: str = "ptx+cubin",
) -> Iterator[Ingredient]:
    source = as_bytes(source)
    kernels = list(dict.fromkeys(found[1].decode() for found in _KERNEL.finditer(source)))
    more = " …" if len(kernels) > _KERNELS_SHOWN else ""
    yield of_bytes("kernels", "\n".join(kernels).encode(), ", ".join(kernels[:_KERNELS_SHOWN]) + more)
    yield of_text("compiler", f"NVRTC {compiler_version()}")
    yield of_text("kcachefs", kcachefs.__version__)
    yield of_text("architecture", arch)
    yield of_text("target", target)
    yield of_text("options", " ".join(options))
    yield of_text("name", name)
    if name_expressions:
        yield of_text(
            "name expressions", ", ".join(sorted(as_bytes(one).decode("utf-8", "replace") for one in name_expressions))
        )
    yield of_bytes("source", source)
    folder = debug_folder(options, name)
    if folder is not None:
        yield of_text("working directory", folder)
    for file in precompiled_headers(options):
        yield of_bytes(f"header {file}", file_digest(file) or b"")
    yield from _headers(source, options, name, headers or {})


def _headers(
    source: bytes, options: Sequence[str], name: str, headers: Mapping[str, str | bytes]
) -> Iterator[Ingredient]:
    """Each header by the name that includes it; a missing header counts as well."""
    folders = include_folders(options, name)
    told = read_includes(source, folders, headers, pre_includes(options), lambda: defined_macros(options)).told
    given, files, leads = told or ({}, [], [])
    for header, content in given.items():
        yield of_bytes(f"header {header}", content)
    found: dict[str, list[bytes]] = {}
    for _, included, numbers in leads:
        label = included.decode("utf-8", "replace")
        found.setdefault(label, []).extend(files[number] for number in numbers if number is not None)
    for label, digests in found.items():
        if label not in given:
            yield of_bytes(f"header {label}", b"".join(digests), "" if digests else "missing")
