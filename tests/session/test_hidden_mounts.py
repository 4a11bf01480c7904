"""A mount that is served, but cannot be reached from here: programs must not fill the bare directory instead."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tests.cli import scene as scenes
from tests.cli.scene import Scene

pytestmark = pytest.mark.mount

INIT = "import kcachefs; kcachefs.init()"


@pytest.fixture(name="scene")
def a_scene() -> Iterator[Scene]:
    with scenes.scene() as place:
        yield place


def test_nobody_uses_a_mount_that_only_its_last_user_sees(scene: Scene) -> None:
    folder = scene.mount()
    (folder / "file").write_text("text")
    with (folder / "file").open():
        scene.umount("--lazy")
        assert [one["state"] for one in scene.status()] == ["served"]
        scene.run("env").refused_with(4, "nothing is mounted here", str(scene.mountpoint))
        scene.run("run", "--", "true").refused_with(3, "is still in use")
        failed = scene.run("-c", INIT, command=(sys.executable,))
        assert "MountError: nothing is mounted here" in failed.err
        assert os.listdir(scene.mountpoint) == []
