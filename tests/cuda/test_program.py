"""`ProgramCache` beside cuda.core's own caches: the same contract, real compiles, and what those refuse."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.core.utils")
from cuda.core import ObjectCode, Program, ProgramOptions
from cuda.core.utils import FileStreamProgramCache, InMemoryProgramCache, ProgramCacheResource, make_program_cache_key

from kcachefs.cuda import ProgramCache
from kcachefs.errors import CacheClosed

SOURCE = 'extern "C" __global__ void k(int *a) { *a = 1; }'
TEMPLATE = "template <int N> __global__ void k(int *a) { *a = N; }"
Make = Callable[[Path], Any]


@pytest.fixture(params=["ours", "file stream", "in memory"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Ours and cuda.core's: what the contract says must hold for all, else the test asks too much of ours."""
    make: dict[str, Callable[[], Any]] = {
        "ours": lambda: ProgramCache(tmp_path),
        "file stream": lambda: FileStreamProgramCache(tmp_path),
        "in memory": InMemoryProgramCache,
    }
    with make[request.param]() as made:
        yield made


def options(**more: Any) -> ProgramOptions:
    return ProgramOptions(arch="sm_90", **more)


def test_the_contract_holds(cache: Any) -> None:
    assert isinstance(cache, ProgramCacheResource)
    assert cache.get(b"k") is None
    assert cache.get("k", b"default") == b"default"
    with pytest.raises(KeyError):
        cache[b"k"]
    with pytest.raises(KeyError):
        del cache[b"k"]
    cache["k"] = b"one"
    cache[b"k"] = bytearray(b"two")
    assert (cache["k"], cache[b"k"], len(cache)) == (b"two", b"two", 1)
    cache.update({"a": b"1"})
    cache.update([("b", memoryview(b"2")), (b"", b"")])
    assert (cache["a"], cache["b"], cache[b""], len(cache)) == (b"1", b"2", b"", 4)
    del cache["a"]
    assert cache.get("a") is None
    cache.clear()
    assert len(cache) == 0
    for wrong in (1, None, ("k",)):
        with pytest.raises(TypeError):
            cache.get(wrong)
        with pytest.raises(TypeError):
            cache["k"] = wrong


def test_membership_is_not_offered(tmp_path: Path) -> None:
    assert not hasattr(ProgramCache(tmp_path), "__contains__")


def test_object_code_is_stored_as_its_bytes(cache: Any, tmp_path: Path) -> None:
    made = Program(SOURCE, "c++", options=options()).compile("cubin")
    cache["in memory"] = made
    path = tmp_path / "kernel.cubin"
    path.write_bytes(bytes(made.code))
    cache["by path"] = ObjectCode.from_cubin(str(path))
    path.unlink()
    assert cache["in memory"] == cache["by path"] == bytes(made.code)
    with pytest.raises(FileNotFoundError, match=r"path-backed ObjectCode.*kernel\.cubin"):
        cache["gone"] = ObjectCode.from_cubin(str(path))


@pytest.mark.parametrize("target", ["cubin", "ltoir"])  # cuda.core asks the driver about PTX, so not without one
def test_compile_takes_it_as_its_cache(cache: Any, target: str) -> None:
    chosen = options(relocatable_device_code=True, link_time_optimization=True) if target == "ltoir" else options()
    made = Program(SOURCE, "c++", options=chosen).compile(target, cache=cache)
    assert len(cache) == 1
    found = Program(SOURCE, "c++", options=chosen).compile(target, cache=cache)
    assert (bytes(found.code), found.code_type, found.name) == (bytes(made.code), made.code_type, made.name)
    Program(SOURCE + "\n", "c++", options=chosen).compile(target, cache=cache)
    assert len(cache) == 2


def test_a_hit_does_not_compile(tmp_path: Path) -> None:
    """What is found is returned as it is: here it is text that no compiler would give."""
    key = make_program_cache_key(code=SOURCE, code_type="c++", options=options(), target_type="cubin")
    cache = ProgramCache(tmp_path)
    cache[key] = b"not from a compiler"
    found = Program(SOURCE, "c++", options=options()).compile("cubin", cache=cache)
    assert bytes(found.code) == b"not from a compiler"


def test_a_damaged_program_is_compiled_again(tmp_path: Path) -> None:
    first = bytes(Program(SOURCE, "c++", options=options()).compile("cubin", cache=ProgramCache(tmp_path)).code)
    (path,) = tmp_path.glob("entries/*/*/*")
    path.write_bytes(path.read_bytes()[:-1] + b"\xee")
    cache = ProgramCache(tmp_path)
    assert bytes(Program(SOURCE, "c++", options=options()).compile("cubin", cache=cache).code) == first
    assert cache.cache.stats().damaged == 1


def test_the_next_process_finds_it(tmp_path: Path) -> None:
    Program(SOURCE, "c++", options=options()).compile("cubin", cache=ProgramCache(tmp_path))
    code = (
        "import sys; from cuda.core import Program, ProgramOptions; from kcachefs.cuda import ProgramCache\n"
        "cache = ProgramCache(sys.argv[1])\n"
        "Program(sys.argv[2], 'c++', options=ProgramOptions(arch='sm_90')).compile('cubin', cache=cache)\n"
        "print(cache.cache.stats().disk_hits)"
    )
    ran = subprocess.run([sys.executable, "-c", code, tmp_path, SOURCE], capture_output=True, text=True, check=True)
    assert ran.stdout == "1\n"


