"""`cached`: what a function makes is kept for its text and its arguments."""

from __future__ import annotations

import asyncio
import copy
import functools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from kcachefs import Cache, cached
from kcachefs.errors import CacheError, Unkeyable, UsageError
from tests.caches.processes import ROOT
from tests.waiting import PATIENCE


def test_a_function_runs_once_for_each_set_of_arguments(tmp_path: Path) -> None:
    ran = []

    def decorated(cache: Cache) -> object:
        @cached(cache=cache, ignore=["ran"])
        def compile(source: str, *, arch: str = "sm_90") -> bytes:
            """Compiles."""
            ran.append((source, arch))
            return f"{source} {arch}".encode()

        assert (compile.__name__, compile.__doc__) == ("compile", "Compiles.")
        return [compile("a"), compile("a"), compile("b"), compile("a", arch="sm_80")]

    expected = [b"a sm_90", b"a sm_90", b"b sm_90", b"a sm_80"]
    assert decorated(Cache(tmp_path)) == expected
    assert decorated(Cache(tmp_path)) == expected
    assert ran == [("a", "sm_90"), ("b", "sm_90"), ("a", "sm_80")]


def test_another_function_of_the_same_name_starts_anew(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def factor(by: int) -> bytes:
        @cached(cache=cache)
        def compile(n: int) -> bytes:
            return bytes([n * by])

        return compile(3)

    assert [factor(2), factor(3), factor(2)] == [b"\6", b"\t", b"\6"]


def test_what_was_assigned_to_a_cached_function_counts(tmp_path: Path) -> None:
    @cached(cache=Cache(tmp_path))
    def helper() -> bytes:
        return cast(bytes, of_helper.mode)

    @cached(cache=Cache(tmp_path))
    def build(n: int) -> bytes:
        return helper() * n * cast(int, of_build.tile)

    of_helper, of_build = cast(Any, helper), cast(Any, build)
    told = []
    for tile, mode in ((1, b"a"), (2, b"a"), (2, b"b"), (1, b"a")):
        of_build.tile, of_helper.mode = tile, mode
        told.append(build(1))
    assert told == [b"a", b"aa", b"bb", b"a"]
    assert build.cache_info().misses == 3


def test_a_function_that_another_decorator_returned_is_kept_by_what_that_was_given(tmp_path: Path) -> None:
    def decorated(by: int) -> bytes:
        @cached(cache=Cache(tmp_path))
        @functools.singledispatch
        def build(value: object) -> bytes:
            return b"object"

        build.__wrapped__.register(int, lambda value: b"%d" % (value * by))
        return build("a") + build(2)

    assert [decorated(1), decorated(2), decorated(1)] == [b"object2", b"object4", b"object2"]


def test_what_is_decoded_is_kept_as_it_is(tmp_path: Path) -> None:
    @cached(cache=Cache(tmp_path), encode=lambda kernel: kernel["code"], decode=lambda code: {"code": code})
    def make(name: str) -> dict[str, bytes]:
        return {"code": name.encode()}

    one = make("a")
    assert one == {"code": b"a"}
    assert make("a") is one
    assert make("b") is not one


def test_another_encoding_starts_anew_and_another_decoding_does_not(tmp_path: Path) -> None:
    ran = []

    def decorated(by: int, extra: str) -> str:
        @cached(
            cache=Cache(tmp_path),
            encode=lambda text: bytes(byte + by for byte in text.encode()),
            decode=lambda code: bytes(byte - by for byte in code).decode() + extra,
            ignore=["ran"],
        )
        def make(name: str) -> str:
            ran.append(name)
            return name

        return make("a")

    assert [decorated(1, ""), decorated(2, ""), decorated(1, "!")] == ["a", "a", "a!"]
    assert len(ran) == 2


def test_the_default_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCACHEFS_CACHE_DIR", str(tmp_path))
    assert Cache(name="tuned").path == tmp_path / "tuned"


def test_other_results_are_refused(tmp_path: Path) -> None:
    @cached(cache=Cache(tmp_path))
    def make() -> Any:
        return {"a": 1}

    with pytest.raises(TypeError, match=r"make returned dict.*encode and decode"):
        make()


def test_arguments_that_cannot_be_keyed_are_refused(tmp_path: Path) -> None:
    @cached(cache=Cache(tmp_path))
    def make(stream: object) -> bytes:
        return b""

    with pytest.raises(Unkeyable):
        make(_ for _ in ())


@pytest.mark.parametrize("option", ["ignore", "depends"])
@pytest.mark.parametrize("text", ["tile", b"tile"])
def test_text_in_the_place_of_a_list_is_refused(option: str, text: Any) -> None:
    with pytest.raises(UsageError, match=f"{option} is b?'tile'; pass a list"):
        cached(**{option: text})


def test_what_is_ignored_may_be_given_one_by_one(tmp_path: Path) -> None:
    ran: list[int] = []

    @cached(cache=Cache(tmp_path), ignore=(name for name in ["ran", "n"]))  # type: ignore[call-overload, untyped-decorator]
    def compile(n: int) -> bytes:
        ran.append(n)
        return b"%d" % n

    assert (compile(1), compile(2), ran) == (b"1", b"1", [1])


@pytest.mark.parametrize("given", [5, "x", None, property(lambda self: b"")])
def test_only_functions_are_decorated(given: Any) -> None:
    with pytest.raises(UsageError, match="decorates a function, not"):
        cached(cache=Cache(disk=False))(given)


def test_a_cache_in_the_place_of_the_function_is_told_where_it_belongs() -> None:
    given: Any = Cache(disk=False)
    with pytest.raises(UsageError, match=r"write @cached\(cache=\.\.\.\)"):
        cached(given)
    with pytest.raises(UsageError, match=r"pass a kcachefs\.Cache"):
        cached(cache="folder")  # type: ignore[call-overload]


class Compiler:
    def __init__(self, level: int) -> None:
        self.level = level

    async def __call__(self, source: str) -> bytes:
        return f"{source} {self.level}".encode()


@pytest.mark.parametrize("wrap", [lambda compiler: compiler, functools.partial])
def test_an_object_whose_call_is_a_coroutine_function_is_one(tmp_path: Path, wrap: Any) -> None:
    cache = Cache(tmp_path)
    compile, another = (cached(cache=cache)(wrap(Compiler(level))) for level in (1, 2))

    async def main() -> list[bytes]:
        return [await compile("a"), await compile("a"), await another("a")]

    assert asyncio.run(main()) == [b"a 1", b"a 1", b"a 2"]
    assert (compile.cache_info().misses, compile.cache_info().hits) == (1, 1)
    names = {entry.meta["function"] for key in cache if (entry := cache.entry(key)) is not None}
    assert names == {f"{__name__}.Compiler"}
    assert (another.clear(), len(cache)) == (2, 0)


def test_half_a_codec_is_refused() -> None:
    with pytest.raises(CacheError, match="both encode and decode"):
        cached(encode=str.encode)  # type: ignore[call-overload]


def test_a_mark_for_what_is_not_given_is_a_default_like_any_other_and_no_argument(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    missing, other = object(), object()

    @cached(cache=cache)
    def build(x: int, extra: object = missing) -> bytes:
        return b"without" if extra is missing else b"with"

    assert [build(1), build(1, missing), build(1, extra=missing), build(1, extra=2)] == [b"without"] * 3 + [b"with"]
    assert build.cache_info().misses == 2
    with pytest.raises(Unkeyable, match="means nothing but itself"):
        build(1, other)


POOLED = """
import multiprocessing, os, sys
from kcachefs import Cache, cached
cache = Cache(sys.argv[1])

@cached(cache=cache)
def build(n):
    with open(sys.argv[1] + ".log", "a") as log:
        log.write(f"{n}\\n")
    return b"%d" % n

class Kernels:
    def __init__(self, by):
        self.by = by
    @cached(cache=cache)
    def scaled(self, n):
        return b"%d" % (n * self.by)
    @cached(cache=cache)
    @classmethod
    def named(cls, n):
        return f"{cls.__name__} {n}".encode()
    @cached(cache=cache)
    @staticmethod
    def plain(n):
        return b"plain %d" % n

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[2]).Pool(2) as pool:
        functions = (build, build, Kernels(2).scaled, Kernels.named, Kernels.plain, Kernels(3).plain)
        print([pool.map(function, [1, 2]) for function in functions])
    print(build.clear(), Kernels.scaled.clear(), build.clear())
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_processes_runs_cached_functions_and_methods(tmp_path: Path, method: str) -> None:
    (tmp_path / "pooled.py").write_text(POOLED)
    ran = subprocess.run(
        [sys.executable, "pooled.py", str(tmp_path / "cache"), method],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0, ran.stderr
    plain = [b"plain 1", b"plain 2"]
    expected = [[b"1", b"2"], [b"1", b"2"], [b"2", b"4"], [b"Kernels 1", b"Kernels 2"], plain, plain]
    # What the workers stored is the parent's to clear, though spawned ones call its module by another name.
    assert ran.stdout.splitlines() == [str(expected), "2 2 0"]
    assert sorted((tmp_path / "cache.log").read_text().split()) == ["1", "2"]


@cached(cache=Cache(disk=False))
def global_function(n: int) -> bytes:
    return b"%d" % n


class Scale:
    def __init__(self, by: int) -> None:
        self.by = by

    @cached(cache=Cache(disk=False))
    def scaled(self, n: int) -> bytes:
        return b"%d" % (n * self.by)


def test_a_copy_of_a_cached_function_is_itself_and_of_a_method_that_of_a_copied_object() -> None:
    unnamed = cached(cache=Cache(disk=False))(functools.partial(bytes, 3))
    for function in (global_function, Scale.scaled, unnamed):
        assert copy.copy(function) is copy.deepcopy(function) is function
    assert pickle.loads(pickle.dumps(global_function)) is global_function
    assert pickle.loads(pickle.dumps(Scale.scaled)) is Scale.scaled
    scale = Scale(2)
    copies = [copy.copy(scale.scaled), copy.deepcopy(scale.scaled), pickle.loads(pickle.dumps(scale.scaled))]
    assert [one(3) for one in copies] == [b"6"] * 3
    scale.by = 5
    assert [one(3) for one in copies] == [b"15", b"6", b"6"]


def test_what_pickle_cannot_find_by_name_it_refuses_as_it_refuses_plain_functions() -> None:
    def local() -> bytes:
        return b""

    for function in (local, lambda: b"", functools.partial(bytes, 3)):
        with pytest.raises(
            (pickle.PicklingError, AttributeError), match=r"^Can't (pickle|get local object)"
        ) as refused:
            pickle.dumps(cached(cache=Cache(disk=False))(function))
        assert "\n" not in str(refused.value)


class Renamed:
    """Has a cached method under another name than its function's."""

    def build(self, n: int) -> bytes:
        return b"%d" % n

    fast = cached(build)


def test_a_method_with_another_name_than_its_function_is_not_pickled_as_that() -> None:
    with pytest.raises(pickle.PicklingError, match="different name"):
        pickle.dumps(Renamed().fast)
