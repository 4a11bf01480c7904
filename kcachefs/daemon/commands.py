"""What the control socket offers: the administrator's commands, and the settings of the live mount."""

from __future__ import annotations

from typing import Any

import msgspec

from kcachefs import __version__
from kcachefs.core import Filesystem
from kcachefs.core.administration import Administration
from kcachefs.core.caller import Caller
from kcachefs.core.metrics import About
from kcachefs.daemon.live_settings import LiveSettings
from kcachefs.daemon.registry import MountConfig
from kcachefs.daemon.worker_protocol import Beginning


class Commands(Administration):
    """Commands on a running mount."""

    def __init__(self, fs: Filesystem, config: MountConfig, began: Beginning) -> None:
        super().__init__(fs)
        self._settings = LiveSettings(config)
        about = About(
            version=__version__,
            engine=config.engine,
            policy=config.sharing.policy,
            started=began.started,
            restarts=began.restarts,
            reloads=began.reloads,
        )
        fs.about = lambda: about
        fs.report.slow_files[b"entries.json"] = self._entries_for

    def _entries_for(self, caller: Caller) -> bytes:
        """The entries that a caller may list by reading a file: their own, or all for the owner and root."""
        self._fs.settle_for(caller)
        found = self.ls(uid=None if self._fs.sees_all(caller) else caller.uid)
        return msgspec.json.encode(found) + b"\n"

    def settings(self) -> MountConfig:
        """What holds now, and where each value comes from."""
        return self._settings.config

    def set(self, options: dict[str, Any], forget: bool = False) -> MountConfig:
        """Change options while the mount is in use, and keep them for the next mount; with `forget` keep nothing."""
        changed = self._settings.change(self._fs, options)
        if forget:
            self._settings.forget()
        return changed
