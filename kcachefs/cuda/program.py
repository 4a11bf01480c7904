"""`ProgramCache`: the `cache=` argument of `cuda.core.Program.compile`, backed by a kcachefs cache."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from cuda.core import ObjectCode, Program, ProgramOptions
from cuda.core.utils import ProgramCacheResource, make_program_cache_key

from kcachefs.caches import Cache, Entry
from kcachefs.caches.ingredients import META as MADE_OF
from kcachefs.caches.ingredients import pack_if_told
from kcachefs.caches.memory import Policy
from kcachefs.caches.record import Key
from kcachefs.cuda import program_ingredients
from kcachefs.cuda.compiler import compiler_version
from kcachefs.cuda.options import debug_folder, include_folders, pre_includes, precompiled_headers
from kcachefs.errors import UsageError
from kcachefs.keys.encoding import digest, encode
from kcachefs.keys.files import file_digest
from kcachefs.keys.includes import include_closure
from kcachefs.keys.program_options import defined_macros

_FROM_BYTES = {"cubin": ObjectCode.from_cubin, "ptx": ObjectCode.from_ptx, "ltoir": ObjectCode.from_ltoir}


class ProgramCache(ProgramCacheResource):  # type: ignore[misc]
    """A program cache for cuda.core: memory over a folder that processes share, each entry checked as it is read.

        Program(code, "c++", options).compile("cubin", cache=ProgramCache())

    Two things that `Program.compile` refuses to cache go through `compile` here: name expressions, whose mapping to
    symbols is kept with the binary, and include paths, whose contents become part of the key. The bounds are those of
    `Cache`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int | None = None,
        memory_entries: int = 4096,
        memory_bytes: int = 256 << 20,
        policy: Policy = "lru",
        disk: bool = True,
    ) -> None:
        try:
            self._cache = Cache(
                path,
                name="programs",
                max_bytes=max_bytes,
                memory_entries=memory_entries,
                memory_bytes=memory_bytes,
                policy=policy,
                disk=disk,
            )
        except UsageError as error:  # cuda.core's own caches raise this for such bounds
            raise ValueError(str(error)) from None

    @property
    def cache(self) -> Cache:
        """The underlying cache, with its statistics."""
        return self._cache

    def __getitem__(self, key: Key) -> bytes:
        found = self._cache.entry(key)
        if found is None:
            raise KeyError(key)
        return _binary(found)

    def get(self, key: Key, default: bytes | None = None) -> bytes | None:
        """The binary, or `default`."""
        found = self._cache.entry(key)
        return default if found is None else _binary(found)

    def __setitem__(self, key: Key, value: bytes | bytearray | memoryview | ObjectCode) -> None:
        self._cache.put(key, _content(value))

    def __delitem__(self, key: Key) -> None:
        del self._cache[key]

    def __len__(self) -> int:
        return len(self._cache)

    def clear(self) -> None:
        """Remove every program, for all processes."""
        self._cache.clear()

    def close(self) -> None:
        """Free the memory; the files on disk stay."""
        self._cache.close()

    def compile(
        self,
        code: str | bytes,
        code_type: str,
        target_type: str,
        options: ProgramOptions | None = None,
        *,
        name_expressions: Sequence[str] = (),
    ) -> ObjectCode:
        """Compile a program, or find it in the cache; also with name expressions and include paths."""
        options = ProgramOptions() if options is None else options
        target = target_type.lower()
        key = self.key(code, code_type, target, options, name_expressions=name_expressions)
        entry = self._cache.entry_or_compute(
            key, lambda: _compile(code, code_type, target, options, tuple(name_expressions))
        )
        return _FROM_BYTES[target](_binary(entry), name=options.name or "", symbol_mapping=_symbols(entry))

    def key(
        self,
        code: str | bytes,
        code_type: str,
        target_type: str,
        options: ProgramOptions,
        *,
        name_expressions: Sequence[str] = (),
    ) -> bytes:
        """cuda.core's own key, extended by the contents of includes or of libdevice, and by NVRTC's exact build.

        Options with effects besides the result, such as writing a precompiled header, raise ValueError, as in
        cuda.core.
        """
        told: list[Any] = []
        if code_type.lower() == "c++":
            if options.pch:
                raise ValueError("pch=True writes a precompiled header, and a hit would not; compile without it")
            words = [word.decode() for word in options.as_bytes("nvrtc", target_type)]
            folders = include_folders(words, options.name or "")
            includes = include_closure(code, folders, pre_includes=pre_includes(words), macros=defined_macros(words))
            told = [compiler_version(), includes, debug_folder(words, options.name or "")]
            told += map(file_digest, precompiled_headers(words))
        elif code_type.lower() == "nvvm" and getattr(options, "use_libdevice", None):
            told = ["libdevice", _libdevice_digest()]
        return bytes(
            make_program_cache_key(
                code=code,
                code_type=code_type,
                options=options,
                target_type=target_type,
                name_expressions=name_expressions,
                # Without a digest, cuda.core refuses options that read files outside the key.
                extra_digest=digest("cuda.core", encode(told)) if told else None,
            )
        )


def _compile(
    code: str | bytes, code_type: str, target: str, options: ProgramOptions, name_expressions: tuple[str, ...]
) -> Entry:
    made_of = _made_of(code, code_type, target, options, name_expressions)
    made = Program(code, code_type, options=options).compile(target, name_expressions=name_expressions)
    symbols = {_text(name): _text(symbol) for name, symbol in made.symbol_mapping.items()}
    binary = _content(made)
    # The symbols of many name expressions do not fit into the metadata: they follow the binary.
    if symbols:
        return Entry(binary + msgspec.msgpack.encode(symbols), {"binary": len(binary), MADE_OF: made_of})
    return Entry(binary, {MADE_OF: made_of})


def _made_of(
    code: str | bytes, code_type: str, target: str, options: ProgramOptions, name_expressions: tuple[str, ...]
) -> bytes:
    """The ingredients of an NVRTC program; empty for programs of other compilers."""
    if code_type.lower() != "c++":
        return b""
    words = [word.decode() for word in options.as_bytes("nvrtc", target)]
    ingredients = program_ingredients.of_program(
        code,
        words,
        arch=str(options.arch or ""),
        name=options.name or "",
        name_expressions=name_expressions,
        target=target,
    )
    return pack_if_told(ingredients)


def _binary(entry: Entry) -> bytes:
    return entry.value[: entry.meta.get("binary")]


def _symbols(entry: Entry) -> dict[str, str] | None:
    size = entry.meta.get("binary")
    return None if size is None else msgspec.msgpack.decode(entry.value[size:], type=dict[str, str])


def _content(value: object) -> bytes:
    """The binary itself: a file that an ObjectCode only points to may be moved or changed later."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, ObjectCode):
        code = value.code
        return _file_content(code) if isinstance(code, str) else bytes(code)
    raise TypeError(f"what a program cache keeps must be bytes-like or ObjectCode, not {type(value).__name__}")


def _libdevice_digest() -> bytes:
    """The digest of the library that NVVM links, located the way cuda.core does it."""
    from cuda.pathfinder import find_bitcode_lib

    path = find_bitcode_lib("device")
    found = file_digest(path)
    if found is None:
        raise ValueError(f"{path} cannot be read, so a program that links libdevice cannot be cached")
    return found


def _file_content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        problem = "the file of a path-backed ObjectCode is gone, so the program cache cannot keep its content"
        raise FileNotFoundError(errno.ENOENT, problem, path) from None


def _text(text: str | bytes) -> str:
    return text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