def test_size_is_bounded_and_the_least_recently_used_goes(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path, max_bytes=10 * 8192, memory_entries=0)
    for number in range(10):
        cache[str(number)] = bytes(8000)
    assert cache.get("0") is not None
    cache["10"] = bytes(8000)
    assert cache.get("0") is not None
    assert cache.get("1") is None
    with pytest.raises(ValueError, match="max_bytes"):
        ProgramCache(tmp_path, max_bytes=0)


def test_a_closed_cache_says_so(tmp_path: Path) -> None:
    with ProgramCache(tmp_path) as cache:
        cache["k"] = b"1"
    with pytest.raises(CacheClosed):
        cache.get("k")


def test_name_expressions_are_kept_with_the_program(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name_expressions"):
        Program(TEMPLATE, "c++", options=options()).compile(
            "cubin", name_expressions=["k<3>"], cache=FileStreamProgramCache(tmp_path / "theirs")
        )
    plain = Program(TEMPLATE, "c++", options=options()).compile("cubin", name_expressions=("k<3>",))
    for _ in range(2):
        cache = ProgramCache(tmp_path / "ours")
        made = cache.compile(TEMPLATE, "c++", "cubin", options(), name_expressions=["k<3>"])
        assert made.symbol_mapping == {key: _text(value) for key, value in plain.symbol_mapping.items()}
        assert bytes(made.code) == bytes(plain.code)
    assert cache.cache.stats().disk_hits == 1
    other = cache.compile(TEMPLATE, "c++", "cubin", options(), name_expressions=["k<4>"])
    assert other.symbol_mapping != made.symbol_mapping
    assert len(cache) == 2


def test_a_long_table_of_symbols_is_kept(tmp_path: Path) -> None:
    kernel = "k" * 4000
    how: Any = {"name_expressions": [f"{kernel}<{number}>" for number in range(20)]}
    source = TEMPLATE.replace("k(int", f"{kernel}(int")
    made = ProgramCache(tmp_path).compile(source, "c++", "cubin", options(), **how)
    assert len(made.symbol_mapping) == 20
    cache = ProgramCache(tmp_path)
    found = cache.compile(source, "c++", "cubin", options(), **how)
    assert cache.cache.stats().disk_hits == 1
    assert (bytes(found.code), found.symbol_mapping) == (bytes(made.code), made.symbol_mapping)
    key = cache.key(source, "c++", "cubin", options(), **how)
    assert cache[key] == cache.get(key) == bytes(made.code)


@pytest.mark.parametrize("how", ["include_path", "pre_include", "beside the source"])
def test_includes_are_in_the_key(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    header = tmp_path / "value.h"
    cache = ProgramCache(tmp_path / "cache")
    chosen = options(include_path=[str(tmp_path)])
    source = '#include "value.h"\n' + SOURCE.replace("1", "VALUE")
    if how == "pre_include":
        chosen, source = options(include_path=[str(tmp_path)], pre_include="value.h"), SOURCE.replace("1", "VALUE")
    if how == "beside the source":
        monkeypatch.chdir(tmp_path)
        chosen = options()
    made = []
    for value in (1, 2, 1):
        header.write_text(f"#define VALUE {value}\n")
        made.append(bytes(cache.compile(source, "c++", "cubin", chosen).code))
    assert made[0] == made[2] != made[1]
    assert cache.cache.stats().computed == 2


def test_libdevice_is_in_the_key_of_programs_that_link_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libdevice.10.bc"
    monkeypatch.setattr("cuda.pathfinder.find_bitcode_lib", lambda name: str(library))
    cache, linked = ProgramCache(tmp_path / "cache"), options(use_libdevice=True)
    keys = []
    for content in (b"one", b"two", b"one"):
        library.write_bytes(content)
        keys.append(cache.key("source", "nvvm", "ptx", linked))
    assert keys[0] == keys[2] != keys[1]
    library.unlink()
    with pytest.raises(ValueError, match="libdevice"):
        cache.key("source", "nvvm", "ptx", linked)
    assert cache.key("source", "nvvm", "ptx", options()) not in keys


def test_a_header_that_an_option_names_through_a_macro_is_in_the_key(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path / "cache")
    chosen = options(include_path=[str(tmp_path)], define_macro=[("HEADER", '"value.h"')])
    made = []
    for value in (1, 2, 1):
        (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
        made.append(
            bytes(cache.compile("#include HEADER\n" + SOURCE.replace("1", "VALUE"), "c++", "cubin", chosen).code)
        )
    assert made[0] == made[2] != made[1]


def test_effects_beside_the_result_are_not_cached(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="side effects"):
        ProgramCache(tmp_path).compile(SOURCE, "c++", "cubin", options(time=str(tmp_path / "times.csv")))
    with pytest.raises(ValueError, match="precompiled header"):
        ProgramCache(tmp_path).compile(SOURCE, "c++", "cubin", options(pch=True))


def _text(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text


def test_importing_the_package_does_not_import_cuda() -> None:
    code = "import sys, kcachefs, kcachefs.cuda; kcachefs.Cache; kcachefs.keys; print('cuda' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert ran.stdout == "False\n"
