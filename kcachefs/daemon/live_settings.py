"""Settings that `kcachefs set` changes: applied at once, passed to the next worker, kept for the next mount.

A worker that takes over was started with the options that the mount began with. So later changes are kept in a file of
the store, which is deleted when a new mount begins. A second file holds the settings for the next mount of the store.
Both are in the store because a worker can write nowhere else.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kcachefs.core import Filesystem
from kcachefs.daemon import logs
from kcachefs.daemon.options import LIVE, limits_of, option_named
from kcachefs.daemon.registry import MountConfig
from kcachefs.errors import StoreError, UsageError
from kcachefs.store import kept_settings
from kcachefs.store.header import clear_errors

log = logging.getLogger(__name__)

SET = "kcachefs set"
"""The origin of a value that was changed while the mount was in use."""


class LiveSettings:
    """The configuration of one mount as it is now."""

    def __init__(self, config: MountConfig) -> None:
        self.config = config
        self._lock = threading.Lock()

    def change(self, fs: Filesystem, changes: Mapping[str, Any]) -> MountConfig:
        """Change options by name. All of them or, after an error, none.

        A quota for each user begins or ends only with the next worker, which the caller then has to ask for.
        """
        with self._lock:
            return self._change(fs, changes)

    def _change(self, fs: Filesystem, changes: Mapping[str, Any]) -> MountConfig:
        values = {}
        for name, given in changes.items():
            option = option_named(name)
            if not option.is_live:
                raise UsageError(f"{option.flag}: cannot be changed while mounted; unmount and mount again")
            values[option.name] = option.value(given)
        counted = self.config.limits.max_size_per_uid
        begins_or_ends = bool(values.get("max_size_per_uid", counted)) != bool(counted)
        if begins_or_ends and self.config.engine != "direct":
            raise UsageError(
                f"--max-size-per-uid: turning it on or off needs a new worker, which the {self.config.engine} engine "
                "cannot hand over to; unmount and mount again"
            )
        new = msgspec.structs.replace(
            self.config,
            limits=limits_of(values, self.config.limits),
            log_level=values.get("log_level", self.config.log_level),
            origins={**self.config.origins, **dict.fromkeys(values, SET)},
        )
        self._keep(new, bool(values))
        self.config = new
        fs.set_limits(msgspec.structs.replace(new.limits, max_size_per_uid=counted) if begins_or_ends else new.limits)
        logs.set_level(new.log_level)
        if values:
            log.info("changed while mounted: %s", ", ".join(f"{one.name} {one.value_in(new)}" for one in _set(new)))
        return new

    def _keep(self, new: MountConfig, is_changed: bool) -> None:
        """Write down the new settings. If that fails, as on a full disk, the present ones stay in force."""
        store = Path(new.store)
        kept_settings.write(store, msgspec.to_builtins(new), kept_settings.LIVE)
        if is_changed:
            kept = {one.name: one.value_in(new) for one in _set(new)}
            try:
                kept_settings.write(store, {**kept_settings.read(store), **kept})
            except (StoreError, OSError):
                with contextlib.suppress(StoreError, OSError):
                    kept_settings.write(store, msgspec.to_builtins(self.config), kept_settings.LIVE)
                raise

    def forget(self) -> None:
        """Discard the settings kept for the next mount; the current ones stay in force until the unmount."""
        kept_settings.write(Path(self.config.store), {})


def _set(config: MountConfig) -> list[Any]:
    return [one for one in LIVE if config.origins.get(one.name) == SET]


def as_changed(config: MountConfig, *, resumed: bool) -> MountConfig:
    """The configuration that a worker begins with, including changes made while an earlier worker served the mount."""
    store = Path(config.store)
    if not resumed:
        with clear_errors(store):
            (store / kept_settings.LIVE).unlink(missing_ok=True)
        return config
    with contextlib.suppress(StoreError, msgspec.ValidationError):
        if found := kept_settings.read(store, kept_settings.LIVE):
            changed = msgspec.convert(found, MountConfig)
            return msgspec.structs.replace(
                config, limits=changed.limits, log_level=changed.log_level, origins=changed.origins
            )
    return config
