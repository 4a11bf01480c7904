"""The paths inside Inductor's graphs move with the cache, and nothing else in them changes."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcachefs.frameworks.graph_paths import cache_directory, relocated_graph

LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
OLD, NEW = PurePosixPath("/scratch/node one/kcache/inductor"), PurePosixPath("/mnt/kcache/inductor")


@cache
def kernel(number: int) -> str:
    """A path from the cache directory, as Inductor names a kernel's source."""
    chosen = random.Random(number)
    name = "".join(chosen.choice(LETTERS) for _ in range(51))
    return f"{name[:2]}/c{name}.py"


def best(number: int) -> str:
    return f"{kernel(number)[:2]}/{number:064x}.best_config"


def graph(directory: PurePosixPath) -> dict[str, Any]:
    """Like a stored graph: large code, large bytes outside of frames, paths inside frames, and one that is shared."""
    shared = str(directory / kernel(0))
    return {
        "code": f"# kernel path: {directory / kernel(1)}\n" + "x = 1\n" * 20_000,
        "asm": [bytes([number]) * 70_000 for number in range(3)],
        "autotuners": [
            {"filename": str(directory / kernel(number)), "key": str(directory / best(number)), "n": number}
            for number in range(2_000)
        ],
        "shared": (shared, shared),
    }


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("new", [NEW, PurePosixPath("@kcachefs@/inductor"), PurePosixPath("/" + "long" * 60, "é")])
def test_every_path_of_a_kernel_leads_into_the_new_directory(protocol: int, new: PurePosixPath) -> None:
    moved = relocated_graph(pickle.dumps(graph(OLD), protocol), new)
    assert moved is not None
    expected = {**graph(new), "code": graph(OLD)["code"]}  # its hash is the name of a file
    assert pickle.loads(moved) == expected
    assert relocated_graph(moved, OLD) is not None
    assert pickle.loads(relocated_graph(moved, OLD) or b"") == graph(OLD)


def test_there_and_back_gives_the_same_bytes() -> None:
    raw = pickle.dumps(graph(OLD), 4)
    there = relocated_graph(raw, NEW)
    assert there is not None
    assert there != raw
    assert relocated_graph(there, OLD) == raw


values = st.recursive(
    st.one_of(
        st.integers(),
        st.text(),
        st.binary(max_size=100),
        st.integers(0, 5).map(lambda number: str(OLD / kernel(number))),
        st.integers(0, 5).map(lambda number: f"see {OLD / kernel(number)} there"),
        st.just(b"\x8c\x45" + str(OLD / kernel(1)).encode()),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=30,
)


@given(values)
def test_whatever_else_a_pickle_holds_stays(value: Any) -> None:
    def moved(one: Any) -> Any:
        if isinstance(one, str):
            paths = {str(OLD / kernel(number)): str(NEW / kernel(number)) for number in range(6)}
            return paths.get(one, one)
        if isinstance(one, list):
            return [moved(inner) for inner in one]
        return {key: moved(inner) for key, inner in one.items()} if isinstance(one, dict) else one

    raw = pickle.dumps(value, 4)
    found = relocated_graph(raw, NEW)
    assert pickle.loads(raw if found is None else found) == moved(value)


PATH = str(OLD / kernel(3)).encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        PATH,
        pickle.dumps("a graph that names nothing"),
        pickle.dumps(str(OLD / kernel(3)))[:-1],
        pickle.dumps(str(OLD / kernel(3))) + b"something else",
        b"\x80\x04\x95" + b"\xff" * 8 + pickle.dumps(str(OLD / kernel(3)), 4),
        b"\x80\x04X\xff\xff\xff\xff" + PATH,
        b"(" * 1000 + PATH,
    ],
)
def test_what_is_no_such_pickle_is_left_alone(raw: bytes) -> None:
    assert relocated_graph(raw, NEW) is None


def test_hostile_pickles_take_no_more_work_than_honest_ones() -> None:
    def opcodes(raw: bytes) -> float:
        begun = time.process_time()
        relocated_graph(raw, NEW)
        return time.process_time() - begun

    string = b"\x8c" + len(PATH).to_bytes(1, "little") + PATH
    frame = b"\x95" + bytes(8)
    make: Callable[[int], bytes] = lambda count: b"\x80\x04" + (frame + string + b"0") * count + b"N."  # noqa: E731
    few, many = opcodes(make(2_000)), opcodes(make(20_000))
    assert many < 100 * max(few, 0.001), "ten times the frames and strings, and not a hundred times the work"


def test_only_files_that_hold_graphs_are_looked_into() -> None:
    assert cache_directory(PurePosixPath("inductor/aotautograd/abc/def")) == PurePosixPath("inductor")
    assert cache_directory(PurePosixPath("vllm/x/inductor_cache/fxgraph/l4/key")) == PurePosixPath(
        "vllm/x/inductor_cache"
    )
    assert cache_directory(PurePosixPath("/fxgraph/mount/inductor/fxgraph/l4")) == PurePosixPath(
        "/fxgraph/mount/inductor"
    )
    assert cache_directory(PurePosixPath("inductor/56")) is None
