"""Generated tests here have no deadline: how long an example takes says more about the machine than about keys."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("keys", deadline=None)
settings.load_profile("keys")
