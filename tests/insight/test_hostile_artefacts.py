"""Bytes that anybody may have written: each parser ends soon, with what it read or with an error of its own."""

from __future__ import annotations

import json
import os
import pickle
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcachefs.errors import ArtefactGarbled
from kcachefs.insight import autograd, cubins, graphs, kernels, pickle_walk, triton_ir
from tests.waiting import ending_soon

pytest.importorskip("triton")
ROUNDS = 150


def mutations(data: bytes, seed: int) -> Iterator[bytes]:
    """The bytes with some of them changed, left out, doubled or cut off."""
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 8, 64))):
            at = chance.randrange(len(changed))
            what = chance.randrange(5)
            if what == 0:
                changed[at] = chance.randrange(256)
            elif what == 1:
                del changed[at : at + chance.randrange(1, 40)]
            elif what == 2:
                changed[at:at] = changed[at : at + chance.randrange(1, 200)]
            elif what == 3:
                changed[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f"))
            elif len(changed) > 1000:
                del changed[at:]
            if not changed:
                changed = bytearray(b"\0")
        yield bytes(changed)


def survives(parse: Callable[[bytes], object], data: bytes, seed: int) -> int:
    """How many of the mutations were refused."""
    refused = 0
    parse(data)
    for changed in mutations(data, seed):
        with ending_soon():
            try:
                parse(changed)
            except ArtefactGarbled:
                refused += 1
    return refused


def test_kernels(triton_changes: Path) -> None:
    folder = next(one for one in (triton_changes / "base").iterdir() if (one / "__grp__pool.json").exists())
    files = {one.name: one.read_bytes() for one in folder.iterdir()}

    def with_changed(name: str) -> Callable[[bytes], object]:
        return lambda data: kernels.read(
            "triton/X", 0.0, files, lambda one: data if one == name else files.get(one, b"")
        )

    assert survives(with_changed("pool.json"), files["pool.json"], 1) > ROUNDS // 2
    assert survives(with_changed("__grp__pool.json"), files["__grp__pool.json"], 2) > ROUNDS // 2
    assert survives(with_changed("pool.source"), files["pool.source"], 3) == 0
    survives(with_changed("pool.cubin"), files["pool.cubin"], 4)
    survives(with_changed("pool.ptx"), files["pool.ptx"], 5)


def test_graphs(inductor_changes: Path) -> None:
    graph = min((inductor_changes / "base" / "fxgraph").glob("*/*/*"), key=lambda one: one.stat().st_size)
    entry = next((inductor_changes / "base" / "aotautograd").glob("*/*"))
    survives(lambda data: graphs.read("inductor/fxgraph/x", 0.0, data), graph.read_bytes(), 7)
    survives(lambda data: autograd.read("inductor/aotautograd/x", 0.0, data), entry.read_bytes(), 8)


class Command:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_nothing_is_executed(tmp_path: Path) -> None:
    made = pickle_walk.read(pickle.dumps([Command(tmp_path / "executed")]))
    assert made[0].name.endswith("system")
    assert not (tmp_path / "executed").exists()


BOMBS = {
    "tuples of tuples": b"\x80\x04K\x01" + b"2\x86" * 60_000 + b".",
    "a key made of itself": b"\x80\x04}K\x01" + b"2\x86" * 200 + b"K\x01s.",
    "too many opcodes": b"\x80\x04" + b"N0" * 400_000 + b"N.",
    "lists in lists": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "a length that is not there": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
    "no mark": b"\x80\x04t.",
    "no stack": b"\x80\x04R.",
    "a memo that is not there": b"\x80\x04h\x07.",
    "nothing": b"",
}


def built(items: int, parts: int, times: int) -> bytes:
    """A pickle of one object whose state is the same dict over and over."""
    made = b"\x80\x04}\x94(" + b"".join(b"J" + struct.pack("<i", number) + b"N" for number in range(items)) + b"u0"
    made += b"(" + b"h\x00" * parts + b"t\x940"
    return made + b"\x8c\x01a\x8c\x01b\x93)\x81" + b"h\x01b" * times + b"."


def test_a_pickle_that_gives_one_state_many_times_over() -> None:
    assert len(pickle_walk.read(built(1000, 2, 100)).state) == 1000
    with ending_soon():
        assert len(pickle_walk.read(built(1000, 100_000, 100)).state) == 1000, "pickle takes two parts"
        with pytest.raises(ArtefactGarbled, match="too many attributes"):
            pickle_walk.read(built(50_000, 2, 50_000))


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_that_is_a_bomb(name: str) -> None:
    with ending_soon(), pytest.raises(ArtefactGarbled):
        graphs.read("inductor/fxgraph/x", 0.0, BOMBS[name])


def cubin(sections: int, size: int) -> bytes:
    """One whose sections all lie in the same place."""
    names = b"\0.nv.info\0"
    names_at = 64 + 64 * sections
    header = bytearray(64)
    header[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", header, 0x28, 64)
    struct.pack_into("<HHH", header, 0x3A, 64, sections, 0)
    heads = cubins._SECTION.pack(0, 3, 0, 0, names_at, len(names), 0, 0, 0, 0)
    heads += cubins._SECTION.pack(1, 1, 0, 0, names_at + len(names), size, 0, 0, 0, 0) * (sections - 1)
    attribute = struct.pack("<BBHII", 4, cubins._REGISTERS, 8, 0, 40)
    return bytes(header) + heads + names + attribute.ljust(size, b"\0")


def test_a_cubin_whose_sections_share_their_bytes() -> None:
    assert cubins.read(cubin(2, 100)).registers == 40
    bomb = cubin(2000, 100_000)
    tracemalloc.start()
    try:
        with ending_soon(), pytest.raises(ArtefactGarbled, match="larger than the file"):
            cubins.read(bomb)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_other_bombs() -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    with ending_soon(), pytest.raises(ArtefactGarbled):
        kernels.read("triton/X", 0.0, ["__grp__a.json", "a.json"], lambda name: deep)
    with ending_soon():
        loop = "#loc1 = loc(#loc2)\n#loc2 = loc(#loc1)\n  tt.func public @a(%x: i32 loc(#loc1)) {\n  op loc(#loc1)\n"
        assert triton_ir.read(loop)[0].operations[0].place.line == 0
        triton_ir.read("  tt.func public @a(" + "%x: !tt.ptr<" * 50_000 + "\n" + "op " * 100_000)
        triton_ir.read("  tt.func public @a() {\n" + "  } loc(#loc)\n" * 100_000)
    with ending_soon(), pytest.raises(ArtefactGarbled):
        cubins.read(b"\x7fELF\x02" + b"\xff" * 1000)
    listed = json.dumps({"child_paths": [1, 2]}).encode()
    named = json.dumps({"name": ["x"], "target": [], "extern_libs": {"a": 1}, "shared": "many"}).encode()
    read = {"__grp__a.json": listed, "a.json": named}
    assert kernels.read("triton/X", 0.0, read, lambda name: read[name]).arch == ""
