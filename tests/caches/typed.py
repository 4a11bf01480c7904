"""What type checkers know of the library: checked by mypy, never executed.

Class methods are not here: mypy drops `classmethod` from among decorators, and does not bind the class to an object
that is callable. It drops `staticmethod` too, and binds the object. Types that tell them apart by the first parameter
would be lost on functions that are not annotated, or take any object.
"""

from __future__ import annotations

from typing import assert_type

from kcachefs import Cache, Entry, cached
from kcachefs.caches import CacheInfo, ObjectCache


@cached
def bare(source: str, *, arch: str = "sm_90") -> bytes:
    return source.encode()


@cached(cache=Cache(disk=False))
def with_cache(source: str) -> bytearray:
    return bytearray(source.encode())


@cached(encode=str.encode, decode=len)
def to_length(source: str) -> str:
    return source


@cached(encode=lambda kernel: kernel["code"], decode=lambda code: {"code": code})
def kernel(name: str) -> dict[str, bytes]:
    return {"code": name.encode()}


@cached
async def compile_later(source: str) -> bytes:
    return source.encode()


@cached(encode=str.encode, decode=len)
async def measure_later(source: str) -> str:
    return source


class Compiler:
    @cached
    def compile(self, source: str, level: int = 3) -> bytes:
        return source.encode()

    @cached
    @staticmethod
    def plain(source: str) -> bytes:
        return source.encode()


async def check(cache: Cache, objects: ObjectCache[int]) -> None:
    assert_type(bare("k", arch="sm_80"), bytes)
    assert_type(bare.cache_key("k"), bytes)
    assert_type(bare.cache_info(), CacheInfo)
    assert_type(bare.clear(), int)
    assert_type(bare.__name__, str)
    assert_type(with_cache("k"), bytes)
    assert_type(to_length("k"), int)
    assert_type(kernel("k"), dict[str, bytes])
    assert_type(await compile_later("k"), bytes)
    assert_type(await measure_later("k"), int)
    assert_type(Compiler().compile("k", level=2), bytes)
    assert_type(Compiler().compile.cache_key("k"), bytes)
    assert_type(Compiler.compile(Compiler(), "k"), bytes)
    assert_type(Compiler.plain("k"), bytes)
    assert_type(cache.get("k"), bytes | None)
    assert_type(cache.get("k", 0), bytes | int)
    assert_type(cache["k"], bytes)
    assert_type(cache.entry("k"), Entry | None)
    assert_type(objects.get("k"), int | None)
    assert_type(objects.get("k", "none"), int | str)
    assert_type(objects.get_or_make("k", lambda: 1), int)
    # What must not pass: an unused `type: ignore` is an error.
    bare(1)  # type: ignore[arg-type]
    bare("k", level=1)  # type: ignore[call-arg]
    Compiler().compile(1)  # type: ignore[arg-type]
    cached(encode=str.encode)  # type: ignore[call-overload]
