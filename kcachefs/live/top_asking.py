"""What `kcachefs top` knows of a mount, and the threads that ask for it, so that the screen never waits.

One thread asks for the quick part once a second; another is started for each look into entries, and for each change.
All are abandoned when the screen closes. Their results are taken over in the screen's own thread, through `tell`.
"""

from __future__ import annotations

import contextlib
import glob
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kcachefs.core.entry_info import Outcome
from kcachefs.errors import KcachefsError
from kcachefs.live.host import list_mounts
from kcachefs.live.looking import Look, contents_of
from kcachefs.live.top_rows import SPANS
from kcachefs.live.view import Causes, EntryPage, Glance, Kernels, MountRow, Series
from kcachefs.live.watching import Watch

PERIOD_SECONDS = 1.0
LOOK_PAUSE_SECONDS = 5.0
"""The pause between two looks, if something changed."""
LOOKED_AT = ("misses", "kernels", "mounts")
"""Panels that need more than the quick part."""

_FAULTS = (KcachefsError, OSError, msgspec.DecodeError)
Tell = Callable[..., None]
"""Calls a function with arguments in the screen's thread."""


class Known:
    """The data known about one mount. Belongs to the screen's thread."""

    def __init__(self, mount: Path) -> None:
        self.watch = Watch.of(mount)
        self.contents = contents_of(self.watch)
        self.glance: Glance | None = None
        self.series: Series | None = None
        self.causes: Causes | None = None
        self.kernels: Kernels | None = None
        self.pinned: set[str] = set()
        self.mounts: list[MountRow] = []
        self.run: int | None = None
        """The run whose misses are explained; None means the last run that compiled something."""
        self.problem = ""
        """Why the last look failed."""
        self.looking = False
        self.looked: dict[str, tuple[object, float]] = {}
        """By panel: the state of the mount at the last look, and when that was."""

    def explain_run(self, run: int | None) -> None:
        """Explain the misses of that run from now on."""
        if run != self.run:
            self.run, self.causes = run, None
            self.looked.pop("misses", None)

    def is_due(self, panel: str) -> bool:
        """Whether a panel's data is due for another look; if so, records that the look is done."""
        if panel not in LOOKED_AT or self.looking or self.glance is None:
            return False
        before, when = self.looked.get(panel, (None, 0.0))
        now = self.watch.change(), self.run if panel == "misses" else None
        if (now == before and panel != "mounts") or (
            before is not None and time.monotonic() - when < LOOK_PAUSE_SECONDS
        ):
            return False
        self.looking, self.looked[panel] = True, (now, time.monotonic())
        return True


class Asking:
    """The asking threads. `drawn` is called in the screen's thread whenever something new is known."""

    def __init__(self, mount: Path, tell: Tell, drawn: Callable[[], None]) -> None:
        self.known = Known(mount)
        self._tell, self._drawn = tell, drawn
        self._stopping = threading.Event()
        self.span = next(iter(SPANS))

    def start(self) -> None:
        self._in_thread(self._watch)

    def stop(self) -> None:
        self._stopping.set()

    def turn_to(self, mount: Path) -> None:
        """Watch that mount from now on."""
        self.known = Known(mount)

    def _in_thread(self, work: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=work, args=arguments, name="kcachefs-top", daemon=True).start()

    # --- the quick part -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stopping.is_set():
            known, series = self.known, None
            glance = known.watch.glance()
            with contextlib.suppress(*_FAULTS):
                series = known.watch.series(SPANS[self.span][0])
            self._tell(self._seen, known, glance, series)
            self._stopping.wait(PERIOD_SECONDS)

    def _seen(self, known: Known, glance: Glance, series: Series | None) -> None:
        known.glance, known.series = glance, series or known.series
        self._drawn()

    # --- looks --------------------------------------------------------------------------------------------------------

    def look(self, panel: str) -> None:
        """Look again at a panel's data, if something changed since the last time."""
        if self.known.is_due(panel):
            self._in_thread(self._look, self.known, panel, self.known.run)

    def _look(self, known: Known, panel: str, run: int | None) -> None:
        found: Any = None
        problem = ""
        pinned: set[str] = set()
        try:
            if panel == "mounts":
                found = list_mounts()
            else:
                with Look(known.watch, known.contents) as look:
                    found = look.causes(run) if panel == "misses" else look.kernels()
                pinned = {one.path for one in known.contents.entries() if one.pinned}
        except _FAULTS as error:
            problem = str(error)
        self._tell(self._found, known, panel, found, pinned, problem)

    def _found(self, known: Known, panel: str, found: Any, pinned: set[str], problem: str) -> None:
        known.looking, known.problem = False, problem
        if not problem:
            setattr(known, {"misses": "causes"}.get(panel, panel), found)
            known.pinned = pinned if panel == "kernels" else known.pinned
        self._drawn()

    # --- one entry ----------------------------------------------------------------------------------------------------

    def open(self, path: str, done: Callable[[EntryPage], object], failed: Callable[[str], None]) -> None:
        """Read everything about an entry."""
        self._in_thread(self._open, self.known, path, done, failed)

    def _open(
        self, known: Known, path: str, done: Callable[[EntryPage], object], failed: Callable[[str], None]
    ) -> None:
        try:
            with Look(known.watch, known.contents) as look:
                page = look.entry(path)
        except _FAULTS as error:
            self._tell(failed, str(error))
        else:
            self._tell(done, page)

    def change(self, verb: str, path: str, done: Callable[[str], None], failed: Callable[[str], None]) -> None:
        """Pin, unpin or evict an entry; `done` is called with the outcome in words."""
        self._in_thread(self._change, self.known, verb, path, done, failed)

    def _change(
        self, known: Known, verb: str, path: str, done: Callable[[str], None], failed: Callable[[str], None]
    ) -> None:
        arguments = {} if verb == "evict" else {"pinned": verb == "pin"}
        try:
            raw = known.watch.ask(verb.removeprefix("un"), patterns=[glob.escape(path)], **arguments)
            outcome = msgspec.json.decode(raw, type=Outcome)
        except _FAULTS as error:
            self._tell(failed, str(error))
            return
        if outcome.refused:
            self._tell(failed, "in use or pinned, so it stays")
            return
        known.contents.forget()
        self._tell(self._changed, known, verb, path)
        self._tell(done, {"evict": "evicted", "pin": "pinned", "unpin": "no longer pinned"}[verb])

    def _changed(self, known: Known, verb: str, path: str) -> None:
        known.pinned = known.pinned | {path} if verb == "pin" else known.pinned - {path}
        if verb == "evict" and known.kernels is not None:
            left = [row for row in known.kernels.rows if row.path != path]
            known.kernels = msgspec.structs.replace(known.kernels, rows=left, total=known.kernels.total - 1)
        self._drawn()
