"""Whether the times of sources tell their versions apart.

Python uses bytecode if it has the source's time and size, and looks at nothing else. An image can be built so that all
its files have one time (kaniko --reproducible, BuildKit's rewrite-timestamp, Bazel). Two such images with edits of the
same size at one path would run each other's bytecode, if they kept it in one place.

Times like 1970 are nobody's true ones, wherever they are. Any other time is told by its being everywhere: an installer
takes its time, and where one package took less than the seconds that an image's layers keep, others are looked at too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from kcachefs.frameworks.interpreters import Installed

_YEAR_1980 = 315532800
"""The first time that a zip file can hold; on the clock of a place west of Greenwich some hours later."""
_YEAR_2000 = 946684800
"""Bazel's portable time."""
_DAY = 86400
_SAME_SHARE = 0.5
"""How much of the packages, by weight, has one time when an image was given one."""
_INSTALLERS = ("pip", "setuptools", "wheel", "uv")
"""Come with Python, in a layer that may have kept its times."""
_LOOKED_AT = 200
"""Names of a folder of a project that are looked at."""


def sameness(
    distributions: Iterable[Installed], sample: Sequence[tuple[Installed, str, int]], projects: Iterable[str]
) -> str:
    """Why the times here tell nothing; empty if they do.

    `sample`: distributions with a source of each and what it counts; `projects`: folders with code that is not
    installed.
    """
    for one in distributions:
        if _is_made_up(one.installed_at):
            return _reason(one.name, one.installed_at)
    for folder in dict.fromkeys(projects):
        if (found := _made_up_in(folder)) is not None:
            return _reason(*found)
    times: Counter[int] = Counter()
    chosen = [one for one in sample if one[0].name.lower() not in _INSTALLERS] or sample
    for one, source, weight in chosen:
        with contextlib.suppress(OSError):
            moment = os.stat(source).st_mtime_ns
            if moment == os.stat(one.metadata).st_mtime_ns:
                times[moment] += weight
    moment, weight = next(iter(times.most_common(1)), (0, 0))
    if weight and weight >= _SAME_SHARE * sum(weight for _, _, weight in chosen):
        return _reason(", ".join(one.name for one, _, _ in chosen[:3]), moment // 10**9)
    return ""


def _reason(what: str, seconds: int) -> str:
    date = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    return f"all files of an image seem to have one time ({what}: {date}), by which Python cannot tell versions apart"


def _is_made_up(seconds: int) -> bool:
    return seconds < _YEAR_1980 + _DAY or seconds == _YEAR_2000


def _made_up_in(folder: str) -> tuple[str, int] | None:
    """A source or folder in a folder whose time is nobody's true one, and that time."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in itertools.islice(entries, _LOOKED_AT):
            with contextlib.suppress(OSError):
                if entry.name.endswith(".py") or entry.is_dir(follow_symlinks=False):
                    seconds = int(entry.stat().st_mtime)
                    if _is_made_up(seconds):
                        return entry.path, seconds
    return None
