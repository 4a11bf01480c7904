"""`kcachefs.init()`: sets the environment variables in this process, for code whose launch command cannot change."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from kcachefs import config
from kcachefs.errors import MountError
from kcachefs.frameworks import bytecode as pycs
from kcachefs.frameworks import headers
from kcachefs.frameworks.environment import MOUNT_VARIABLE, environment, make_folders, select
from kcachefs.mounts.finding import find, mount_at, usable_here
from kcachefs.session.bytecode import wish


class TooLate(UserWarning):
    """A framework was imported before `init()` and has read its variable already."""


def init(
    directory: str | os.PathLike[str] | None = None,
    *,
    only: Iterable[str] = (),
    mount: bool = False,
    store: str | os.PathLike[str] | None = None,
    max_size: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    bytecode: str | None = None,
) -> Path:
    """Point every framework in this process and its children at a mount, and return the mount's path.

    `directory` is the mount; by default $KCACHEFS_MOUNT, else the only mount there is. With `mount=True` a mount is
    made if none is running, and unmounted when the last process that uses it exits. If there is no mount, or none can
    be made, `dir` is used instead: a plain directory with a folder for each framework, and for the library's own
    caches; then that path is returned. `bytecode` ("auto", "on" or "off") says whether modules that are imported from
    now on have their bytecode in the mount; by default where it helps. Call this before importing any framework: a
    framework that was imported earlier may have read its variable already, and a warning names it.
    """
    chosen = tuple(only)
    wanted = Path(directory) if directory is not None else None
    path = _mount(wanted, store, max_size, can_fail=dir is not None) if mount else None
    if path is None and (dir is None or (not mount and _is_mounted(wanted))):
        path = find(wanted)
    if path is not None:
        values = {**environment(path, chosen), **_bytecode(path, bytecode, chosen)}
    else:
        assert dir is not None
        path = Path(dir).absolute()
        values = {**environment(path, chosen), "KCACHEFS_CACHE_DIR": str(path / config.LIBRARY_NAMESPACE)}
        del values[MOUNT_VARIABLE]
    make_folders(path, chosen)
    late = list(_imported_too_early(values, chosen))
    os.environ.update(values)
    if pycs.PREFIX in values:
        sys.pycache_prefix, sys.dont_write_bytecode = values[pycs.PREFIX], False
    if not chosen and MOUNT_VARIABLE in values:
        headers.link(path)
    for name in late:
        warnings.warn(
            f"{name} was imported before kcachefs.init() and has read where its cache is; call init() first",
            TooLate,
            stacklevel=2,
        )
    return path


def _bytecode(path: Path, wanted: str | None, only: tuple[str, ...]) -> dict[str, str]:
    judged = pycs.judge_this_process(os.environ, wish(path, wanted, only))
    return pycs.variables(path, judged)


def _mount(
    wanted: Path | None, store: str | os.PathLike[str] | None, max_size: str | None, can_fail: bool
) -> Path | None:
    """A mount that lasts as long as this process; with `can_fail`, None if none can be made."""
    from kcachefs.session.temporary_mount import session_mount

    scope = contextlib.ExitStack()
    try:
        path = scope.enter_context(session_mount(wanted, None if store is None else Path(store), max_size))
    except MountError:
        if can_fail:
            return None
        raise
    atexit.register(scope.close)
    return path


def _is_mounted(wanted: Path | None) -> bool:
    """Whether there is a mount at the wanted place, or anywhere if no place is named."""
    wanted = wanted or config.configured_mount()
    return bool(usable_here()) if wanted is None else mount_at(wanted) is not None


def _imported_too_early(values: Mapping[str, str], only: tuple[str, ...]) -> Iterable[str]:
    """Frameworks that were imported, and so read their variable, while it had another value than we give it."""
    for framework in select(only):
        imported = any(module in sys.modules for module in framework.modules)
        changed = any(os.environ.get(name) != values[name] for name in framework.variables if name in values)
        if imported and changed:
            yield framework.name
    if "CUDA_CACHE_PATH" in values and os.environ.get("CUDA_CACHE_PATH") != values["CUDA_CACHE_PATH"]:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            yield "CUDA driver"
