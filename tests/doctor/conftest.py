"""The same surroundings as the tests of the frameworks have."""

from tests.frameworks.conftest import base, mount, surroundings

__all__ = ["base", "mount", "surroundings"]
