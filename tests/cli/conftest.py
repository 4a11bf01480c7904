"""A scene for every test, and a server that runs commands of other users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.scene import Scene, scene
from tests.cli.visiting import Visits, visits


@pytest.fixture(name="scene")
def a_scene() -> Iterator[Scene]:
    with scene() as place:
        yield place


@pytest.fixture(scope="session", name="visits")
def a_server_of_visits() -> Iterator[Visits]:
    with visits() as server:
        yield server
