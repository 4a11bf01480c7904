"""Python's bytecode in the mount: whether that helps a command, where the bytecode goes, and the variables to set.

Python keeps the bytecode of a module in `__pycache__` beside its source, unless it is given a prefix. With a prefix it
ignores bytecode beside the sources, so a prefix only helps where none of that is usable: in images whose packages were
installed without bytecode, and where bytecode cannot be written or writing it is switched off.

Looking at every module would take too long. We look at the distributions with the longest lists of files, and in each
at the one module that every import of the distribution runs. A distribution is weighted by the length of its list.
Bytecode is usable if Python itself would use it: it has the source's time and size, or is based on a hash.

Images can share one folder for bytecode only if the times of sources tell versions apart: see `source_times.py`.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import re
import stat
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kcachefs.frameworks import interpreters, source_times
from kcachefs.frameworks.interpreters import Installed, Interpreter

NAMESPACE = "python"
PREFIX, DONT_WRITE = "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"
DESCRIPTION = "environment.json"

_SAMPLED = 8
"""How many distributions are looked at."""
_USABLE_SHARE = 0.5
"""How much of the sample has to be usable, by weight, for Python to be left alone."""
_GROWING_SHARE = 0.1
"""The same where Python itself writes missing bytecode, and so has written that of everything imported before."""
_HEADER = struct.Struct("<4sIII")
"""The header of bytecode: magic, flags, then the source's time and size, or the hash of the source."""
_HASH_BASED = 1
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_TOP_PACKAGE = rb"(?m)^([A-Za-z0-9_]+)/__init__\.py,"
_TOP_MODULE = rb"(?m)^([A-Za-z0-9_]+(?:/[A-Za-z0-9_]+)*\.py),"
_TOP_NAME = rb"(?m)^([A-Za-z0-9_]+)(?:/[^\n]*\.py|\.py),"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a command's bytecode goes into the mount, and why."""

    is_used: bool
    reason: str
    interpreter: Interpreter | None = None
    distributions: tuple[Installed, ...] = ()

    @property
    def environment(self) -> str:
        """The folder of this environment in the namespace."""
        assert self.interpreter is not None
        return interpreters.environment_name(self.interpreter, self.distributions)


def judge_command(command: Sequence[str], environ: Mapping[str, str], wish: str = "auto") -> Judgement:
    """What to do about the bytecode of a command; without a command, of the Python that is first on PATH."""
    if wish == "off":
        return Judgement(False, "switched off")
    interpreter = interpreters.of_command(command, environ)
    if interpreter is None:
        return Judgement(False, "no Python was found that says where its packages are")
    return judge(interpreter, environ, wish, [one for one in command if one.endswith(".py")])


def judge_this_process(environ: Mapping[str, str], wish: str = "auto") -> Judgement:
    """What to do about the bytecode of what this process imports from now on."""
    interpreter = interpreters.of_this_process() if wish != "off" else None
    if interpreter is None:
        return Judgement(False, "switched off" if wish == "off" else "this Python keeps no bytecode")
    return judge(interpreter, {**environ, PREFIX: sys.pycache_prefix or ""}, wish, sys.argv[:1])


