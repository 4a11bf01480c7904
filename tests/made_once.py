"""What is dear to make is made once in a whole run of the tests, whichever of its processes (`-n`) needs it first."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], T]) -> T:
    """What `make` returned, which JSON can hold. It gets a folder that stays until the run ends."""
    base = factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    folder, result = shared / f"once-{name}", shared / f"once-{name}.json"
    with (shared / f"once-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            folder.mkdir(exist_ok=True)
            result.write_text(json.dumps(make(folder)))
    made: T = json.loads(result.read_text())
    return made
