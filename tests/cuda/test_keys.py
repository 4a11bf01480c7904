"""Keys of programs held against the real compiler: whatever changes its output changes the key."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from kcachefs.cuda import NvrtcCache
from kcachefs.cuda.compiler import compile_program
from kcachefs.errors import CompileFailed, Unkeyable, UsageError

MATHS = """
extern "C" __global__ void k(float *p, float *q, float a) {
    int i = threadIdx.x;
    p[i] = q[i] * a + sqrtf(p[i]) / (a + 1) + sinf(q[i]);
}
"""
VALUE = '\n__device__ int value = V;\nextern "C" __global__ void k(int *p) { *p = value; }\n'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NvrtcCache:
    monkeypatch.chdir(tmp_path)
    return NvrtcCache(tmp_path / "cache")


@pytest.mark.parametrize(
    "options",
    [
        ["--fmad=false", "-fmad=true", "--use_fast_math"],
        ["--ftz=true", "-ftz=false", "--prec-div=false", "-prec-div=true"],
        ["--maxrregcount=32", "-maxrregcount=64", "--std=c++17", "-std=c++20"],
        ["-rdc=true", "--relocatable-device-code=false", "-dc"],
        ["-DN=1", "-DN=2", "-UN", "--restrict"],
    ],
    ids=lambda options: options[0],
)
def test_normalised_options_that_give_other_code_have_other_keys(cache: NvrtcCache, options: list[str]) -> None:
    """As they stand, `--fmad=false -fmad=true` contracts and the reverse does not: they must not share an entry."""
    outputs: dict[str, set[bytes]] = {}
    for order in itertools.permutations(options):
        key = cache.key(MATHS, "compute_90", order, option_order="normalised")
        try:
            ptx = compile_program(MATHS, ["--gpu-architecture=compute_90", *order], want_cubin=False).ptx
        except CompileFailed:
            ptx = b"failed"
        outputs.setdefault(key, set()).add(ptx)
    assert all(len(seen) == 1 for seen in outputs.values())
    assert len(outputs) > 1


INCLUDES = {
    "plain": ('#include "value.h"', "inc/value.h"),
    "outside": ('#include "escape.h"', "outside/value.h"),
    "absolute": ('#include "absolute.h"', "outside/value.h"),
    "macro": ('#include "name.h"\n#include WHICH', "inc/value.h"),
    "option": ("#include GIVEN", "inc/value.h"),
    "behind a linked folder": ('#include "link/value.h"', "outside/deep/value.h"),
    "beyond a linked folder": ('#include "link/../value.h"', "outside/value.h"),
}


@pytest.mark.parametrize(("directive", "edited"), INCLUDES.values(), ids=INCLUDES.keys())
def test_an_edited_header_is_compiled_anew(cache: NvrtcCache, tmp_path: Path, directive: str, edited: str) -> None:
    (tmp_path / "outside" / "deep").mkdir(parents=True)
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "link").symlink_to(tmp_path / "outside" / "deep")
    texts = {
        "inc/escape.h": '#include "../outside/value.h"',
        "inc/absolute.h": f'#include "{tmp_path}/outside/value.h"',
        "inc/name.h": '#define WHICH "value.h"',
        **dict.fromkeys(("inc/value.h", "outside/value.h", "outside/deep/value.h"), "#define V 1"),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text + "\n")
    options = ["-Iinc", '-DGIVEN="value.h"']
    seen = []
    for text in ("#define V 1\n", "#define V 2\n", "#define V 1\n"):
        (tmp_path / edited).write_text(text)
        made = cache.compile(directive + VALUE, "compute_90", options)
        fresh = compile_program(directive + VALUE, ["--gpu-architecture=compute_90", *options], want_cubin=False)
        assert made.ptx == fresh.ptx
        seen.append((made.ptx, made.was_cached))
    assert seen[0][0] != seen[1][0]
    assert [was_cached for _, was_cached in seen] == [False, False, True]


def test_an_include_that_the_compiler_follows_and_a_key_cannot_is_refused(cache: NvrtcCache, tmp_path: Path) -> None:
    (tmp_path / "value.h").write_text("#define V 1\n")
    source = "#define OF(x) #x\n#include OF(value.h)" + VALUE
    assert compile_program(source, ["--gpu-architecture=compute_90"], want_cubin=False).ptx
    with pytest.raises(Unkeyable, match="the source includes OF"):
        cache.compile(source, "compute_90")


def test_where_the_checkout_lies_does_not_count_unless_the_code_tells(cache: NvrtcCache, tmp_path: Path) -> None:
    def key(folder: str, *options: str, header: str = "#define V 1\n") -> tuple[str, bytes]:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "value.h").write_text(header)
        words = [f"-I{tmp_path / folder}", *options]
        source = '#include "value.h"' + VALUE
        ptx = compile_program(source, ["--gpu-architecture=compute_90", *words], want_cubin=False).ptx
        return cache.key(source, "compute_90", words), ptx

    assert key("one") == key("two")
    telling = "#define V 1\n__device__ const char *where = __FILE__;\n"
    kernel = '#define V 1\nextern "C" __global__ void h(int *p) { *p = 1; }\n'
    for options, header in ((["-lineinfo"], kernel), (["-G"], kernel), ([], telling)):
        one, two = key("one", *options, header=header), key("two", *options, header=header)
        assert one[0] != two[0]
        assert one[1] != two[1]


def test_debug_information_holds_the_current_directory(
    cache: NvrtcCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(folder: str, *options: str) -> tuple[str, bytes]:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        ptx = compile_program(MATHS, ["--gpu-architecture=compute_90", *options], want_cubin=False).ptx
        return cache.key(MATHS, "compute_90", options), ptx

    assert made("one") == made("two")
    with_lines = [made(folder, "-lineinfo") for folder in ("one", "two", "one")]
    assert with_lines[0] == with_lines[2]
    assert with_lines[0][0] != with_lines[1][0]
    assert with_lines[0][1] != with_lines[1][1]


@pytest.mark.parametrize("option", ["--fdevice-time-trace=times.json", "-fdevice-time-trace=times.json"])
def test_an_option_that_writes_another_file_is_refused(cache: NvrtcCache, option: str) -> None:
    with pytest.raises(UsageError, match="writes a file of times"):
        cache.key(MATHS, "compute_90", [option])
