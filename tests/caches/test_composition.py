"""`cached` functions call each other and themselves, are methods, and take arguments however they are given."""

from __future__ import annotations

import functools
import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from kcachefs import Cache, cached
from kcachefs.caches import CacheInfo
from kcachefs.keys import env, file, version
from tests.caches.processes import ROOT

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


def number(value: int) -> bytes:
    return str(value).encode()


folder = Cache(disk=False)


@cached(cache=folder, encode=number, decode=int, ignore=["ran"])
def double(n: int) -> int:
    ran.append(("double", n))
    return 2 * n


@cached(cache=folder, encode=number, decode=int, ignore=["ran"])
def double_and_one(n: int) -> int:
    ran.append(("double and one", n))
    return double(n) + 1


@cached(cache=folder, encode=number, decode=int)
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@cached(cache=folder, encode=number, decode=int)
def is_even(n: int) -> int:
    return 1 if n == 0 else is_odd(n - 1)


@cached(cache=folder, encode=number, decode=int)
def is_odd(n: int) -> int:
    return 0 if n == 0 else is_even(n - 1)


class Compiler:
    def __init__(self, arch: str) -> None:
        self.arch = arch

    @cached(cache=folder)
    def compile(self, source: str, *, level: int = 3) -> bytes:
        return f"{source} {self.arch} -O{level}".encode()

    @classmethod
    @cached(cache=folder)
    def named(cls, source: str) -> bytes:
        return f"{source} {cls.__name__}".encode()

    @staticmethod
    @cached(cache=folder)
    def plain(source: str) -> bytes:
        return source.encode()


class Other(Compiler):
    pass


def test_a_cached_function_calls_another() -> None:
    folder.clear()
    assert [double_and_one(3), double_and_one(3), double(3)] == [7, 7, 6]
    assert ran == [("double and one", 3), ("double", 3)]


def test_a_cached_function_depends_on_those_it_calls(tmp_path: Path) -> None:
    """An edited inner function starts the outer one anew."""
    source = (
        "import sys; from kcachefs import Cache, cached\ncache = Cache(sys.argv[1])\n"
        "@cached(cache=cache)\ndef inner() -> bytes: return b'BYTES'\n"
        "@cached(cache=cache)\ndef outer() -> bytes: return inner() + b'!'\n"
        "print(outer().decode(), outer.cache_info().misses)"
    )
    (tmp_path / "code").mkdir()
    told = []
    for content in ("one", "two", "one"):
        program = tmp_path / "code" / "program.py"
        program.write_text(source.replace("BYTES", content))
        words = [sys.executable, str(program), str(tmp_path / "cache")]
        answer = subprocess.run(words, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
        told.append(answer.stdout.strip())
    assert told == ["one! 1", "two! 1", "one! 0"]


def test_a_cached_function_calls_itself_and_each_value_is_computed_once() -> None:
    folder.clear()
    assert fibonacci(25) == 75025
    assert fibonacci.cache_info().misses == 26


def test_cached_functions_call_each_other() -> None:
    folder.clear()
    assert (is_even(10), is_odd(10)) == (1, 0)
    assert is_even.cache_key(4) == is_even.cache_key(4) != is_odd.cache_key(4)


def test_the_key_of_one_of_a_ring_does_not_depend_on_which_was_used_first() -> None:
    words = "import tests.caches.test_composition as t\n"
    ask = ["t.is_even(3), t.is_odd(3)", "t.is_odd(3), t.is_even(3)"]
    told = []
    for order in ask:
        code = f"{words}{order}\nprint(t.is_even.cache_key(3).hex(), t.is_odd.cache_key(3).hex())"
        told.append(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT))
    assert told[0].stdout == told[1].stdout


def test_a_method_is_kept_by_what_its_object_is() -> None:
    one, same, other = Compiler("sm_90"), Compiler("sm_90"), Compiler("sm_80")
    assert one.compile("k") == b"k sm_90 -O3"
    assert same.compile("k") == b"k sm_90 -O3"
    assert other.compile("k") == b"k sm_80 -O3"
    assert one.compile.cache_key("k") == same.compile.cache_key(source="k") == Compiler.compile.cache_key(one, "k")
    assert one.compile.cache_key("k") != other.compile.cache_key("k")
    assert Other("sm_90").compile.cache_key("k") != one.compile.cache_key("k")


