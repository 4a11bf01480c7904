"""Inductor's graphs name their kernels by absolute paths: elsewhere they name those of their new place."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.engines.mounting import Mount
from tests.fleet.caches import key
from tests.fleet.mounts import Fleet, fleet_of, wait_for_index
from tests.frameworks.commands import kcachefs
from tests.waiting import until

pytestmark = pytest.mark.mount

GRAPH = "inductor/fxgraph/l4/fl4ezttp33yon3hvk5ree2twxelzdas5nzfnfksvxxjspxeuxvxk/x2djdbqjrt66lwszyljjothssabezz26wr"
KERNEL = "56/c56so7rmolkdjp2zcb7eej4g7ijkcq3fbs7wbdezvn3sons6zrjv.py"
BEST = "56/8f498d883e2888fa961b916bdc86a7c78e0bba9dac83ffe01e01f061dafea8ed.best_config"


def graph(inductor: Path) -> dict[str, object]:
    return {"filename": str(inductor / KERNEL), "key": str(inductor / BEST), "asm": b"\x7fELF" * 30_000, "n": [1, 2]}


def compile_one(root: Path, inductor: Path) -> None:
    for name, content in ((GRAPH, pickle.dumps(graph(inductor), 4)), (f"inductor/{KERNEL}", b"import triton")):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(content)


def test_in_a_pack(mount: Mount, base: Path) -> None:
    secret, public = key(base)
    with Mount(base / "one with a longer path", base / "store one", "direct") as one:
        compile_one(one.mountpoint, one.mountpoint / "inductor")
        kcachefs("pack", base / "all.kcp", "--key", secret, "--level", "3", "--mount", one.mountpoint)
        kcachefs("unpack", base / "all.kcp", "--trust", public, "--mount", mount.mountpoint)
    assert pickle.loads((mount.mountpoint / GRAPH).read_bytes()) == graph(mount.mountpoint / "inductor")


def test_on_the_second_node_of_a_fleet(empty_fleet: Fleet) -> None:
    with empty_fleet.publisher("one", "direct") as one:
        compile_one(one.mountpoint, one.mountpoint / "inductor")
    with empty_fleet.node("another one", "direct") as two:
        wait_for_index(two)
        assert pickle.loads((two.mountpoint / GRAPH).read_bytes()) == graph(two.mountpoint / "inductor")
        until(lambda: fleet_of(two)["entries"] == 2, "the rest of the pack is here, too")
        assert (two.mountpoint / "inductor" / KERNEL).read_bytes() == b"import triton"


def test_when_a_cache_is_adopted(mount: Mount, base: Path) -> None:
    compile_one(base / "plain", base / "plain" / "inductor")
    kcachefs("adopt", base / "plain" / "inductor", "--mount", mount.mountpoint)
    assert pickle.loads((mount.mountpoint / GRAPH).read_bytes()) == graph(mount.mountpoint / "inductor")
    assert pickle.loads((base / "plain" / GRAPH).read_bytes()) == graph(base / "plain" / "inductor"), "the source stays"
