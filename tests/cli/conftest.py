"""A scene for every test, which must be empty of mounts and daemons when the test says it is done."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.scene import Scene, scene


@pytest.fixture(name="scene")
def a_scene() -> Iterator[Scene]:
    with scene() as place:
        yield place