def judge(
    interpreter: Interpreter, environ: Mapping[str, str], wish: str = "auto", scripts: Sequence[str] = ()
) -> Judgement:
    """Whether the mount is the better place for the bytecode of this Python's packages, and of these scripts'."""
    if interpreter.ignores_variables:
        return Judgement(False, "the command runs Python with -I or -E, which ignores the variable for bytecode")
    distributions = tuple(interpreters.installed(interpreter))
    if wish == "off":
        return Judgement(False, "switched off", interpreter, distributions)
    if wish == "on":
        return Judgement(True, "switched on", interpreter, distributions)
    if environ.get(PREFIX) and not _is_ours(environ):
        return Judgement(False, f"{PREFIX} is set to {environ[PREFIX]} already", interpreter, distributions)
    looked_at = sample(distributions)
    if not looked_at:
        return Judgement(False, "there are no installed packages to look at", interpreter, distributions)
    total = sum(weight for _, _, weight in looked_at)
    lacking = [(one.name, source) for one, source, _ in looked_at if not is_usable(source, interpreter.cache_tag)]
    share = 1 - sum(weight for one, _, weight in looked_at if one.name in dict(lacking)) / total
    names = ", ".join(name for name, _ in lacking[:3])
    hindrance = _hindrance(interpreter, environ, [source for _, source in lacking])
    if share >= (_USABLE_SHARE if hindrance else _GROWING_SHARE):
        good = ", ".join(one.name for one, _, _ in looked_at if one.name not in dict(lacking))
        reason = f"usable bytecode lies beside the sources of {good}"
        return Judgement(False, reason, interpreter, distributions)
    projects = [os.curdir, *map(os.path.dirname, scripts), *interpreters.python_path(environ)]
    library = interpreters.module_of_library(interpreter)
    if reason := source_times.sameness(distributions, looked_at, filter(None, projects), library):
        return Judgement(False, reason, interpreter, distributions)
    reason = f"no usable bytecode beside the sources of {names}" + (f", and {hindrance}" if hindrance else "")
    return Judgement(True, reason, interpreter, distributions)


def variables(mount: Path, judged: Judgement) -> dict[str, str]:
    """What to set so that bytecode goes into a folder of the mount, which is made; nothing if that cannot be used.

    An empty value switches off the variable that forbids writing, in every shell and file format alike.
    """
    folder = environment_folder(mount, judged) if judged.is_used else None
    return {PREFIX: str(folder), DONT_WRITE: ""} if folder is not None else {}


def environment_folder(mount: Path, judged: Judgement) -> Path | None:
    """The folder of an environment, made if it is not there; None where there is none that this user can trust.

    Bytecode is code: a folder of another user, or one that others may write to, would let them run theirs here.
    Root's folder is as good as our own. Where the usual folder is not to be trusted, we use one beside it with our user
    number.
    """
    usual = mount / NAMESPACE / judged.environment
    for folder in (usual, usual.with_name(f"{usual.name}-{os.getuid()}")):
        with contextlib.suppress(OSError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=_mode_of_folder(), exist_ok=True)
        with contextlib.suppress(OSError):
            found = os.lstat(folder)
            is_closed = not found.st_mode & _WRITABLE_BY_OTHERS or _is_read_only(folder)
            if stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.getuid()) and is_closed:
                _describe(folder, judged)
                return folder
    return None


def _mode_of_folder() -> int:
    """Root's folder is for everybody; a user's own is used by nobody else. Python makes the folders inside as the umask
    says: where that leaves them open to others, the folder around them is closed."""
    umask = 0
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        umask = next((int(line.split()[1], 8) for line in file if line.startswith("Umask:")), 0)
    is_strict = umask & _WRITABLE_BY_OTHERS == _WRITABLE_BY_OTHERS
    return 0o755 if os.getuid() == 0 and is_strict else 0o700


def _is_read_only(folder: Path) -> bool:
    """Whether the mount lets nobody write; the modes of its folders do not show that."""
    probe = folder / f"tmp.{os.getpid()}"
    try:
        probe.mkdir()
    except OSError as error:
        return error.errno == errno.EROFS
    with contextlib.suppress(OSError):
        probe.rmdir()
    return False


# --- the sample -------------------------------------------------------------------------------------------------------


def is_usable(source: str, cache_tag: str) -> bool:
    """Whether the bytecode beside a source is one that Python would use."""
    folder, name = os.path.split(source)
    try:
        with open(os.path.join(folder, "__pycache__", f"{name.removesuffix('.py')}.{cache_tag}.pyc"), "rb") as file:
            _, flags, seconds, size = _HEADER.unpack(file.read(_HEADER.size))
        found = os.stat(source)
    except (OSError, struct.error):
        return False
    if flags & _HASH_BASED:
        return True
    return (seconds, size) == (int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)


