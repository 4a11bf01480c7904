"""Answers the page's requests: its files, its data as JSON, metrics, and changes where they are allowed."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio

from kcachefs import reports
from kcachefs.bounded import BoundedDict
from kcachefs.core.entry_info import Outcome
from kcachefs.errors import DaemonError, KcachefsError, UsageError
from kcachefs.live.contents import Contents
from kcachefs.live.host import list_mounts
from kcachefs.live.looking import Look, contents_of
from kcachefs.live.view import RANGES, Glance
from kcachefs.live.watching import Watch
from kcachefs.live.web import assets
from kcachefs.live.web.access import CHANGE_HEADER, Access
from kcachefs.live.web.http import Request, Response

_T = TypeVar("_T")
_GLANCE_SECONDS = 0.9
"""A glance serves every browser that asks within this time."""
_KEPT_SECONDS = 5.0
"""Expensive answers are not recomputed more often than this, whatever changes."""
_KEPT = 64
_METRICS_SECONDS = 8.0
_SILENT_SECONDS = 10.0
"""A mount that does not answer within this time is called silent."""
_JSON = "application/json"
_ALWAYS = {
    "Content-Security-Policy": assets.LIVE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Mounted:
    """One mount that the page shows, with the answers about it that are kept."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.contents: Contents = contents_of(watch)
        self.kept: BoundedDict[tuple[str, ...], tuple[object, float, bytes]] = BoundedDict(_KEPT)
        self.turn = trio.Lock()
        """Lets one thread at a time use the watch."""
        self.expensive_turn = trio.Lock()
        self.glance: Glance | None = None
        self.looked = 0.0
        self._is_asking = False

    async def in_time(self, function: Callable[..., _T], *args: Any) -> _T | None:
        """The result of a call on the watch; None if the mount hangs.

        Through somebody else's mount, a daemon that hangs would block us for ever. It is not asked again until the
        thread that asked has returned.
        """
        if not self._is_asking:
            with trio.move_on_after(_SILENT_SECONDS):
                return await in_thread(self._asking, function, *args)
        return None

    def _asking(self, function: Callable[..., _T], *args: Any) -> _T:
        """Runs in a thread."""
        self._is_asking = True
        try:
            return function(*args)
        finally:
            self._is_asking = False

    async def refresh(self) -> Glance:
        """The present state of the mount."""
        return await self.in_time(self.watch.glance) or self.watch.last_known(self.silence)

    @property
    def silence(self) -> str:
        """The message about a mount that hangs."""
        return f"{self.watch.place}: the mount has been silent for a while"