def test_a_class_method_is_kept_by_its_class() -> None:
    one, other = cast(Any, Compiler), cast(Any, Other)
    assert [one.named("k"), other.named("k"), other("sm_90").named("k")] == [b"k Compiler", b"k Other", b"k Other"]


def test_a_class_method_may_be_decorated_from_outside() -> None:
    class Outside:
        @cached(cache=folder)
        @classmethod
        def named(cls, source: str) -> bytes:
            return f"{source} {cls.__name__}".encode()

        @cached(cache=folder)
        @staticmethod
        def plain(source: str) -> bytes:
            return source.encode()

    made: Any = Outside
    assert made.named("k") == made().named("k") == b"k Outside"
    assert made.plain("k") == made().plain("k") == b"k"


def test_a_static_method_is_a_function() -> None:
    one = cast(Any, Compiler)
    assert one.plain("k") == one("sm_90").plain("k") == b"k"


@cached(cache=folder)
def launch(grid: int, block: int = 128, *, stages: int = 3) -> bytes:
    return bytes([grid, block, stages])


@cached(cache=folder)
def anything(first: int, /, *rest: int, **options: int) -> bytes:
    return repr((first, rest, options)).encode()


@pytest.mark.parametrize(
    "call",
    [
        lambda: launch.cache_key(1),
        lambda: launch.cache_key(grid=1),
        lambda: launch.cache_key(1, 128),
        lambda: launch.cache_key(1, block=128, stages=3),
        lambda: launch.cache_key(stages=3, block=128, grid=1),
    ],
)
def test_one_call_has_one_key_however_it_is_written(call: Callable[[], bytes]) -> None:
    assert call() == launch.cache_key(1)


