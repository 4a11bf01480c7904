"""The metrics that the supervisor serves: those of its worker, or what it knows by itself while no worker answers."""

from __future__ import annotations

import logging
import socket

from kcachefs.core.metrics import About, about_metrics, metric
from kcachefs.daemon import control, metrics_server
from kcachefs.daemon.registry import MountConfig, MountState
from kcachefs.errors import KcachefsError

log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
"""How long the worker may take: less than Prometheus waits."""
REPLY_MAX = 4 << 20


class MountMetrics:
    """The metrics of one mount over HTTP."""

    def __init__(self, config: MountConfig, state: MountState) -> None:
        """Listen at once, so that a mount whose address is taken is refused before anything is mounted.

        An address from a configuration file goes to the first mount that uses the file; the others do without.
        """
        self._state = state
        self._listener: socket.socket | None = None
        try:
            self._listener = metrics_server.listen(config.metrics_listen)
        except KcachefsError as error:
            if config.origins.get("metrics_listen", "command line") == "command line":
                raise
            log.warning("metrics are not served: %s", error)
            return
        state.metrics = metrics_server.address_of(self._listener)

    def start(self) -> None:
        if self._listener is not None:
            log.info("serving metrics at http://%s/metrics", self._state.metrics)
            metrics_server.MetricsServer(self._listener, self.collect).start()

    def collect(self) -> bytes:
        """All metrics. Asks the worker: may take `ANSWER_SECONDS` and longer."""
        try:
            told = control.ask_mount(self._state.mountpoint, "metrics", str, seconds=ANSWER_SECONDS, limit=REPLY_MAX)
        except (KcachefsError, OSError):
            return _up(False) + about_metrics(self._about())
        return _up(True) + told.encode()

    def _about(self) -> About:
        state = self._state
        return About(
            version=state.version,
            engine=state.engine,
            policy=state.policy,
            started=state.started,
            restarts=state.restarts,
            reloads=state.reloads,
        )


def _up(is_up: bool) -> bytes:
    return metric("worker_up", "gauge", "1 while the worker answers, 0 while it is replaced or hangs.", int(is_up))
