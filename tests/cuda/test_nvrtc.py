"""`NvrtcCache`: real compiles on a miss, exact answers on a hit, older PTX only where asked for."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

import kcachefs
from kcachefs.caches.record import META_LIMIT
from kcachefs.cuda import Compiled, NvrtcCache
from kcachefs.cuda.compiler import compile_program, compiler_version, supported_archs
from kcachefs.errors import CompileFailed, UsageError
from tests.copies import copy_package

SOURCE = 'extern "C" __global__ void k(int *a) { *a = 1; }'
TEMPLATE = "template <int N> __global__ void k(int *a) { *a = N; }"


@pytest.fixture
def cache(tmp_path: Path) -> NvrtcCache:
    return NvrtcCache(tmp_path / "cache")


def test_a_program_is_compiled_once(cache: NvrtcCache) -> None:
    made = cache.compile(SOURCE, "sm_90", ["-lineinfo"])
    assert not made.was_cached
    assert b".target sm_90" in made.ptx
    assert made.cubin is not None
    assert made.cubin.startswith(b"\x7fELF")
    for again in (cache, NvrtcCache(cache.cache.path)):
        found = again.compile(SOURCE, "sm_90", ["-lineinfo"])
        assert found.was_cached
        assert (found.ptx, found.cubin, found.arch, found.log) == (made.ptx, made.cubin, "sm_90", made.log)
    fresh = compile_program(SOURCE, ["--gpu-architecture=sm_90", "-lineinfo"])
    assert (fresh.ptx, fresh.cubin) == (made.ptx, made.cubin)


@pytest.mark.parametrize("method", ["compile", "get", "key"])
def test_arguments_of_another_kind_are_refused_in_words(cache: NvrtcCache, method: str) -> None:
    ask: Any = getattr(cache, method)
    with pytest.raises(UsageError, match="90 is not an architecture; write one like sm_90a"):
        ask(SOURCE, 90)
    with pytest.raises(UsageError, match="options is '-lineinfo'; pass a list"):
        ask(SOURCE, "sm_90", "-lineinfo")
    with pytest.raises(UsageError, match="name_expressions is 'k<1>'; pass a list"):
        ask(TEMPLATE, "sm_90", name_expressions="k<1>")


def test_a_virtual_architecture_gives_ptx_alone(cache: NvrtcCache) -> None:
    made = cache.compile(SOURCE, "compute_80")
    assert b".target sm_80" in made.ptx
    assert made.cubin is None
    assert cache.compile(SOURCE, "compute_80").cubin is None


@pytest.mark.parametrize(
    "other",
    [
        {"source": SOURCE + " "},
        {"arch": "sm_80"},
        {"arch": "compute_90"},
        {"arch": "sm_90a"},
        {"options": ["--use_fast_math"]},
        {"name": "other.cu"},
        {"headers": {"unused.h": ""}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_anything_else_is_another_program(cache: NvrtcCache, other: dict[str, Any]) -> None:
    given: dict[str, Any] = {"source": SOURCE, "arch": "sm_90"}
    cache.compile(**given)
    assert not cache.compile(**{**given, **other}).was_cached
    assert cache.compile(**{**given, **other}).was_cached


def test_get_finds_without_compiling(cache: NvrtcCache) -> None:
    assert cache.get(SOURCE, "sm_90") is None
    assert len(cache.cache) == 0
    made = cache.compile(TEMPLATE, "sm_90", ["-lineinfo"], name="mine.cu", name_expressions=["k<3>"])
    how: Any = {"name": "mine.cu", "name_expressions": ["k<3>"]}
    assert cache.get(TEMPLATE, "sm_90", ["-lineinfo"], **how) == dataclasses.replace(made, was_cached=True)
    assert cache.get(TEMPLATE, "sm_90", ["-lineinfo"]) is None
    assert cache.get(TEMPLATE, "sm_100", ["-lineinfo"], **how) is None
    older = cache.get(TEMPLATE, "sm_100", ["-lineinfo"], older_ptx=True, **how)
    assert older is not None
    assert (older.ptx, older.cubin, older.arch) == (made.ptx, None, "compute_90")


def test_what_was_compiled_elsewhere_can_be_put(cache: NvrtcCache, tmp_path: Path) -> None:
    """The bytes are text that no compiler would give: what is found is what was put."""
    made = Compiled(b"some ptx", b"some cubin", "sm_90", {"k<3>": "_Z1k"}, "a warning", was_cached=False)
    how: Any = {"name_expressions": ["k<3>"], "headers": {"a.h": "#define A"}}
    assert cache.put(made, TEMPLATE, "sm_90", ["-lineinfo"], **how)
    with NvrtcCache(cache.cache.path) as again:
        for found in (
            again.get(TEMPLATE, "sm_90", ["-lineinfo"], **how),
            again.compile(TEMPLATE, "sm_90", ["-lineinfo"], **how),
        ):
            assert found == dataclasses.replace(made, was_cached=True)
    assert cache.put(dataclasses.replace(made, cubin=None), SOURCE, "compute_80")
    found = cache.get(SOURCE, "compute_80")
    assert found is not None
    assert (found.cubin, found.arch) == (None, "compute_80")


@pytest.mark.parametrize("arch", ["90", "gfx942"])
def test_get_and_put_refuse_what_compile_refuses(cache: NvrtcCache, arch: str) -> None:
    made = Compiled(b"", None, arch, {}, "", was_cached=False)
    with pytest.raises(UsageError, match="is not an architecture"):
        cache.get(SOURCE, arch)
    with pytest.raises(UsageError, match="is not an architecture"):
        cache.put(made, SOURCE, arch)
    with pytest.raises(UsageError, match="precompiled header"):
        cache.get(SOURCE, "sm_90", ["--pch"])


def test_name_expressions_come_back_lowered(cache: NvrtcCache) -> None:
    for _ in range(2):
        made = cache.compile(TEMPLATE, "sm_90", name_expressions=["k<3>", "k<4>"])
        assert made.lowered_names == {"k<3>": "_Z1kILi3EEvPi", "k<4>": "_Z1kILi4EEvPi"}
    assert made.was_cached
    assert cache.compile(TEMPLATE, "sm_90", name_expressions=["k<4>", "k<3>"]).was_cached
    assert not cache.compile(TEMPLATE, "sm_90", name_expressions=["k<4>"]).was_cached


def test_a_long_table_of_names_is_kept(cache: NvrtcCache) -> None:
    kernel = "k" * 4000
    expressions = [f"{kernel}<{number}>" for number in range(20)]
    source = TEMPLATE.replace("k(int", f"{kernel}(int")
    made = cache.compile(source, "sm_90", name_expressions=expressions)
    assert sum(map(len, made.lowered_names.values())) > META_LIMIT
    found = NvrtcCache(cache.cache.path).compile(source, "sm_90", name_expressions=expressions)
    assert found == dataclasses.replace(made, was_cached=True)


def test_headers_and_include_folders_count_by_content(cache: NvrtcCache, tmp_path: Path) -> None:
    source = '#include "value.h"\n' + SOURCE.replace("1", "VALUE")
    one = cache.compile(source, "compute_90", headers={"value.h": "#define VALUE 1"})
    two = cache.compile(source, "compute_90", headers={"value.h": "#define VALUE 2"})
    assert one.ptx != two.ptx
    made = []
    for value in (1, 2, 1):
        (tmp_path / "value.h").write_text(f"#define VALUE {value}")
        made.append(cache.compile(source, "compute_90", ["-I", str(tmp_path)]))
    assert [answer.was_cached for answer in made] == [False, False, True]
    assert made[0].ptx == made[2].ptx != made[1].ptx


def test_a_header_beside_the_source_counts(cache: NvrtcCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = []
    for value in (1, 2):
        Path("value.h").write_text(f"#define VALUE {value}")
        made.append(cache.compile('#include "value.h"\n' + SOURCE.replace("1", "VALUE"), "compute_90"))
    assert made[0].ptx != made[1].ptx


@pytest.mark.parametrize(
    "options",
    [
        ["-I.", "--pre-include=value.h"],
        ["-I.", "--pre-include", "value.h"],
        ["-I.", "-include=value.h"],
        ["-I.", "-include", "value.h"],
        [" -I .", " -include=value.h "],
        ["-no-source-include", "-include=./value.h"],
    ],
    ids=" ".join,
)
def test_a_header_included_before_the_source_counts(
    cache: NvrtcCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made = []
    for value in (1, 2, 1):
        Path("value.h").write_text(f"#define VALUE {value}")
        made.append(cache.compile(SOURCE.replace("1", "VALUE"), "compute_90", options, name="elsewhere/kernel.cu"))
    assert [answer.was_cached for answer in made] == [False, False, True]
    assert made[0].ptx == made[2].ptx != made[1].ptx


@pytest.mark.parametrize("folder", [[], ["--pch-dir=made"]], ids=["as it is", "in its folder"])
def test_a_precompiled_header_counts_by_content(
    cache: NvrtcCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("made").mkdir()
    source = '#include "value.h"\n' + SOURCE.replace("1", "VALUE")
    made = []
    for value in (1, 2):
        Path("value.h").write_text(f"#define VALUE {value}")
        compile_program(source, ["--gpu-architecture=compute_90", "--create-pch=value.pch", *folder], want_cubin=False)
        Path("value.h").unlink()
        made.append(cache.compile(source, "compute_90", ["--use-pch=value.pch", *folder]))
    assert made[0].ptx != made[1].ptx


@pytest.mark.parametrize("option", ["--pch", "-pch", "--create-pch=a.pch", " -create-pch=a.pch"])
def test_options_that_write_a_precompiled_header_are_refused(cache: NvrtcCache, option: str) -> None:
    with pytest.raises(UsageError, match="precompiled header"):
        cache.compile(SOURCE, "sm_90", [option])


def test_a_program_that_does_not_compile_is_told_and_not_kept(cache: NvrtcCache) -> None:
    for _ in range(2):
        with pytest.raises(CompileFailed, match=r"mine\.cu.*identifier \"nothing\" is undefined"):
            cache.compile("__global__ void k() { nothing; }", "sm_90", name="mine.cu")
    assert len(cache.cache) == 0


def test_older_ptx_answers_only_where_asked(cache: NvrtcCache) -> None:
    older = cache.compile(SOURCE, "compute_75")
    cache.compile(SOURCE, "sm_80")
    cache.compile(SOURCE, "sm_100")
    found = cache.compile(SOURCE, "sm_90", older_ptx=True)
    assert (found.arch, found.cubin, found.was_cached) == ("compute_80", None, True)
    assert b".target sm_80" in found.ptx
    exact = cache.compile(SOURCE, "sm_90")
    assert (exact.arch, exact.was_cached) == ("sm_90", False)
    assert cache.compile(SOURCE, "sm_90", older_ptx=True).arch == "sm_90"
    assert cache.compile(SOURCE, "compute_75", older_ptx=True).ptx == older.ptx


def test_ptx_of_one_architecture_alone_never_answers_for_another(cache: NvrtcCache) -> None:
    cache.compile(SOURCE, "sm_90a")
    assert cache.compile(SOURCE, "sm_100", older_ptx=True).arch == "sm_100"
    cache.compile(TEMPLATE, "compute_90", name_expressions=["k<1>"])
    assert cache.compile(TEMPLATE, "sm_90a", name_expressions=["k<1>"], older_ptx=True).arch == "compute_90"


def test_threads_compile_a_program_once(cache: NvrtcCache) -> None:
    both = threading.Barrier(4)
    answers = []

    def ask() -> None:
        both.wait()
        answers.append(cache.compile(SOURCE, "sm_90"))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer.cubin for answer in answers}) == 1
    assert sum(not answer.was_cached for answer in answers) == 1


@pytest.mark.parametrize("arch", ["", "90", "sm90", "sm_90x", "gfx942"])
def test_other_architectures_are_refused(cache: NvrtcCache, arch: str) -> None:
    with pytest.raises(UsageError, match="is not an architecture"):
        cache.compile(SOURCE, arch)


@pytest.mark.parametrize("option", ["-arch=sm_80", "--gpu-architecture=sm_80", "-arch"])
def test_the_architecture_is_given_once(cache: NvrtcCache, option: str) -> None:
    with pytest.raises(UsageError, match="belongs in `arch`"):
        cache.compile(SOURCE, "sm_90", [option])


def test_the_compiler_is_known_to_the_build() -> None:
    told = r"nvrtc \d+\.\d+ Compiler Build ID: CL-\d+; Cuda compilation tools, .*V\d+\.\d+\.\d+"
    assert re.fullmatch(told, compiler_version())
    assert 90 in supported_archs()


def test_another_version_of_the_project_compiles_anew(cache: NvrtcCache, tmp_path: Path) -> None:
    cache.compile(SOURCE, "compute_90")
    copy_package(tmp_path / "later" / "kcachefs")
    start = tmp_path / "later" / "kcachefs" / "__init__.py"
    start.write_text(start.read_text().replace(f'"{kcachefs.__version__}"', '"99.0"'))
    code = (
        "import sys; sys.path.insert(0, sys.argv[3]); import kcachefs; from kcachefs.cuda import NvrtcCache\n"
        "cache = NvrtcCache(sys.argv[1]); answers = [cache.compile(sys.argv[2], 'compute_90') for _ in range(2)]\n"
        "print(kcachefs.__version__, [answer.was_cached for answer in answers])"
    )
    words = [sys.executable, "-c", code, str(cache.cache.path), SOURCE, str(tmp_path / "later")]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ran.stdout == "99.0 [False, True]\n"
    assert NvrtcCache(cache.cache.path).compile(SOURCE, "compute_90").was_cached
