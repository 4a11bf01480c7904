"""Which Python a command runs, and what is installed for it: found in milliseconds, without importing any of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kcachefs.errors import UsageError

# Patterns are compiled when they are needed: every `kcachefs run` loads this file, and few need them all.
_PYTHON = r"(?:python|pypy)[0-9.]*t?"
_PLAIN_NAME = r"python(3)\.(\d+)"
_SHEBANG = rb"#!\s*(\S+)(?:[ \t]+(\S+))?"
_LONG_SHEBANG = rb"""#!/bin/sh\s*\n'''exec' "?([^"\n]+?)"? "\$0\""""
"""What installers write where the interpreter's path is too long, or has a space in it."""
_OPTION = r"(?s)-(?!-)([^XWcm]*)([XWcm]?)(.*)"
"""Letters without an argument, then perhaps one that takes the rest, or else the next word."""
_PATIENCE_SECONDS = 5.0
_VERSION = r"(\d+)\.(\d+)"
_LIBRARIES = ("lib", "lib64")
_METADATA = (".dist-info", ".egg-info")

_ASK = """
import json, os, site, sys
prefix, bases = sys.prefix, []
folders = [os.path.dirname(os.path.abspath(one)) for one in (sys.argv[1], sys.executable)]
for here, folder in [(here, one) for here in folders for one in (here, os.path.dirname(here))]:
    try:
        with open(os.path.join(folder, "pyvenv.cfg"), encoding="utf-8") as file:
            told = dict(map(str.strip, line.lower().split("=", 1)) for line in file if "=" in line)
    except OSError:
        continue
    prefix = os.path.dirname(here)
    if told.get("include-system-site-packages") == "true":
        bases = [sys.base_prefix]
    break
sites = [os.path.join(prefix, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")]
sites += site.getsitepackages([prefix, *bases])
if prefix == sys.base_prefix or bases:
    sites.append(site.getusersitepackages())
print(json.dumps([sys.implementation.cache_tag, "%d.%d" % sys.version_info[:2], prefix, list(dict.fromkeys(sites))]))
"""
"""Runs without `site`, which would execute the code of every installed .pth file. Without `site`, Debian's Pythons do
not notice that they are in a virtual environment, and leave out its folder. So this looks for the environment itself:
first at the path that was asked, then at that of the Python that answers, because a version manager's script starts a
Python that lies elsewhere."""


_Told = tuple[str, str, str, list[str]]
"""Cache tag, version, prefix, and folders of distributions."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A distribution that is installed, by its metadata folder."""

    name: str
    version: str
    site: str
    metadata: str
    installed_at: int
    """When it was installed, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, and the folders in which distributions are installed for it."""

    cache_tag: str
    """The tag that it puts into the names of bytecode files, like cpython-311."""
    version: str
    prefix: str
    sites: tuple[str, ...]
    ignores_variables: bool = False
    """Whether the command runs it with -I or -E."""
    writes_nothing: bool = False
    """Whether the command runs it with -B."""


def of_this_process() -> Interpreter | None:
    """The Python that runs this code; None for one that keeps no bytecode."""
    tag = sys.implementation.cache_tag
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    sites = _existing([*folders, *python_path(os.environ)])
    return Interpreter(tag, version, sys.prefix, sites, writes_nothing=sys.dont_write_bytecode) if tag else None


def of_command(command: Sequence[str], environ: Mapping[str, str]) -> Interpreter | None:
    """The Python that a command runs: the command itself, the one that its first line names, or else the first one on
    PATH; None if there is none."""
    executable = executable_of(command, environ)
    if executable is None:
        return None
    return ask(executable, environ, _flags(command[1:]) if command and _is_python(command[0]) else "")


def executable_of(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """The file of the Python that a command runs."""
    path = environ.get("PATH")
    found = shutil.which(command[0], path=path) if command else None
    if found is not None and not _is_python(found):
        found = _of_script(found, path)
    return found or shutil.which("python", path=path) or shutil.which("python3", path=path)


def named(python: str, environ: Mapping[str, str]) -> list[str]:
    """A command that runs the Python of that name, if one is given; raises UsageError if that Python is not there."""
    if python and shutil.which(python, path=environ.get("PATH")) is None:
        raise UsageError(f"--python {python}: is not there, or cannot be executed; name another one")
    return [python] if python else []


def ask(executable: str, environ: Mapping[str, str], flags: str = "") -> Interpreter | None:
    """What that Python says of itself; None if it does not answer, or keeps no bytecode."""
    told = _of_virtual_environment(executable) or _of_plain_installation(executable, environ)
    told = told or _told_by(executable, environ)
    if told is None:
        return None
    tag, version, prefix, sites = told
    ignores = bool(set(flags) & set("IE"))
    folders = [*sites, *([] if ignores else python_path(environ))]
    return Interpreter(tag, version, prefix, _existing(folders), ignores, "B" in flags)


def _of_virtual_environment(executable: str) -> _Told | None:
    """What the pyvenv.cfg of a virtual environment says, if that is enough: reading it takes no process."""
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(executable)))
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            told = dict(_pair(line) for line in file if "=" in line)
    except (OSError, UnicodeDecodeError):
        return None
    found = re.match(_VERSION, told.get("version") or told.get("version_info") or "")
    is_plain = told.get("implementation", "cpython") == "cpython"
    if found is None or not is_plain or told.get("include-system-site-packages") == "true":
        return None
    version = f"{found[1]}.{found[2]}"
    folder = os.path.join(prefix, "lib", f"python{version}", "site-packages")
    return (f"cpython-{found[1]}{found[2]}", version, prefix, [folder]) if os.path.isdir(folder) else None


