"""`kcachefs.init()`: the variables set in this process, for code that cannot change how it is launched."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from kcachefs.frameworks import headers, mounts
from kcachefs.frameworks.environment import environment, make_folders, select


class TooLate(UserWarning):
    """A framework read its variable before it was set."""


def init(
    directory: str | os.PathLike[str] | None = None,
    *,
    only: Iterable[str] = (),
    mount: bool = False,
    store: str | os.PathLike[str] | None = None,
    max_size: str = "20GiB",
) -> Path:
    """Point every framework in this process, and in those it starts, at a mount. Returns the mount's path.

    `directory` is the mount; without it, $KCACHEFS_MOUNT or the only one there is. With `mount=True` one is made when
    there is none, and goes when the last process that uses it ends. Call it first: a framework that was imported before
    may have read its variable already, and each such one is named in a warning.
    """
    chosen = tuple(only)
    asked = Path(directory) if directory is not None else None
    if mount:
        scope = contextlib.ExitStack()
        where = Path(store) if store is not None else None
        path = scope.enter_context(mounts.lasting(asked, where, max_size))
        atexit.register(scope.close)
    else:
        path = mounts.find(asked)
    make_folders(path, chosen)
    values = environment(path, chosen)
    late = list(_late(values, chosen))
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


def _late(values: Mapping[str, str], only: tuple[str, ...]) -> Iterable[str]:
    """Frameworks that were imported, read their variable at import, and would have found another value."""
    for framework in select(only):
        imported = any(module in sys.modules for module in framework.modules)
        changed = any(os.environ.get(name) != values[name] for name in framework.variables)
        if imported and changed:
            yield framework.name
    if "CUDA_CACHE_PATH" in values and os.environ.get("CUDA_CACHE_PATH") != values["CUDA_CACHE_PATH"]:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            yield "CUDA driver"
