"""All mounts of this host, as far as the current user can see them."""

from __future__ import annotations

import contextlib

from kcachefs.core.report import Statistics
from kcachefs.daemon import control, registry
from kcachefs.daemon.registry import MountState
from kcachefs.engines import mounting
from kcachefs.errors import KcachefsError
from kcachefs.live.view import MountRow

_ANSWER_SECONDS = 1.0


def list_mounts() -> list[MountRow]:
    """This user's own mounts first, the dead ones too. Other users' mounts follow: they are listed and not touched,
    because looking into a mount whose daemon hangs would never end."""
    own = [*registry.all_mounts(), *registry.dead_mounts()]
    rows = [_own(state) for state in own]
    known = {state.mountpoint for state in own}
    table = {one.mountpoint for one in mounting.mounts() if one.fstype == mounting.FSTYPE}
    rows += [MountRow(mountpoint=one, state="another user's", own=False) for one in sorted(table - known)]
    return rows


def _own(state: MountState) -> MountRow:
    numbers = None
    if state.alive:
        with contextlib.suppress(KcachefsError, OSError):
            numbers = control.ask_mount(state.mountpoint, "stats", Statistics, seconds=_ANSWER_SECONDS)
    word = "served" if state.supervised else "unsupervised"
    return MountRow(
        mountpoint=state.mountpoint,
        state="dead" if not state.alive else word if numbers is not None else "silent",
        own=True,
        store=state.store,
        engine=state.engine,
        policy=state.policy,
        version=state.version,
        restarts=state.restarts,
        started=state.started,
        used_bytes=numbers.store.used_bytes if numbers else None,
        max_bytes=numbers.store.max_bytes if numbers else None,
        hit_rate=numbers.total.hit_rate if numbers else None,
    )