def _of_plain_installation(executable: str, environ: Mapping[str, str]) -> _Told | None:
    """What the paths of a CPython say if it is installed as usual: starting it would take longer than everything else.

    Its file has the version in its name, and the version says where its library lies. The folders are all that a
    CPython or Debian's Python could have; those that do not exist are left out later.
    """
    real = os.path.realpath(executable)
    found = re.fullmatch(_PLAIN_NAME, os.path.basename(real))
    if found is None or not _is_binary(real) or _is_in_virtual_environment(executable):
        return None
    version = f"{found[1]}.{found[2]}"
    prefix = os.path.dirname(os.path.dirname(real))
    library = os.path.join(prefix, "lib", f"python{version}")
    if not os.path.isfile(os.path.join(library, "os.py")):
        return None
    sites = [
        os.path.join(library, "site-packages"),
        os.path.join(library, "dist-packages"),
        os.path.join(prefix, "local", "lib", f"python{version}", "dist-packages"),
        os.path.join(prefix, "lib", "python3", "dist-packages"),
    ]
    users = environ.get("PYTHONUSERBASE") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local")
    sites.append(os.path.join(users, "lib", f"python{version}", "site-packages"))
    return f"cpython-{found[1]}{found[2]}", version, prefix, sites


def _is_binary(path: str) -> bool:
    """Whether a file is a binary: a script might start any Python."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _is_in_virtual_environment(executable: str) -> bool:
    here = os.path.dirname(os.path.abspath(executable))
    return any(os.path.exists(os.path.join(one, "pyvenv.cfg")) for one in (here, os.path.dirname(here)))


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.lower().partition("=")
    return name.strip(), value.strip()


def _told_by(executable: str, environ: Mapping[str, str]) -> _Told | None:
    try:
        done = subprocess.run(
            [executable, "-I", "-S", "-c", _ASK, executable],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_SECONDS,
            check=True,
            env=dict(environ),
        )
        tag, version, prefix, sites = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None
    return (tag, version, prefix, sites) if tag else None


def installed(interpreter: Interpreter) -> list[Installed]:
    """Every distribution, by the names in the interpreter's folders: no installed file is opened.

    Distributions that cannot be examined are left out: folders closed to us, links to nowhere, and those that are
    being uninstalled.
    """
    found = []
    for folder in interpreter.sites:
        with contextlib.suppress(OSError), os.scandir(folder) as children:
            for child in children:
                stem, suffix = os.path.splitext(child.name)
                if suffix in _METADATA:
                    name, _, version = stem.partition("-")
                    version = re.sub(r"-py[0-9.]+$", "", version)
                    with contextlib.suppress(OSError):
                        found.append(Installed(name, version, folder, child.path, int(child.stat().st_mtime)))
    return sorted(found, key=lambda one: one.metadata)


def module_of_library(interpreter: Interpreter) -> str | None:
    """The file of a module that came with that Python; None if its library is at no usual place."""
    prefixes = [interpreter.prefix]
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open(os.path.join(interpreter.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            prefixes += [os.path.dirname(home) for home in re.findall(r"(?m)^home *= *(.*\S)", file.read())]
    places = [os.path.join(one, lib, f"python{interpreter.version}", "os.py") for one in prefixes for lib in _LIBRARIES]
    return next(filter(os.path.isfile, places), None)


def environment_name(interpreter: Interpreter, distributions: Sequence[Installed]) -> str:
    """A name for what Python finds at its paths. Two images have the same name only if they were installed together.

    The times are those of the folders of metadata, which change when a distribution is installed and at no other time.
    """
    facts = [interpreter.cache_tag, interpreter.prefix]
    facts += [f"{one.metadata} {one.installed_at}" for one in distributions]
    digest = hashlib.blake2b("\0".join(facts).encode("utf-8", "surrogateescape"), digest_size=8)
    return f"{interpreter.cache_tag}-{digest.hexdigest()}"


def normalized(name: str) -> str:
    """The one name for all spellings of a distribution's name.

    >>> normalized("Markdown_It.py"), normalized("markdown-it-py")
    ('markdown-it-py', 'markdown-it-py')
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def python_path(environ: Mapping[str, str]) -> list[str]:
    """The folders that PYTHONPATH names; an empty one is the current folder."""
    return environ.get("PYTHONPATH", "").split(os.pathsep)


def _existing(folders: Sequence[str]) -> tuple[str, ...]:
    """The folders that exist, in their order, each once."""
    return tuple(dict.fromkeys(os.path.abspath(one) for one in folders if one and os.path.isdir(one)))


def _is_python(path: str) -> bool:
    return re.fullmatch(_PYTHON, os.path.basename(path)) is not None


def _of_script(path: str, search: str | None) -> str | None:
    """The Python that the first line of a script names."""
    try:
        with open(path, "rb") as file:
            begin = file.read(512)
    except OSError:
        return None
    if found := re.match(_LONG_SHEBANG, begin):
        return os.fsdecode(found[1])
    if (found := re.match(_SHEBANG, begin)) is None:
        return None
    named, argument = os.fsdecode(found[1]), os.fsdecode(found[2] or b"")
    if os.path.basename(named) == "env":
        return shutil.which(argument, path=search) if _is_python(argument) else None
    return named if _is_python(named) else None


def _flags(arguments: Sequence[str]) -> str:
    """The letters of Python's own options, up to what it runs."""
    letters, rest = "", iter(arguments)
    for one in rest:
        found = re.fullmatch(_OPTION, one)
        if found is None:
            break
        letters += found[1]
        if found[2] in ("c", "m"):
            break
        if found[2] and not found[3]:
            next(rest, None)
    return letters
