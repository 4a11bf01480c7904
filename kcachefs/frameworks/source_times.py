"""Whether the times of sources tell their versions apart.

Python uses bytecode if it has the source's time and size, and looks at nothing else. An image can be built so that all
its files have one time (kaniko --reproducible, BuildKit's rewrite-timestamp, Bazel). Two such images with edits of the
same size at one path would run each other's bytecode, if they kept it in one place.

Times such as 1970 are never real. Any other time proves nothing merely because many packages share it: layers of images
keep whole seconds, and an installer may need no more than one. A source that no installer wrote, of Python's own
library or of a project, must have that time as well.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from kcachefs.frameworks.interpreters import Installed

_YEAR_1980 = 315532800
"""The first time that a zip file can hold; up to a day later in time zones west of Greenwich."""
_YEAR_2000 = 946684800
"""Bazel's portable time."""
_DAY = 86400
_SECOND = 10**9
_SAME_SHARE = 0.5
"""If at least this share of the packages (by weight) has one time, the image may have been stamped with it."""
_INSTALLERS = ("pip", "setuptools", "wheel", "uv")
"""Distributions that come with Python, in a layer that may have kept its times."""
_LOOKED_AT = 200
"""How many names in a project's folder are looked at."""


def sameness(
    distributions: Sequence[Installed],
    sample: Sequence[tuple[Installed, str, int]],
    projects: Iterable[str],
    library: str | None,
) -> str:
    """Why the times here cannot tell versions apart; empty if they can.

    `sample`: distributions with a source of each and its weight; `projects`: folders with code that is not installed;
    `library`: a source that came with Python.
    """
    for one in distributions:
        if _is_made_up(one.installed_at):
            return _made_up(one.metadata, one.installed_at)
    sites = {os.path.realpath(one.site) for one in distributions}
    not_installed = [library] if library is not None else []
    for folder in dict.fromkeys(map(os.path.realpath, projects)):
        for source in _sources_in(folder):
            moment = _time_of(source)
            if moment is not None and _is_made_up(moment // _SECOND):
                return _made_up(source, moment // _SECOND)
            if folder not in sites:
                not_installed.append(source)
    names, common = _most_common(sample)
    if file := next((one for one in not_installed if names and _time_of(one) == common), None):
        seen = f"{', '.join(names[:3])} and {file} all have the time {_date(common // _SECOND)}"
        return f"all files of an image seem to have one time, by which Python cannot tell versions apart: {seen}"
    return ""


def _most_common(sample: Sequence[tuple[Installed, str, int]]) -> tuple[list[str], int]:
    """The packages that share the most common time, and that time; none if they are too small a share."""
    chosen = [one for one in sample if one[0].name.lower() not in _INSTALLERS] or sample
    weights: Counter[int] = Counter()
    names: dict[int, list[str]] = {}
    for one, source, weight in chosen:
        moment = _time_of(source)
        if moment is not None and moment == _time_of(one.metadata):
            weights[moment] += weight
            names.setdefault(moment, []).append(one.name)
    moment, weight = next(iter(weights.most_common(1)), (0, 0))
    is_common = weight and weight >= _SAME_SHARE * sum(weight for _, _, weight in chosen)
    return (names[moment], moment) if is_common else ([], 0)


def _sources_in(folder: str) -> Iterator[str]:
    """The modules and packages of a folder.

    What is mounted in it, and what a link leads to, is not looked at: a dead mount would never answer.
    """
    from kcachefs.engines.mounting import mounts

    with contextlib.suppress(OSError), os.scandir(folder) as children:
        mounted = {one.mountpoint for one in mounts()}
        for child in islice(children, _LOOKED_AT):
            if child.path in mounted:
                continue
            if child.name.endswith(".py") and child.is_file(follow_symlinks=False):
                yield child.path
            elif child.is_dir(follow_symlinks=False):
                package = os.path.join(child.path, "__init__.py")
                with contextlib.suppress(OSError):
                    if stat.S_ISREG(os.lstat(package).st_mode):
                        yield package


def _time_of(path: str) -> int | None:
    """In nanoseconds since 1970; None where there is nothing."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def _is_made_up(seconds: int) -> bool:
    return seconds < _YEAR_1980 + _DAY or seconds == _YEAR_2000


def _made_up(what: str, seconds: int) -> str:
    return (
        f"{what} has the time {_date(seconds)}, which builders of images give to all files, and by which Python cannot "
        "tell versions apart"
    )


def _date(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
