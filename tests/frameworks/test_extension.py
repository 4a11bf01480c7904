"""A torch C++ extension that ninja builds in the mount: ninja compares times to the nanosecond."""

from __future__ import annotations

import pytest

from tests.frameworks.conftest import ENGINES
from tests.frameworks.programs import EXTENSION
from tests.frameworks.worlds import world


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_it_is_built_once_and_never_again(engine: str) -> None:
    with world(engine) as made:
        built = made.run(EXTENSION)
        assert built["twice"] == 42
        assert made.run(EXTENSION) == built
        made.mount.kill()
        assert made.run(EXTENSION) == built
