"""The places a test runs in and the users it runs as. KCACHEFS_TEST_ROOTS=plain,direct,pyfuse3 chooses places."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.callers import OTHER, Identity, in_thread
from tests.engines.mounting import KINDS, Mount, Place, opened


@pytest.fixture(scope="session", params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A plain directory, or a mount of each engine. It lasts for the whole run, and is mounted again if it died."""
    with opened(request.param) as place:
        yield place


@pytest.fixture
def root(place: Place) -> Path:
    """An empty folder in that place that every user may write to."""
    return place.fresh()


@pytest.fixture
def mount(place: Place) -> Mount:
    """The mount itself, for tests that are `of_a_mount_only`."""
    assert place.mount is not None
    return place.mount


@pytest.fixture(params=["root", "other"])
def as_user(request: pytest.FixtureRequest) -> Identity | None:
    """Runs the test twice: as the current user, and as one without privileges (see pytest_pyfunc_call)."""
    if request.param == "root":
        return None
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    return OTHER


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the body of a test `as_user` in a thread of that user."""
    values: dict[str, Any] = pyfuncitem.funcargs
    if "as_user" not in values:
        return None
    arguments = {name: values[name] for name in pyfuncitem._fixtureinfo.argnames}
    in_thread(lambda: pyfuncitem.obj(**arguments), values["as_user"])
    return True
