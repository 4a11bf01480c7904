"""`NvrtcCache`: PTX and CUBIN of programs compiled with NVRTC, kept across processes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import msgspec

import kcachefs
from kcachefs.caches import Cache, Entry
from kcachefs.caches.ingredients import META as MADE_OF
from kcachefs.caches.ingredients import pack_if_told
from kcachefs.cuda import program_ingredients
from kcachefs.cuda.compiler import compile_program, compiler_version, supported_archs
from kcachefs.cuda.options import debug_folder, include_folders, pre_includes, precompiled_headers
from kcachefs.errors import UsageError
from kcachefs.keys.files import file_digest
from kcachefs.keys.programs import OptionOrder, program_key

_ARCH = re.compile(r"(sm|compute)_(\d+)([af]?)")
_ARCH_OPTION = re.compile(r"(?:-arch|--gpu-architecture)(?:=|$)")
# With `--pch`, NVRTC reuses the header that it compiled before, though the text may have changed since.
_WRITES_PCH = re.compile(r"--?(?:pch$|create-pch(?:=|$))")
_WRITES_TRACE = re.compile(r"--?fdevice-time-trace(?:=|$)")


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled program.

    `arch` is the architecture it was compiled for: lower than the one asked for if PTX of a lower virtual architecture
    was returned. `cubin` is None in that case, and for a virtual architecture.
    """

    ptx: bytes
    cubin: bytes | None
    arch: str
    lowered_names: Mapping[str, str]
    log: str
    was_cached: bool


class How(TypedDict, total=False):
    """Everything a program is compiled with besides its source, architecture and options; see `NvrtcCache.compile`."""

    name: str
    headers: Mapping[str, str | bytes] | None
    name_expressions: Sequence[str]
    option_order: OptionOrder


class NvrtcCache:
    """Compiles with NVRTC, or finds an earlier result for the same source, architecture, options, includes, compiler.

    An entry is bound to the exact build of the compiler and to the version of kcachefs. A compilation that failed is
    not kept. `max_bytes` bounds the folder where it is a plain directory.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, max_bytes: int | None = None) -> None:
        self.cache: Cache = Cache(path, name="nvrtc", max_bytes=max_bytes)

    def compile(
        self,
        source: str | bytes,
        arch: str,
        options: Sequence[str] = (),
        *,
        name: str = "kernel.cu",
        headers: Mapping[str, str | bytes] | None = None,
        name_expressions: Sequence[str] = (),
        option_order: OptionOrder = "preserved",
        older_ptx: bool = False,
    ) -> Compiled:
        """Returns PTX, and for an `sm_` architecture a CUBIN too.

        PTX runs on every device from its virtual architecture on. With `older_ptx`, if there is no entry for `arch`
        itself, the cached PTX of the highest architecture below it is returned, and nothing is compiled.
        """
        kind, _, _ = _parsed(arch)
        how = How(name=name, headers=headers, name_expressions=name_expressions, option_order=option_order)
        asked = _asked(source, options, how)
        found = self._find(asked, arch, older_ptx)
        if found is not None:
            return found
        compiled_here = False

        def compile_it() -> Entry:
            nonlocal compiled_here
            compiled_here = True
            return _compile(asked, arch, kind == "sm")

        entry = self.cache.entry_or_compute(bytes.fromhex(self._key(asked, arch)), compile_it)
        return _compiled(entry, arch, was_cached=not compiled_here)

    def get(
        self,
        source: str | bytes,
        arch: str,
        options: Sequence[str] = (),
        *,
        older_ptx: bool = False,
        **how: Unpack[How],
    ) -> Compiled | None:
        """The result that `compile` would find, given the same arguments; None where it would compile."""
        return self._find(_asked(source, options, how), arch, older_ptx)

    def put(
        self,
        compiled: Compiled,
        source: str | bytes,
        arch: str,
        options: Sequence[str] = (),
        **how: Unpack[How],
    ) -> bool:
        """Keep a result compiled elsewhere, for `get` and `compile` to find; whether it is kept, as in `Cache.put`."""
        _parsed(arch)
        key = bytes.fromhex(self._key(_asked(source, options, how), arch))
        made_of = _made_of(_asked(source, options, how), arch)
        entry = _entry(compiled.ptx, compiled.cubin, compiled.lowered_names, compiled.log, arch, made_of)
        return self.cache.put(key, entry.value, entry.meta)

    def key(self, source: str | bytes, arch: str, options: Sequence[str] = (), **how: Unpack[How]) -> str:
        """The key that `compile` looks up, given the same arguments."""
        _parsed(arch)
        return self._key(_asked(source, options, how), arch)

    def close(self) -> None:
        """Free the memory; the files on disk stay."""
        self.cache.close()

    def __enter__(self) -> NvrtcCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _key(self, asked: _Asked, arch: str) -> str:
        _check(asked.options)
        return program_key(
            asked.source,
            asked.options,
            target="ptx+cubin",
            arch=arch,
            compiler_version=compiler_version(),
            name=asked.name,
            name_expressions=asked.name_expressions,
            headers=asked.headers,
            include_paths=include_folders(asked.options, asked.name),
            pre_includes=pre_includes(asked.options),
            option_order=asked.option_order,
            extra=(
                *("kcachefs", kcachefs.__version__, debug_folder(asked.options, asked.name)),
                *map(file_digest, precompiled_headers(asked.options)),
            ),
        )

    def _find(self, asked: _Asked, arch: str, older_ptx: bool) -> Compiled | None:
        _, number, variant = _parsed(arch)
        found = self.cache.entry(bytes.fromhex(self._key(asked, arch)))
        if found is not None:
            return _compiled(found, arch, was_cached=True)
        return self._older(asked, number, variant) if older_ptx else None

    def _older(self, asked: _Asked, number: int, variant: str) -> Compiled | None:
        """PTX of a lower virtual architecture; never an `a` or `f` one, which does not run on later devices."""
        below = [arch for arch in supported_archs() if arch < number or (arch == number and variant)]
        for arch in reversed(below):
            for kind in ("compute", "sm"):
                found = self.cache.entry(bytes.fromhex(self._key(asked, f"{kind}_{arch}")))
                if found is not None:
                    return _compiled(found, f"compute_{arch}", was_cached=True, ptx_only=True)
        return None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request without its architecture."""

    source: str | bytes
    options: tuple[str, ...]
    name: str
    headers: dict[str, str | bytes]
    name_expressions: tuple[str, ...]
    option_order: OptionOrder


