"""How the project starts another Python of its own. Only this module does so, because doing it wrong is dangerous.

`python -m` puts the current directory in front of the import path, and so does an empty part of PYTHONPATH. A file
`lmdb.py` that somebody left there would run with the rights of the user who calls kcachefs, often root. But the other
Python must find the very kcachefs that starts it, even if this one was itself found in the current directory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import site
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

DIRECTORY = "/"
"""The working directory of such a process: only root can put a module there. Pass absolute paths."""

_PACKAGE = Path(__file__).parent
try:
    _STARTED_IN = os.getcwd()  # read now, because a daemon in the foreground changes directory
except OSError:  # the directory was removed
    _STARTED_IN = DIRECTORY


_UTF8 = ("-X", "utf8=1")
"""Names are UTF-8 in records, stores and buckets, whatever the locale says. With the encoding of another locale, Python
would decode a name to a different one, or fail."""


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs `module`. Start it in DIRECTORY, with `environment`."""
    return [sys.executable, *_flags(), *_UTF8, "-m", module, *arguments]


def notice_children() -> None:
    """Have the kernel report how our children end, even if our parent ignores SIGCHLD (`trap '' CHLD`).

    We would inherit that setting. Then a child leaves nothing to wait for, and Python takes every exit code for 0.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def restart_in_utf8() -> None:
    """Restart the program if this Python's filesystem encoding is not UTF-8; the environment stays as it is."""
    is_other = sys.getfilesystemencoding() != "utf-8" and "utf8" not in sys._xoptions
    if is_other and sys.executable and not _is_read_from_input():
        with contextlib.suppress(OSError):
            os.execv(sys.executable, [sys.executable, *_UTF8, *sys.orig_argv[1:]])


def _is_read_from_input() -> bool:
    """Whether the program is read from standard input, where a second Python would find nothing left of it."""
    return getattr(sys.modules["__main__"], "__file__", "") == "<stdin>" or hasattr(sys, "ps1")


def _flags() -> Iterator[str]:
    """The flags that make a daemon as isolated as the command that starts it."""
    if sys.flags.isolated:
        yield "-I"
        return
    yield "-P"
    if sys.flags.ignore_environment:
        yield "-E"
    if sys.flags.no_user_site:
        yield "-s"


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base`, by default our own environment, with a PYTHONPATH that leads the other Python to this kcachefs."""
    found = dict(os.environ if base is None else base)
    given = found.pop("PYTHONPATH", "")
    parts = [part for part in map(_absolute, filter(None, given.split(os.pathsep))) if part]
    first = PathFinder.find_spec(_PACKAGE.name, parts)
    is_ours = first is not None and first.origin == str(_PACKAGE / "__init__.py")
    # Where packages are installed must not come first: they could hide modules of Python itself.
    if not is_ours and not _is_installed():
        parts.insert(0, str(_PACKAGE.parent))
    if parts:
        found["PYTHONPATH"] = os.pathsep.join(parts)
    return found


def _absolute(part: str) -> str:
    """The folder that this Python searches for a part of PYTHONPATH; empty if it searches none."""
    path = os.path.normpath(os.path.join(_STARTED_IN, part))
    return path if os.path.isabs(part) or path in sys.path else ""


@cache
def _is_installed() -> bool:
    """Whether this Python finds this kcachefs by itself: among its packages, or through a .pth file there.

    The first answer is kept: if kcachefs has been installed elsewhere since then, a new worker should run that one.
    """
    home = str(_PACKAGE.parent)
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return home in folders or any(home in _led_to(Path(folder)) for folder in folders)


def _led_to(folder: Path) -> Iterator[str]:
    for file in folder.glob("*.pth"):
        try:
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        yield from (os.path.normpath(folder / line.strip()) for line in lines if line.strip())
