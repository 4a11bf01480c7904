"""Shows the progress of an eviction, which takes time beside programs that use the mount."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kcachefs.cli import target
from kcachefs.cli.printing import Tell, bars, complain
from kcachefs.errors import KcachefsError

PAUSE_SECONDS = 0.3
PATIENCE_SECONDS = 5.0


@contextmanager
def shown(mount: Path | None, store: Path | None, *, quiet: bool) -> Iterator[None]:
    """While a mount evicts entries, a bar on a terminal shows the progress."""
    mounted = None if quiet or not sys.stderr.isatty() else _mounted(mount, store)
    if mounted is None:
        yield
        return
    is_over = threading.Event()
    with bars() as tell:
        following = (mounted, tell, is_over)
        threading.Thread(target=_follow, args=following, name="kcachefs-evicting", daemon=True).start()
        try:
            yield
        except KeyboardInterrupt:
            complain("kcachefs: interrupted; the mount goes on evicting")
            raise
        finally:
            is_over.set()  # the thread is not waited for: it may wait for the mount


def _mounted(mount: Path | None, store: Path | None) -> str | None:
    try:
        return target.find_mount(mount, store)
    except KcachefsError:  # the command itself reports the error
        return None


def _follow(mounted: str, tell: Tell, is_over: threading.Event) -> None:
    from kcachefs.core.entry_info import EvictionProgress
    from kcachefs.daemon import control

    while not is_over.wait(PAUSE_SECONDS):
        try:
            now = control.ask_mount(mounted, "progress", EvictionProgress, seconds=PATIENCE_SECONDS)
        except KcachefsError:  # the mount is ending, or its version does not report this
            return
        if now.entries and not is_over.is_set():
            tell(f"evicting {now.entries:,} entries", now.done, now.entries)