def sample(distributions: Sequence[Installed]) -> list[tuple[Installed, str, int]]:
    """The largest distributions, each with a module that every import of it runs, and how much it counts."""
    sized = sorted(((_size_of_list(one), one) for one in distributions), key=lambda pair: -pair[0])
    found = []
    for size, one in sized[: 2 * _SAMPLED]:
        source = _first_module(one)
        if source is not None:
            found.append((one, source, max(1, size)))
    return found[:_SAMPLED]


def _size_of_list(distribution: Installed) -> int:
    try:
        return os.stat(os.path.join(distribution.metadata, "RECORD")).st_size
    except OSError:
        return 0


def _first_module(distribution: Installed) -> str | None:
    guess = os.path.join(distribution.site, distribution.name.lower(), "__init__.py")
    if os.path.exists(guess):
        return guess
    listed = _listed(distribution)
    if found := re.search(_TOP_PACKAGE, listed):
        return os.path.join(distribution.site, os.fsdecode(found[1]), "__init__.py")
    if found := re.search(_TOP_MODULE, listed):
        return os.path.join(distribution.site, os.fsdecode(found[1]))
    return None


def listed_files(distribution: Installed) -> list[str]:
    """The files of a distribution, relative to its site-packages."""
    rows = csv.reader(_listed(distribution).decode("utf-8", "surrogateescape").splitlines())
    return [row[0] for row in rows if row]


def _listed(distribution: Installed) -> bytes:
    try:
        with open(os.path.join(distribution.metadata, "RECORD"), "rb") as file:
            return file.read()
    except OSError:
        return b""


def _hindrance(interpreter: Interpreter, environ: Mapping[str, str], sources: Sequence[str]) -> str:
    """Why Python will not write the missing bytecode itself; empty if it will."""
    if environ.get(DONT_WRITE):
        return f"{DONT_WRITE} is set"
    if interpreter.writes_nothing:
        return "the command runs Python with -B"
    for source in sources:
        folder = os.path.dirname(source)
        beside = os.path.join(folder, "__pycache__")
        if not os.access(beside if os.path.isdir(beside) else folder, os.W_OK):
            return f"{folder} cannot be written"
    return ""


def _is_ours(environ: Mapping[str, str]) -> bool:
    """Whether the prefix was set by an earlier command of ours."""
    mount = environ.get("KCACHEFS_MOUNT")
    return bool(mount) and environ[PREFIX].startswith(f"{mount}/{NAMESPACE}/")


# --- the description of an environment --------------------------------------------------------------------------------


def _describe(folder: Path, judged: Judgement) -> None:
    """Write down once what is installed, by the names in site-packages, so that `ls` can say what an entry is."""
    place = folder / DESCRIPTION
    if place.exists() or not os.access(folder, os.W_OK):
        return
    assert judged.interpreter is not None
    packages: dict[str, list[str]] = {}
    for one in judged.distributions:
        for name in _top_level_names(one):
            packages.setdefault(name, []).append(f"{one.name} {one.version}".strip())
    facts = {
        "python": judged.interpreter.version,
        "prefix": judged.interpreter.prefix,
        "packages": {name: ", ".join(those) for name, those in packages.items()},
    }
    unfinished = folder / f"tmp.{os.getpid()}"
    with contextlib.suppress(OSError):  # a read-only mount, or a full disk: `ls` then shows the folders' own names
        unfinished.write_text(json.dumps(facts, indent=1), encoding="utf-8", errors="backslashreplace")
        unfinished.replace(place)


def _top_level_names(distribution: Installed) -> list[str]:
    names = {os.fsdecode(name) for name in re.findall(_TOP_NAME, _listed(distribution))}
    return sorted(names) or [distribution.name.lower()]