class Answers:
    """The server's answers."""

    def __init__(self, access: Access, mounts: list[Path], *, allow_changes: bool = False) -> None:
        self._access = access
        self._allow_changes = allow_changes
        self._mounts = {str(one): Mounted(Watch.of(one)) for one in mounts}
        self._default = str(mounts[0])
        self._scrapes = trio.CapacityLimiter(2)
        """Separate from other threads: a mount that hangs holds on to the threads that read its metrics."""
        self._texts: dict[str, tuple[Callable[[], str], str]] = {
            "/": (assets.page, "text/html; charset=utf-8"),
            "/page.css": (assets.style, "text/css; charset=utf-8"),
            "/page.js": (assets.script, "text/javascript; charset=utf-8"),
        }

    async def answer(self, request: Request) -> Response:
        """Answer one request, after checking who asks."""
        found = await self._checked(request)
        return Response(found.status, found.body, found.kind, {**_ALWAYS, **found.headers})

    async def _checked(self, request: Request) -> Response:
        if not self._access.is_host_known(request.headers.get(b"host")):
            return Response(421, b"This server is not known by that name; see kcachefs web --allow-host.\n")
        if not self._access.is_token_right(request.headers, request.query):
            return Response(403, b"Use the link that kcachefs web printed: it has a token in it.\n")
        path = request.path
        if self._access.prefix and (path + "/").startswith(self._access.prefix + "/"):
            path = path[len(self._access.prefix) :]
            if not path:
                location = f"{self._access.prefix}/"
                return Response(303, headers={"Location": location, "Set-Cookie": self._access.cookie()})
        if path == "/" and "token" in request.query:
            # Without the token in its address, the page can be bookmarked, shared on a screen, and left in a history.
            return Response(303, headers={"Location": "./", "Set-Cookie": self._access.cookie()})
        try:
            return await self._routed(path, request)
        except KcachefsError as error:
            status = 400 if isinstance(error, UsageError) else 503
            return Response(status, msgspec.json.encode({"error": str(error)}), _JSON)

    async def _routed(self, path: str, request: Request) -> Response:
        if request.method == "POST":
            return await self._changed(path, request)
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"Only GET, HEAD and POST.\n", headers={"Allow": "GET, HEAD, POST"})
        if path in self._texts:
            text, kind = self._texts[path]
            return Response(200, text().encode(), kind)
        if path == "/metrics":
            return await self._metrics(self._meant(request))
        if path == "/api/glance":
            return await self._glanced(self._meant(request), request.query.get("revision", ""))
        if path == "/api/mounts":
            rows = await in_thread(list_mounts)
            told = {"mounts": rows, "shown": list(self._mounts), "changes": self._allow_changes}
            return Response(200, msgspec.json.encode(told), _JSON)
        if path == "/api/series":
            return await self._series(self._meant(request), request.query.get("range", ""))
        if path.startswith("/api/") and path[5:] in _LOOKS:
            return await self._looked(self._meant(request), path[5:], request)
        return Response(404, b"There is no such page.\n")

    def _meant(self, request: Request) -> Mounted:
        name = request.query.get("mount") or self._default
        if name not in self._mounts:
            raise UsageError(f"{name}: is not shown here")
        return self._mounts[name]

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _glanced(self, mounted: Mounted, revision: str) -> Response:
        async with mounted.turn:
            if mounted.glance is None or not 0 <= time.monotonic() - mounted.looked < _GLANCE_SECONDS:
                mounted.glance = await mounted.refresh()
                mounted.looked = time.monotonic()
            found = mounted.glance
        if revision == str(found.revision):
            return Response(200, msgspec.json.encode({"now": found.now, "revision": found.revision}), _JSON)
        return Response(200, msgspec.json.encode(found), _JSON)

    async def _series(self, mounted: Mounted, name: str) -> Response:
        if name not in RANGES:
            raise UsageError(f"range {name!r}: unknown; choose one of {', '.join(RANGES)}")
        async with mounted.turn:
            found = await mounted.in_time(mounted.watch.series, name)
        if found is None:
            raise DaemonError(mounted.silence)
        return Response(200, msgspec.json.encode(found), _JSON)

    async def _looked(self, mounted: Mounted, name: str, request: Request) -> Response:
        query, has_waited = request.query, mounted.expensive_turn.locked()
        key = (name, *(query.get(one, "") for one in ("run", "since", "path", "search", "namespace", "group")))
        async with mounted.expensive_turn:
            if has_waited and request.has_left():
                return Response(503, b"You left before it was your turn.\n")
            change = mounted.watch.change()
            known, when, data = mounted.kept.get(key, (None, 0.0, b""))
            if not data or (known != change and time.monotonic() - when > _KEPT_SECONDS):
                data, complete = await in_thread(_look, mounted, name, query)
                mounted.kept[key] = change if complete else object(), time.monotonic(), data
        return Response(200, data, _JSON)

    async def _metrics(self, mounted: Mounted) -> Response:
        data = b""
        with trio.move_on_after(_METRICS_SECONDS):
            data = await in_thread(reports.read, Path(mounted.watch.place), "metrics", limiter=self._scrapes)
        if not data:
            return Response(503, b"The mount does not answer.\n")
        return Response(200, data, "text/plain; version=0.0.4; charset=utf-8")

    # --- changing -----------------------------------------------------------------------------------------------------

    async def _changed(self, path: str, request: Request) -> Response:
        if not self._allow_changes:
            return Response(403, b"This page is read-only; start it with kcachefs web --allow-changes.\n")
        if not self._access.is_change_meant(request.headers):
            return Response(403, b"A change needs the header " + CHANGE_HEADER + b", and must come from this page.\n")
        if path not in _CHANGES:
            return Response(404, b"There is no such change.\n")
        try:
            wanted = msgspec.json.decode(request.body, type=_Wanted)
        except msgspec.DecodeError as error:
            raise UsageError(f"the request is malformed: {error}") from None
        verb, arguments = _CHANGES[path]
        mounted = self._meant(request)
        patterns = [_literal(wanted.path)]
        try:
            raw = await in_thread(lambda: mounted.watch.ask(verb, patterns=patterns, **arguments))
        except DaemonError as error:
            if error.exit_code != UsageError.exit_code:
                raise
            return Response(404, msgspec.json.encode({"error": str(error)}), _JSON)  # the entry is gone
        mounted.kept.clear()
        mounted.contents.forget()
        return Response(200, msgspec.json.encode(msgspec.json.decode(raw, type=Outcome)), _JSON)


async def in_thread(function: Callable[..., _T], *args: Any, limiter: trio.CapacityLimiter | None = None) -> _T:
    """The result of a call that may wait. The caller may leave before it returns; the thread then finishes alone."""
    return await trio.to_thread.run_sync(functools.partial(function, *args), abandon_on_cancel=True, limiter=limiter)


class _Wanted(msgspec.Struct):
    path: str


_CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "/api/pin": ("pin", {"pinned": True}),
    "/api/unpin": ("pin", {"pinned": False}),
    "/api/evict": ("evict", {}),
}

_LOOKS = ("filling", "entries", "causes", "kernels", "entry")


def _look(mounted: Mounted, name: str, query: dict[str, str]) -> tuple[bytes, bool]:
    """Runs in a thread: an expensive answer, and whether another look would find no more."""
    found: Any
    with Look(mounted.watch, mounted.contents) as look:
        if name == "filling":
            found = look.filling()
        elif name == "entries":
            found = look.entries_of(query.get("namespace", ""), query.get("group", ""))
        elif name == "causes":
            found = look.causes(_whole(query.get("run")), _seconds_ago(query.get("since")))
        elif name == "kernels":
            found = look.kernels(query.get("search", "")[:200])
        else:
            found = look.entry(query.get("path", ""))
    return msgspec.json.encode(found), getattr(found, "complete", True)


def _whole(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise UsageError(f"{text!r}: is not a number")
    return int(text)


def _seconds_ago(text: str | None) -> float | None:
    number = _whole(text)
    return None if number is None else time.time() - number


def _literal(path: str) -> str:
    """A pattern that matches this entry and no other."""
    return "".join(f"[{one}]" if one in "*?[" else one for one in path)
