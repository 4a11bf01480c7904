"""Uses the fixtures of the framework tests; keys are looked for in a folder of the tests' own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.mounting import temporary_folder
from tests.fleet.caches import TIME, fill
from tests.fleet.mounts import CREDENTIALS, Fleet
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


@pytest.fixture(scope="package")
def published(own_keys: None) -> Iterator[Fleet]:
    """A fleet whose bucket holds one pack, which took nine seconds to compile. Use `fleet`."""
    with temporary_folder() as folder:
        fleet = Fleet(folder)
        with fleet.publisher("publisher") as mount:
            fill(mount.mountpoint)
            changed, later = mount.mountpoint / "triton" / "KEY0" / "add.ptx", TIME + 9 * 10**9
            changed.chmod(0o666)
            os.utime(changed, ns=(later, later))
        yield fleet


@pytest.fixture
def empty_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return Fleet(tmp_path)


@pytest.fixture
def fleet(published: Fleet, empty_fleet: Fleet) -> Fleet:
    """What was published, in a bucket of the test's own."""
    empty_fleet.take(published)
    return empty_fleet