def test_other_arguments_are_other_calls() -> None:
    keys = [
        launch.cache_key(1),
        launch.cache_key(2),
        launch.cache_key(1, 64),
        launch.cache_key(1, stages=2),
        anything.cache_key(1, 2),
        anything.cache_key(1, a=2),
        anything.cache_key(1, first=2),
        anything.cache_key(1, 2, a=3),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("arguments", [{"args": ()}, {"args": (1, 2, 3)}, {"args": (1,), "grid": 1}, {"wrong": 1}])
def test_arguments_that_do_not_fit_are_refused_by_the_function_itself(arguments: dict[str, Any]) -> None:
    args = arguments.pop("args", ())
    with pytest.raises(TypeError, match=r"launch\(\)"):
        launch(*args, **arguments)


def test_parameters_that_do_not_matter_are_left_out() -> None:
    @cached(cache=folder, ignore=["stream", "verbose"])
    def run(kernel: str, stream: object, verbose: bool = False) -> bytes:
        return kernel.encode()

    assert run("a", iter(()), True) == run("a", object()) == run(kernel="a", stream=None)
    assert run.cache_info() == CacheInfo(hits=2, misses=1, objects=0)


def test_a_replaced_default_is_the_one_that_counts() -> None:
    def replace(**defaults: Any) -> None:
        for name, value in defaults.items():
            setattr(plain, f"__{name}__", value)

    def plain(x: int, block: int = 128, *, tile: int = 1) -> bytes:
        return repr((x, block, tile)).encode()

    for ask in (plain, functools.partial(plain), functools.lru_cache(0)(plain)):
        replace(defaults=(128,), kwdefaults={"tile": 1})
        build = cached(cache=Cache(disk=False))(ask)
        assert build(1) == b"(1, 128, 1)"
        replace(defaults=(256,))
        assert [build(1), build(1, 256), build(1, 128)] == [b"(1, 256, 1)", b"(1, 256, 1)", b"(1, 128, 1)"]
        assert build.cache_key(1) == build.cache_key(1, 256) != build.cache_key(1, 128)
        cast(Any, plain).__kwdefaults__["tile"] = 2
        assert [build(1), build(1, tile=1), build(1, tile=2)] == [b"(1, 256, 2)", b"(1, 256, 1)", b"(1, 256, 2)"]
        replace(kwdefaults={"tile": 3})
        assert [build(1), build(1, tile=2)] == [b"(1, 256, 3)", b"(1, 256, 2)"]


def test_what_a_wrapper_can_tell_apart_are_different_calls() -> None:
    def for_hopper(function: Callable[..., bytes]) -> Callable[..., bytes]:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> bytes:
            options.setdefault("arch", "sm_90")
            return function(*args, **options)

        return wrapper

    def plain(x: int, arch: str = "sm_80") -> bytes:
        return f"{x} {arch}".encode()

    build = cached(cache=Cache(disk=False))(for_hopper(plain))
    assert [build(1), build(1, arch="sm_80"), build(1, arch="sm_90")] == [b"1 sm_90", b"1 sm_80", b"1 sm_90"]
    described = for_hopper(plain)
    described.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
    build = cached(cache=Cache(disk=False))(described)
    assert [build(1), build(1, arch="sm_80")] == [b"1 sm_90", b"1 sm_80"]


def test_a_wrapped_functions_parameters_that_do_not_matter_are_left_out() -> None:
    def run(kernel: str, stream: object, verbose: bool = False) -> bytes:
        return f"{kernel} {verbose}".encode()

    @functools.wraps(run)
    def wrapper(*args: Any, **options: Any) -> bytes:
        return run(*args, **options)

    wrapped = cached(cache=Cache(disk=False), ignore=["stream"])(wrapper)
    assert wrapped.cache_key("a", iter(())) == wrapped.cache_key("a", object())
    assert wrapped.cache_key(kernel="a", stream=iter(())) == wrapped.cache_key(kernel="a", stream=None)
    assert wrapped.cache_key("a", None, True) != wrapped.cache_key("a", None, False) != wrapped.cache_key("a", True)


def test_a_function_tells_what_became_of_its_calls(tmp_path: Path) -> None:
    @cached(cache=Cache(tmp_path), encode=json.dumps, decode=json.loads, encoding="json")  # type: ignore[arg-type]
    def broken(n: int) -> dict[str, int]:
        return {"n": n}

    with pytest.raises(TypeError, match=r"encode of .*broken returned str"):
        broken(1)

    @cached(cache=Cache(tmp_path), encode=msgspec.json.encode, decode=msgspec.json.decode)
    def make(n: int) -> dict[str, int]:
        if n < 0:
            raise ValueError(n)
        return {"n": n}

    assert [make(1), make(1), make(2)] == [{"n": 1}, {"n": 1}, {"n": 2}]
    with pytest.raises(ValueError):
        make(-1)
    assert make.cache_info() == CacheInfo(hits=1, misses=3, objects=2)


def test_clear_removes_the_results_of_one_function_everywhere(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def decorated(cache: Cache) -> Any:
        @cached(cache=cache, encode=number, decode=int)
        def square(n: int) -> int:
            return n * n

        return square

    @cached(cache=cache)
    def other() -> bytes:
        return b"other"

    square, elsewhere = decorated(cache), decorated(Cache(tmp_path))
    cache["mine"] = b"mine"
    assert [square(2), square(3), elsewhere(2), other()] == [4, 9, 4, b"other"]
    assert square.clear() == 2
    assert len(cache) == 2
    assert [square(2), elsewhere(3)] == [4, 9]
    assert (square.cache_info().misses, elsewhere.cache_info().misses) == (3, 1)
    assert other.cache_info().misses == 1


def _reversed(value: bytes) -> bytes:
    return value[::-1]


class Reverse:
    def __init__(self, times: int) -> None:
        self.times = times

    def encode(self, value: bytes) -> bytes:
        return value[::-1] if self.times % 2 else value

    __call__ = encode


@pytest.mark.parametrize(
    ("encode", "decode", "value"),
    [
        (pickle.dumps, pickle.loads, {"a": (1, 2)}),
        (msgspec.msgpack.encode, msgspec.msgpack.decode, {"a": [1, 2]}),
        (msgspec.json.Encoder().encode, msgspec.json.Decoder().decode, {"a": [1, None]}),
        (str.encode, bytes.decode, "text"),
        (functools.partial(json_bytes := lambda value, indent: json.dumps(value, indent=indent).encode(), indent=2),
         json.loads, {"a": [1]}),
        (_reversed, _reversed, b"bytes"),
        (Reverse(1).encode, Reverse(1).encode, b"bytes"),
        (Reverse(1), Reverse(1), b"bytes"),
        (bytearray, bytes, b"bytes"),
        (memoryview, bytes, b"bytes"),
    ],
    ids=["pickle", "msgpack", "encoder", "text", "partial", "function", "method", "object", "bytearray", "view"],
)  # fmt: skip
def test_any_encoding_will_do(tmp_path: Path, encode: Any, decode: Any, value: Any) -> None:
    def decorated() -> Any:
        @cached(cache=Cache(tmp_path), encode=encode, decode=decode, encoding="chosen by the test", ignore=["ran"])
        def make() -> Any:
            ran.append(1)
            return value

        return make

    assert [decorated()(), decorated()()] == [value, value]
    assert ran == [1]


def test_a_named_encoding_starts_anew_when_its_name_changes(tmp_path: Path) -> None:
    def made(encoding: str) -> str:
        @cached(cache=Cache(tmp_path), encode=str.encode, decode=bytes.decode, encoding=encoding, ignore=["ran"])
        def make() -> str:
            ran.append(encoding)
            return "made"

        return make()

    assert [made("utf-8"), made("utf-8"), made("utf-8 2")] == ["made"] * 3
    assert ran == ["utf-8", "utf-8 2"]


def test_none_is_a_result_like_any_other() -> None:
    @cached(cache=folder, encode=msgspec.json.encode, decode=msgspec.json.decode, ignore=["ran"])
    def nothing() -> None:
        ran.append(1)

    assert [nothing(), nothing()] == [None, None]
    assert ran == [1]
    assert nothing.cache_info() == CacheInfo(hits=1, misses=1, objects=1)


noise: list[int] = []


@cached(cache=folder, encode=number, decode=int, ignore=["noise"])
def noisy_even(n: int) -> int:
    noise.append(n)
    return 1 if n == 0 else noisy_odd(n - 1)


@cached(cache=folder, encode=number, decode=int, ignore=["noise"])
def noisy_odd(n: int) -> int:
    noise.append(n)
    return 0 if n == 0 else noisy_even(n - 1)


@cached(cache=folder, encode=number, decode=int)
def asks_noisy(n: int) -> int:
    return noisy_even(n)


def test_what_a_function_ignores_is_ignored_in_those_that_call_it() -> None:
    functions = (noisy_even, noisy_odd, asks_noisy)
    before = [function.cache_key(3) for function in functions]
    assert len(set(before)) == 3
    assert asks_noisy(4) == 1
    noise.append(99)
    assert [function.cache_key(3) for function in reversed(functions)] == before[::-1]


def test_annotations_need_not_count(tmp_path: Path) -> None:
    """Kernel languages put what they arranged into the annotations of the function that they are given."""

    def application(x: int) -> int:
        return x

    def make(application: Callable[..., Any], tile: int) -> bytes:
        ran.append(tile)
        application.__annotations__ = {"x": object()}
        return b"made"

    counted = cached(cache=Cache(tmp_path), ignore=["ran"])(make)
    uncounted = cached(cache=Cache(tmp_path), ignore=["ran"], annotations=False)(make)
    before = uncounted.cache_key(application, 1), counted.cache_key(application, 1)
    assert [uncounted(application, 1), uncounted(application, 1), uncounted(application, 2)] == [b"made"] * 3
    assert ran == [1, 2]
    assert uncounted.cache_key(application, 1) == before[0]
    application.__annotations__ = {"x": "text"}
    assert counted.cache_key(application, 1) != before[1]


def test_a_function_and_its_key_are_different_arguments() -> None:
    @cached(cache=folder)
    def make(what: Any) -> bytes:
        return b""

    from kcachefs.keys import hash_function

    assert make.cache_key(number) != make.cache_key(hash_function(number))
    assert make.cache_key(number) == make.cache_key(number) != make.cache_key(_reversed)


def test_what_no_key_can_see_can_be_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "table.csv"

    @cached(cache=folder, depends=[env("KCACHEFS_TEST_FLAGS"), file(table), version("pytest")])
    def build() -> bytes:
        return (os.environ["KCACHEFS_TEST_FLAGS"] + table.read_text()).encode()

    @cached(cache=folder)
    def builds() -> bytes:
        return build()

    made = []
    for flags, content in (("a", "1"), ("b", "1"), ("b", "2"), ("a", "1")):
        monkeypatch.setenv("KCACHEFS_TEST_FLAGS", flags)
        table.write_text(content)
        made.append((build(), builds()))
    assert made == [(b"a1", b"a1"), (b"b1", b"b1"), (b"b2", b"b2"), (b"a1", b"a1")]
    assert build.cache_info().misses == builds.cache_info().misses == 3
