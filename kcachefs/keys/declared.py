"""Dependencies that no key can see, declared: `env`, `file` and `version`.

A function may read the environment, files, or programs that are installed. Nothing in the function shows what it reads
there, so its author declares it:

    @cached(depends=[env("CUDA_ARCH_LIST"), file("kernels/table.csv"), version("triton")])
    def build(source): ...

Code that makes keys of calls adds `hash_depends(depends)` to each, recomputed for every call. A declared dependency is
also a value like any other: `hash_value(env("X"))` is a key of what the variable holds now.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kcachefs.errors import UsageError
from kcachefs.keys.asking import is_a
from kcachefs.keys.files import remembered_digest
from kcachefs.keys.functions import hash_value
from kcachefs.keys.projects import project_fingerprint


@dataclass(frozen=True, slots=True)
class Env:
    """An environment variable: its value, or the fact that it is not set."""

    name: str

    def __kcachefs_key__(self) -> Any:
        return ("env", self.name, os.environ.get(self.name))


@dataclass(frozen=True, slots=True)
class File:
    """A file by its content, or a folder by everything in it; the path counts by its last part only."""

    path: str

    def __kcachefs_key__(self) -> Any:
        return ("file", os.path.basename(self.path.rstrip("/")), _content(self.path))


@dataclass(frozen=True, slots=True)
class Version:
    """The version of an installed distribution, or the fact that it is not installed."""

    distribution: str

    def __kcachefs_key__(self) -> Any:
        return ("version", self.distribution, _version(self.distribution))


def env(name: str) -> Env:
    """Declares that a result depends on an environment variable.

    >>> import os
    >>> os.environ["KCACHEFS_EXAMPLE"] = "1"
    >>> one = hash_value(env("KCACHEFS_EXAMPLE"))
    >>> os.environ["KCACHEFS_EXAMPLE"] = "2"
    >>> one == hash_value(env("KCACHEFS_EXAMPLE"))
    False
    """
    if not isinstance(name, str) or not name or "=" in name:
        raise UsageError(f"{name!r} cannot be the name of an environment variable")
    return Env(name)


def file(path: str | os.PathLike[str]) -> File:
    """Declares that a result depends on the content of a file or a folder.

    A relative path is relative to the current directory when the key is made. The file's location does not count, so
    `file(Path(__file__).with_name("table.csv"))` is the same in every checkout; a missing file counts as missing.
    """
    return File(os.fspath(path))


def version(distribution: str) -> Version:
    """Declares that a result depends on the version of an installed distribution, as `pip` names it."""
    if not isinstance(distribution, str) or not distribution:
        raise UsageError(f"{distribution!r} cannot be the name of a distribution")
    return Version(distribution)


def hash_depends(depends: Iterable[Any]) -> str:
    """The key of declared dependencies as they are now; any other value among them counts by its `hash_value`.

    >>> hash_depends([]) == hash_depends([]), hash_depends([]) == hash_depends([env("PATH")])
    (True, False)
    """
    if isinstance(depends, str | bytes):
        raise UsageError(f"depends is {depends!r}; pass a list, such as [env('X'), file('y'), version('z')]")
    return hash_value([_declared(item) for item in depends])


def _declared(item: Any) -> Any:
    return item.__kcachefs_key__() if is_a(item, Env | File | Version) else item


def _content(path: str) -> Any:
    return project_fingerprint(path) if os.path.isdir(path) else remembered_digest(path)


@functools.cache
def _version(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed(distribution)
    except PackageNotFoundError:
        return None
