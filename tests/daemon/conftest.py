"""Daemons here are new Pythons, as they are for users: the tests are about their memory, rights and descriptors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import command_server


@pytest.fixture(autouse=True, scope="package")
def started_anew() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_server, "forks_daemons", False)
        yield
