"""The commands of the control socket: the administrator's commands, and the settings of the live mount."""

from __future__ import annotations

from typing import Any

import msgspec

from kcachefs.core import Filesystem
from kcachefs.core.caller import Caller
from kcachefs.core.insight import Insight
from kcachefs.daemon.live_settings import LiveSettings
from kcachefs.daemon.registry import MountConfig


class Commands(Insight):
    """Commands on a running mount."""

    def __init__(self, fs: Filesystem, config: MountConfig) -> None:
        super().__init__(fs)
        self._settings = LiveSettings(config)
        fs.report.add(
            slow={
                b"entries.json": self._entries_for,
                b"made.json": self._made_for,
                b"runs.json": self._runs_for,
                b"tombstones.json": lambda caller: _as_line(self.tombstones(uid=self._seen_by(caller))),
                b"events.json": lambda caller: _as_line(self.events(uid=self._seen_by(caller))),
                b"history.json": lambda caller: _as_line(self.history(uid=self._seen_by(caller))),
            },
            numbered={b"artifacts": self._artifacts_for},
        )

    def start(self, name: str, pid: int) -> int:
        """Read ahead the entries that the last starts of this command read: a process is about to start it.

        Returns the number of these entries.
        """
        return self._fs.profiles.expect(name, pid)

    def _entries_for(self, caller: Caller) -> bytes:
        """The entries that a caller may list by reading a file: their own, or all for the owner and root."""
        self._fs.settle_for(caller)
        return _as_line(self.ls(uid=self._seen_by(caller)))

    def _made_for(self, caller: Caller) -> bytes:
        self._fs.settle_for(caller)
        return _as_line(self.entries(uid=self._seen_by(caller)))

    def _runs_for(self, caller: Caller) -> bytes:
        self._fs.settle_for(caller)
        return _as_line(self._runs_for_reader(caller.uid, self._seen_by(caller)))

    def _artifacts_for(self, caller: Caller, entry: int) -> bytes:
        return _as_line(self.artifacts([entry], uid=self._seen_by(caller)))

    def _seen_by(self, caller: Caller) -> int | None:
        """The user whose entries a caller may see; None for all."""
        return None if self._fs.sees_all(caller) else caller.uid

    def metrics(self) -> str:
        """The metrics of the whole mount, for Prometheus."""
        return self._fs.metrics().decode()

    def settings(self) -> MountConfig:
        """The settings now in force, and where each value comes from."""
        return self._settings.config

    def set(self, options: dict[str, Any], forget: bool = False) -> MountConfig:
        """Change options while the mount is in use, and keep them for the next mount; `forget` discards kept ones."""
        changed = self._settings.change(self._fs, options)
        if forget:
            self._settings.forget()
        return changed


def _as_line(found: object) -> bytes:
    return msgspec.json.encode(found) + b"\n"
