"""A scene for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.scene import Scene, scene


@pytest.fixture(name="scene")
def a_scene() -> Iterator[Scene]:
    with scene() as place:
        yield place
