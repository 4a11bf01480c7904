"""Uses the fixtures of the framework tests."""

from tests.frameworks.conftest import base, mount, surroundings

__all__ = ["base", "mount", "surroundings"]
