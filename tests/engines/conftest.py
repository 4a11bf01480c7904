"""The places a test runs in and the users it runs as. KCACHEFS_TEST_ROOTS=plain,direct,pyfuse3 chooses places."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.callers import OTHER, in_child
from tests.engines.mounting import KINDS, Mount, Place, opened


@pytest.fixture(scope="session", params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A plain directory, or a mount of each engine; one for the whole run, and mounted again should it have died."""
    with opened(request.param) as place:
        yield place


@pytest.fixture
def root(place: Place) -> Path:
    """An empty folder of that place which every user may write to."""
    return place.fresh()


@pytest.fixture
def mount(place: Place) -> Mount:
    """The mount itself, for tests that are `of_a_mount_only`."""
    assert place.mount is not None
    return place.mount


@pytest.fixture(params=["root", "other"])
def as_user(request: pytest.FixtureRequest) -> str:
    """Runs the test as it is, and once more as a user without rights (see pytest_pyfunc_call)."""
    if request.param == "other" and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    user: str = request.param
    return user


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test `as_user` "other" has its whole body run in a process of that user."""
    if pyfuncitem.funcargs.get("as_user") != "other":
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    in_child(lambda: pyfuncitem.obj(**arguments), OTHER)
    return True
