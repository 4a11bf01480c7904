"""How the project starts another Python of its own: the one place that knows it, because doing it wrong is dangerous.

`python -m` puts the current directory in front of the import path, and so does an empty part of PYTHONPATH. A file
`lmdb.py` that somebody left there would run with the rights of whoever calls kcachefs, often root.
"""

from __future__ import annotations

import sys

DIRECTORY = "/"
"""Where such a process runs: only root can put a module there. Pass absolute paths."""


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module`. Start it in DIRECTORY."""
    # -P and not -I: a kcachefs that is found through PYTHONPATH must find itself again.
    return [sys.executable, "-P", "-m", module, *arguments]
