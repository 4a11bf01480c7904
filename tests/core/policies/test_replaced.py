"""Under every policy users do not notice that a worker is killed and replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.core.policies.mounts import ALICE, BOB, mounted, needs_root, publish, replace_worker, triton_put
from tests.engines.callers import Child

KILLS = 3

pytestmark = [pytest.mark.mount, needs_root]


def work(root: Path, mine: bytes, stop: Path, begun: int) -> int:
    """Publish, read back and list until told to stop. The descriptor `begun` gets a byte after the first round."""
    rounds = 0
    while not stop.exists():
        entry = root / "triton" / f"{mine.decode()}{rounds % 5}"
        triton_put(entry, "kernel.cubin", mine * 1000)
        assert (entry / "kernel.cubin").read_bytes() == mine * 1000
        module = root / "inductor" / "ab" / f"c{mine.decode()}.py"
        publish(module, mine * (rounds % 50 + 1))
        assert module.read_bytes() == mine * (rounds % 50 + 1)
        assert entry.name in os.listdir(root / "triton")
        rounds += 1
        if rounds == 1:
            os.write(begun, b"x")
    return rounds


@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [("publish",), ("private",), ("private", "--base", "--writers", "0")], ids=" ".join)
def test_users_go_on_while_the_worker_is_killed(options: tuple[str, ...]) -> None:
    with mounted("direct", "--policy", *options) as mount:
        root, stop = mount.mountpoint, mount.mountpoint.parent / "stop"
        triton_put(root / "triton" / "BASE", "kernel.cubin", b"base")
        reader, begun = os.pipe()
        with (
            open(reader, "rb", buffering=0) as begins,
            open(begun, "wb", buffering=0),
            Child(lambda: work(root, b"a", stop, begun), ALICE) as alice,
            Child(lambda: work(root, b"b", stop, begun), BOB) as bob,
        ):
            replace_worker(mount)
            for _ in range(2):
                assert begins.read(1) == b"x"
            for _ in range(KILLS - 1):
                replace_worker(mount)
            stop.touch()
            assert alice.result() > 0
            assert bob.result() > 0
        if "--base" in options:
            with Child((root / "triton" / "BASE" / "kernel.cubin").read_bytes, ALICE) as child:
                assert child.result() == b"base"
