"""What both sets do with a change: edit the files of a program, and compile it in a fork with the compiler loaded."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path


def edited(folder: Path, files: Iterable[str], edits: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """The files of a folder as edits (file, a text in it, what takes its place) leave them."""
    found = {name: (folder / name).read_text() for name in files}
    for name, old, new in edits:
        if old not in found[name]:
            raise ValueError(f"{name} has no {old!r}")
        found[name] = found[name].replace(old, new, 1)
    return found


def in_a_fork(what: str, act: Callable[[], None]) -> None:
    """Do it in a process of its own, and wait; ends this one, naming `what`, if it fails."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"{what} cannot be compiled")
