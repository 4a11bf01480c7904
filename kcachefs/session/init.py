"""`kcachefs.init()`: sets the variables in this process, for code whose launch command cannot be changed."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from kcachefs import config
from kcachefs.frameworks import headers
from kcachefs.frameworks.environment import environment, make_folders, select
from kcachefs.mounts.finding import find


class TooLate(UserWarning):
    """A framework was imported before `init()` and has read its variable already."""


def init(
    directory: str | os.PathLike[str] | None = None,
    *,
    only: Iterable[str] = (),
    mount: bool = False,
    store: str | os.PathLike[str] | None = None,
    max_size: str = config.DEFAULT_MAX_SIZE,
) -> Path:
    """Point every framework in this process and its children at a mount, and return the mount's path.

    `directory` is the mount; by default $KCACHEFS_MOUNT, else the only mount there is. With `mount=True` a mount is
    made if none is running, and unmounted when the last process that uses it ends. Call this before importing any
    framework: one that was imported earlier may have read its variable already, and a warning names it.
    """
    chosen = tuple(only)
    wanted = Path(directory) if directory is not None else None
    if mount:
        from kcachefs.session.temporary_mount import session_mount

        scope = contextlib.ExitStack()
        store_path = Path(store) if store is not None else None
        path = scope.enter_context(session_mount(wanted, store_path, max_size))
        atexit.register(scope.close)
    else:
        path = find(wanted)
    make_folders(path, chosen)
    values = environment(path, chosen)
    late = list(_imported_too_early(values, chosen))
    os.environ.update(values)
    if not chosen:
        headers.link(path)
    for name in late:
        warnings.warn(
            f"{name} was imported before kcachefs.init() and has read where its cache is; call init() first",
            TooLate,
            stacklevel=2,
        )
    return path


def _imported_too_early(values: Mapping[str, str], only: tuple[str, ...]) -> Iterable[str]:
    """Frameworks that read their variable when they were imported, and found another value there."""
    for framework in select(only):
        imported = any(module in sys.modules for module in framework.modules)
        changed = any(os.environ.get(name) != values[name] for name in framework.variables)
        if imported and changed:
            yield framework.name
    if "CUDA_CACHE_PATH" in values and os.environ.get("CUDA_CACHE_PATH") != values["CUDA_CACHE_PATH"]:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            yield "CUDA driver"
