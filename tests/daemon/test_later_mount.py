"""A mount that is made where another one was, whose daemon is still writing everything to disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli import scene as scenes
from tests.cli.scene import Scene
from tests.waiting import until, until_gone

pytestmark = pytest.mark.mount


@pytest.fixture(name="scene")
def a_scene() -> Iterator[Scene]:
    with scenes.scene() as place:
        yield place


# A worker can make files only in its store.
WAITS_AT_THE_END = """
import sys
if "kcachefs.daemon.worker" in sys.orig_argv:
    import os, time
    from kcachefs.core import Filesystem
    settle = Filesystem.settle
    def wait_and_settle(self):
        if str(self.store.path) == {store!r}:
            open({begun!r}, "w").close()
            while not os.path.exists({gate!r}):
                time.sleep(0.01)
        return settle(self)
    Filesystem.settle = wait_and_settle
"""
# As most often; but another process may take it in between.
SAME_DEVICE = """
if "kcachefs.daemon.supervisor" in sys.orig_argv:
    import dataclasses
    from kcachefs.engines import mounting
    mounts = mounting.mounts
    mounting.mounts = lambda: [dataclasses.replace(one, device="0:99") for one in mounts()]
"""
OLDER_KERNEL = """
import kcachefs.libc
kcachefs.libc.mount_id = lambda path: 0
"""


@contextmanager
def ending(scene: Scene) -> Iterator[int]:
    """A mount that is gone, while its supervisor waits for a worker that is let go on at the end of the scope."""
    scene.mount()
    [first] = scene.status()
    subprocess.run(["umount", scene.mountpoint], check=True)
    until((scene.store / "begun").exists)
    scene.must("mount", scene.mountpoint, "--store", scene.folder / "second")
    try:
        yield first["supervisor_pid"]
    finally:
        (scene.store / "gate").touch()


@pytest.mark.parametrize("kernel", ["", OLDER_KERNEL], ids=["this kernel", "older"])
def test_it_outlives_the_end_of_the_earlier_one(scene: Scene, kernel: str) -> None:
    names = {name: str(scene.store / name) for name in ("begun", "gate")}
    scene.in_every_python(WAITS_AT_THE_END.format(store=str(scene.store), **names) + SAME_DEVICE + kernel)
    with ending(scene) as supervisor:
        (scene.mountpoint / "triton" / "file").write_text("text")
    until_gone(supervisor)
    assert (scene.mountpoint / "triton" / "file").read_text() == "text"
    assert scene.mounted() == [str(scene.mountpoint)]
    scene.umount()
    assert scene.is_over()
