"""Whether Python's bytecode goes to the mount during a session, as its user, its mount or its configuration says."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from kcachefs.daemon import control, registry
from kcachefs.daemon.options import option_named
from kcachefs.daemon.registry import MountConfig
from kcachefs.errors import KcachefsError
from kcachefs.frameworks.bytecode import NAMESPACE
from kcachefs.frameworks.environment import select
from kcachefs.mounts import config_files

_PATIENCE_SECONDS = 2.0


def wish(mount: Path, given: str | None, only: Iterable[str] = ()) -> str:
    """auto, on or off: as `given`, else as the mount was made, else as the configuration files say.

    If nothing is given, and `only` names frameworks but not Python's bytecode, the answer is off.
    """
    option = option_named("bytecode")
    if given is not None:
        return str(option.value(given))
    chosen = tuple(only)
    if chosen and all(one.namespace != NAMESPACE for one in select(chosen)):
        return "off"
    with contextlib.suppress(KcachefsError, OSError):
        if registry.read(str(mount)) is not None:
            return control.ask_mount(mount, "settings", MountConfig, seconds=_PATIENCE_SECONDS).bytecode
    for _, values in config_files.read_all():
        if "bytecode" in values:
            return str(values["bytecode"])
    return str(option.default)
