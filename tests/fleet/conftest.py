"""Uses the fixtures of the framework tests; keys are looked for in a folder of the tests' own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.servers import Server, seaweed
from tests.frameworks.conftest import base, mount, surroundings

__all__ = ["base", "mount", "own_keys", "server", "surroundings", "tmp_path"]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A SeaweedFS, one for the whole run: use `server.fresh()`."""
    with seaweed() as running:
        yield running


@pytest.fixture(autouse=True, scope="package")
def own_keys(surroundings: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(surroundings / "config"))
        yield


@pytest.fixture
def tmp_path(base: Path) -> Path:
    """Not pytest's own, which would be made below the surroundings, and go with them while others still use it."""
    return base
