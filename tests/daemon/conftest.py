"""Daemons here are new Pythons, as they are for users: most tests are about their memory, rights and descriptors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import command_server


@pytest.fixture(autouse=True, scope="package")
def started_anew() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_server, "forks_daemons", False)
        yield


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what daemons do, whatever they came from: theirs are forked, as in the rest of the suite."""
    monkeypatch.setattr(command_server, "forks_daemons", True)
