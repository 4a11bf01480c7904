"""A publisher that is killed before a write: `python -m tests.fleet.dying_publisher URL FOLDER KEY CACHES WRITES`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from kcachefs.fleet.object_storage import Storage, open_storage
from tests.fleet.nodes import Node


class Mortal:
    """A storage whose user is killed before a write."""

    def __init__(self, storage: Storage, lives: int) -> None:
        self._storage = storage
        self._lives = lives

    def __getattr__(self, name: str) -> Any:
        if name == "put":
            if self._lives == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._lives -= 1
        return getattr(self._storage, name)


def main() -> None:
    url, folder, secret, caches, lives = sys.argv[1:]
    mortal: Any = Mortal(open_storage(url), int(lives))
    Node(Path(folder), mortal, Path(secret)).publish(Path(caches))


if __name__ == "__main__":
    main()
