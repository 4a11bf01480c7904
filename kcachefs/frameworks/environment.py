"""The variables that point every framework at a mount, and the folders that must exist before they are read."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from kcachefs.errors import UsageError
from kcachefs.frameworks import headers, interpreters
from kcachefs.frameworks.framework import Framework
from kcachefs.frameworks.records import FRAMEWORKS

MOUNT_VARIABLE = "KCACHEFS_MOUNT"
_HAS_LEVELS = "torch_extensions"
"""The namespace whose folder depends on the versions of Python and torch."""


def select(only: Iterable[str] = ()) -> tuple[Framework, ...]:
    """The frameworks that `only` names, by namespace or by name in any case; if empty, all but those on request."""
    wanted = [name.strip() for part in only for name in part.split(",") if name.strip()]
    if not wanted:
        return tuple(one for one in FRAMEWORKS if not one.on_request)
    chosen: list[Framework] = []
    for name in wanted:
        key = _key(name)
        found = [one for one in FRAMEWORKS if key in (_key(one.name), _key(one.namespace)) and key]
        if not found:
            raise UsageError(f"{name}: no such framework; {_hint(key)}")
        chosen += [one for one in found if one not in chosen]
    return tuple(chosen)


def environment(mount: Path, only: Iterable[str] = (), *, of_this_python: bool = True) -> dict[str, str]:
    """Every variable and its value for this mount, except those of Python's bytecode, which only helps some commands.

    `of_this_python`: whether the variables are for programs that use the packages installed here.
    """
    values = {MOUNT_VARIABLE: str(mount)}
    for framework in select(only):
        if framework.where_it_helps or (framework.namespace == _HAS_LEVELS and not of_this_python):
            continue
        for variable, folder in framework.variables.items():
            values[variable] = str(mount / folder_of(framework, folder))
        values.update(framework.settings)
    return values


def make_folders(mount: Path, only: Iterable[str] = ()) -> None:
    """Create the folders that the variables name: some frameworks stop caching for good if theirs is missing."""
    for framework in select(only):
        for folder in framework.variables.values():
            (mount / folder_of(framework, folder)).mkdir(parents=True, exist_ok=True)


def folder_of(framework: Framework, folder: str) -> str:
    """The folder relative to the mount; torch's extensions get one level per version of Python and torch.

    torch adds such a level to its default folder, but not to one that a variable names. Without it, two environments
    that share a mount would overwrite each other's builds.
    """
    if framework.namespace != _HAS_LEVELS:
        return folder
    torch = _version_of("torch")
    if torch is None:
        return folder
    abi = sys.abiflags and f"_{sys.abiflags}"
    return (
        f"{folder}/py{sys.version_info.major}{sys.version_info.minor}_torch{re.sub(r'[^0-9A-Za-z.]', '_', torch)}{abi}"
    )


def where_now(framework: Framework, environ: Mapping[str, str]) -> str:
    """Where a process with this environment keeps the framework's cache: its variable, else its default."""
    for variable in framework.variables:
        if environ.get(variable):
            return environ[variable]
    temporary = str(headers.temporary_folder())
    default = framework.default.replace("$TMPDIR", temporary).replace("<user>", headers.user_name())
    return os.path.expanduser(default) if default.startswith("~") else default


def installed_version(framework: Framework) -> str | None:
    """The version installed in the same environment as kcachefs, if any."""
    return next((found for package in framework.packages if (found := _version_of(package)) is not None), None)


def _version_of(package: str) -> str | None:
    """The version of a package in this environment, if it is installed."""
    python = interpreters.of_this_process()
    for one in interpreters.installed(python) if python is not None else ():
        if interpreters.normalized(one.name) == interpreters.normalized(package) and one.version:
            return one.version
    import importlib.metadata  # finds packages installed in other ways, but takes longer than the rest of this module

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _hint(key: str) -> str:
    known = {_key(one.namespace): one.namespace for one in FRAMEWORKS if one.namespace}
    near = difflib.get_close_matches(key, known, 1)
    return f"did you mean {known[near[0]]}?" if near else "see: kcachefs frameworks"


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
