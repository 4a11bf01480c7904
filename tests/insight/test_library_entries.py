"""Library caches on a real mount: which ingredient of a key changed, and no more of an argument than may be told."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kcachefs.caches import ingredients, record
from kcachefs.errors import ArtefactGarbled
from kcachefs.insight import library_entries
from tests.cli.scene import Scene, scene
from tests.waiting import PATIENCE

PROGRAM = """
import os, sys
from kcachefs import Cache, cached
from kcachefs.keys import env

{helper}

@cached(depends=[env("TILE_LIST")])
def build(source, block=128, options=None):
    {body}

build({arguments})
"""
WHOLE = {
    "helper": "def scaled(x): return x * 2",
    "body": "return f'{source} {scaled(block)}'.encode()",
    "arguments": "'kernel', options={'secret': 'a password of mine' * 9}",
}


@pytest.fixture(name="place", scope="module")
def a_place() -> Iterator[Scene]:
    with scene() as made:
        made.mount()
        run(made)
        made.settle()
        yield made


def run(place: Scene, code: str = "", *, variable: str = "1", **parts: str) -> None:
    program = place.folder / "program.py"
    program.write_text(code or PROGRAM.format(**{**WHOLE, **parts}))
    environment = {**place.environment, "KCACHEFS_MOUNT": str(place.mountpoint), "TILE_LIST": variable}
    subprocess.run([sys.executable, str(program)], env=environment, check=True, timeout=PATIENCE)


def explained(place: Scene) -> list[dict[str, Any]]:
    return list(json.loads(place.must("explain", "--json"))["entries"])


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (
            {"arguments": "'kernel', 256, {'secret': 'a password of mine' * 9}"},
            "constant",
            "argument block is 256, was 128",
        ),
        ({"arguments": "'kernel', options={'secret': 'another'}"}, "constant", "argument options changed"),
        ({"helper": "def scaled(x): return x * 3"}, "source", "something that it uses changed"),
        ({"body": "return f'{source}: {scaled(block)}'.encode()"}, "source", "the source changed (program.py:"),
        ({"variable": "2"}, "environment", "variable TILE_LIST changed"),
    ],
)
def test_what_changed_of_a_cached_call_is_named(place: Scene, change: dict[str, str], kind: str, words: str) -> None:
    run(place, **change)
    (one,) = explained(place)
    assert (one["kind"], one["name"]) == ("call", "__main__.build")
    assert one["causes"][0]["kind"] == kind
    assert words in one["causes"][0]["words"]
    assert len(one["causes"]) == 1
    assert one["nearest"] is not None


def test_a_secret_argument_is_in_no_file_and_no_answer(place: Scene) -> None:
    path = next(one["path"] for one in json.loads(place.must("ls", "--json")) if one["namespace"] == "library")
    said = place.must("show", path)
    assert "argument source" in said
    assert "password" not in said
    # In a process of its own: what is below one that uses the mount is part of its run.
    searched = subprocess.run(["grep", "-rl", "password", str(place.mountpoint / "library")], capture_output=True)
    assert (searched.returncode, searched.stdout) == (1, b"")


def test_what_looks_like_a_secret_is_not_written_down(place: Scene) -> None:
    call = "import kcachefs\n@kcachefs.cached\ndef fetch(model, api_token, header):\n    return b'result'\n"
    call += "fetch('meta-llama/Llama-3.1-8B-Instruct', {token!r}, 'Bearer ghp_0a1B2c3D4e5F6g7H8i9J')"
    run(place, call.format(token="hunter2"))
    run(place, call.format(token="hunter3"))
    (one,) = explained(place)
    assert [cause["words"] for cause in one["causes"]] == ["argument api_token changed"]
    assert "Llama-3.1-8B" in place.must("show", one["path"])
    for secret in ("hunter", "ghp_0a1B2c"):
        searched = subprocess.run(["grep", "-rl", secret, str(place.mountpoint / "library")], capture_output=True)
        assert (searched.returncode, searched.stdout) == (1, b"")


def test_values_of_a_cache_differ_by_what_was_written_down_with_them(place: Scene) -> None:
    put = "from kcachefs import Cache\nCache(name='tiles').put({key!r}, b'value', {{'gpu': {gpu!r}, 'tile': 64}})"
    run(place, put.format(key="first", gpu="H100"))
    run(place, put.format(key="second", gpu="H200"))
    (one,) = explained(place)
    assert (one["kind"], one["name"]) == ("value", "second")
    assert [cause["words"] for cause in one["causes"]] == ["metadata gpu is H200, was H100"]
    old, new = (entry["path"] for entry in sorted(entries(place, "tiles"), key=lambda entry: entry["created"]))
    assert "metadata gpu is H200, was H100" in place.run("diff", old, new).out


def entries(place: Scene, cache: str) -> list[dict[str, Any]]:
    return [one for one in json.loads(place.must("ls", "--json")) if one["path"].startswith(f"library/{cache}/")]


NVRTC = """
from pathlib import Path
from kcachefs.cuda import NvrtcCache
Path("tile.h").write_text("#define TILE {tile}")
source = '#include "tile.h"\\n__global__ void scale(float *x) {{ x[threadIdx.x] *= TILE{more}; }}'
NvrtcCache().compile(source, {arch!r}, {options!r})
"""


def test_what_changed_of_a_program_is_named(place: Scene) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    before: dict[str, Any] = {"tile": 2, "more": "", "arch": "sm_90", "options": []}

    def causes(**change: Any) -> list[str]:
        code = NVRTC.format(**{**before, **change})
        run(place, f"import os; os.chdir({str(place.folder)!r})\n" + code)
        (one,) = explained(place)
        assert (one["kind"], one["name"]) == ("program", "scale")
        return [cause["words"] for cause in one["causes"]]

    assert causes() == ["new: no program like it was here before"]
    assert causes(tile=4) == ["header tile.h changed"]
    assert causes(arch="sm_80") == ["architecture is sm_80, was sm_90"]
    assert causes(options=["--use_fast_math"]) == ["options is --use_fast_math, was "]
    assert causes(more=" + 1") == ["the source changed"]


def test_garbled_records_give_an_error_of_their_own() -> None:
    made_of = ingredients.pack([ingredients.of_text("options", "-O3"), ingredients.of_bytes("source", b"x")])
    whole = b"".join(record.pack(b"key", True, b"value", {"function": "f", ingredients.META: made_of, "tile": 64}))
    assert library_entries.read("library/c/entries/v1/ab/c", 1.0, whole).made_of.keys() == {
        "options",
        "source",
        "metadata tile",
    }
    choices = random.Random(7)
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(choices.randrange(1, 6)):
            data[choices.randrange(len(data))] = choices.randrange(256)
        del data[choices.randrange(len(data)) :]
        try:
            library_entries.read("library/c/entries/v1/ab/c", 1.0, bytes(data))
        except ArtefactGarbled:
            continue


def test_no_more_is_kept_than_fits() -> None:
    many = [ingredients.of_text("n" * 500 + str(number), "v" * 5000) for number in range(5000)]
    packed = ingredients.pack(many)
    assert len(packed) < 24 << 10
    found = ingredients.unpack(packed)
    assert len(found) == ingredients.COUNT_MAX
    assert found[-1].shown == f"{5000 - ingredients.COUNT_MAX + 1} ingredients"
    assert found[-1] != ingredients.unpack(ingredients.pack([*many[:-1], ingredients.of_text("other", "x")]))[-1]
