"""What the control socket offers: the administrator's commands, and the settings of the live mount."""

from __future__ import annotations

from typing import Any

from kcachefs.core import Filesystem
from kcachefs.core.administration import Administration
from kcachefs.daemon.live_settings import LiveSettings
from kcachefs.daemon.registry import MountConfig


class Commands(Administration):
    """Commands on a running mount."""

    def __init__(self, fs: Filesystem, config: MountConfig) -> None:
        super().__init__(fs)
        self._settings = LiveSettings(config)

    def settings(self) -> MountConfig:
        """What holds now, and where each value comes from."""
        return self._settings.config

    def set(self, options: dict[str, Any], forget: bool = False) -> MountConfig:
        """Change options while the mount is in use, and keep them for the next mount; with `forget` keep nothing."""
        changed = self._settings.change(self._fs, options)
        if forget:
            self._settings.forget()
        return changed