def _asked(source: str | bytes, options: Sequence[str], how: How) -> _Asked:
    return _Asked(
        source,
        _listed("options", options),
        how.get("name", "kernel.cu"),
        dict(how.get("headers") or {}),
        _listed("name_expressions", how.get("name_expressions", ())),
        how.get("option_order", "preserved"),
    )


def _listed(what: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str | bytes):  # a sequence of letters, taken by mistake
        raise UsageError(f"{what} is {given!r}; pass a list of texts")
    return tuple(given)


def _compile(asked: _Asked, arch: str, want_cubin: bool) -> Entry:
    made_of = _made_of(asked, arch)  # before NVRTC reads the headers: if one changes now, its old content is recorded
    output = compile_program(
        asked.source,
        [f"--gpu-architecture={arch}", *asked.options],
        name=asked.name,
        headers=asked.headers,
        name_expressions=asked.name_expressions,
        want_cubin=want_cubin,
    )
    return _entry(output.ptx, output.cubin, output.lowered_names, output.log, arch, made_of)


def _made_of(asked: _Asked, arch: str) -> bytes:
    ingredients = program_ingredients.of_program(
        asked.source,
        asked.options,
        arch=arch,
        name=asked.name,
        headers=asked.headers,
        name_expressions=asked.name_expressions,
    )
    return pack_if_told(ingredients)


def _entry(
    ptx: bytes, cubin: bytes | None, lowered_names: Mapping[str, str], log: str, arch: str, made_of: bytes
) -> Entry:
    # Metadata must be small. The log is a diagnostic and is cut; the names are needed, and go wherever there is room.
    names = msgspec.msgpack.encode(dict(lowered_names)) if lowered_names else b""
    meta = {"ptx": len(ptx), "cubin": len(cubin or b""), "log": log[:4096], "arch": arch, MADE_OF: made_of}
    return Entry(ptx + (cubin or b"") + names, meta)


def _compiled(entry: Entry, arch: str, *, was_cached: bool, ptx_only: bool = False) -> Compiled:
    meta, value = entry.meta, entry.value
    end = meta["ptx"] + meta["cubin"]
    ptx, cubin, table = value[: meta["ptx"]], value[meta["ptx"] : end], value[end:]
    names = msgspec.msgpack.decode(table, type=dict[str, str]) if table else {}
    return Compiled(ptx, None if ptx_only else cubin or None, arch, names, meta["log"], was_cached)


def _parsed(arch: str) -> tuple[str, int, str]:
    match = _ARCH.fullmatch(arch) if isinstance(arch, str) else None
    if match is None:
        raise UsageError(f"{arch!r} is not an architecture; write one like sm_90a or compute_80")
    return match[1], int(match[2]), match[3]


def _check(options: Sequence[str]) -> None:
    for option in options:
        if _ARCH_OPTION.match(option.strip()):
            raise UsageError(f"{option!r} belongs in `arch`, not in the options")
        if _WRITES_PCH.match(option.strip()):
            raise UsageError(f"{option!r} writes a precompiled header, and a hit would not; compile without it")
        if _WRITES_TRACE.match(option.strip()):
            raise UsageError(f"{option!r} writes a file of times, and a hit would not; compile without it")
