"""HTTP/1.1 on trio, as much of it as one page needs: requests in, responses out, connections kept open."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import select
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

import h11
import trio

log = logging.getLogger(__name__)

BODY_MAX = 1 << 16
IDLE_SECONDS = 75.0
"""How long a connection may be silent, or take to receive a reply."""
CONNECTIONS_MAX = 256
"""How many connections may be silent at a time; one more replaces the one that has been silent longest."""
_CHUNK = 1 << 14


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[bytes, bytes]
    body: bytes
    has_left: Callable[[], bool] = lambda: False
    """Whether nobody waits for the reply any more, as far as the connection shows."""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)


Handle = Callable[[Request], Awaitable[Response]]


class Connections:
    """Answers the requests of connections. A client may be slow or hostile, and can end only its own connection."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._silent: dict[trio.CancelScope, None] = {}
        """The connections we wait for, the one that has been silent longest first."""

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Answer the requests of one connection until it ends."""
        connection = h11.Connection(h11.SERVER)
        async with stream:
            try:
                while await self._serve_request(connection, stream):
                    connection.start_next_cycle()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            except Exception:
                log.exception("a connection failed")

    async def _serve_request(self, connection: h11.Connection, stream: trio.abc.Stream) -> bool:
        """Serve one request; returns whether another may follow."""
        request: Request | None = None
        with self._waiting():
            try:
                request = await _receive(connection, stream)
            except h11.RemoteProtocolError as error:
                await _refuse(connection, stream, error)
        if request is None:
            return False
        request = dataclasses.replace(request, has_left=functools.partial(_is_closed, stream))
        response = await _answer(self._handle, request)
        with self._waiting():
            await _send(connection, stream, response, request.method)
            request = None  # the response was received
        return request is None and connection.our_state is h11.DONE and connection.their_state is h11.DONE

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Wait for a client in this scope, which ends early on a timeout or if another connection needs the place."""
        if len(self._silent) >= CONNECTIONS_MAX:
            longest = next(iter(self._silent))
            del self._silent[longest]
            longest.cancel()
        with trio.move_on_after(IDLE_SECONDS) as scope:
            self._silent[scope] = None
            try:
                yield
            finally:
                self._silent.pop(scope, None)


def _is_closed(stream: trio.abc.Stream) -> bool:
    """Whether the other side has stopped sending. It could still read, but no browser does that."""
    if not isinstance(stream, trio.SocketStream) or stream.socket.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(stream.socket.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


async def _answer(handle: Handle, request: Request) -> Response:
    try:
        return await handle(request)
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return Response(500, b"This is a bug in kcachefs; its terminal shows what happened.\n")


async def _receive(connection: h11.Connection, stream: trio.abc.Stream) -> Request | None:
    """The next request with its body; None at the end."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event: Any = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                await stream.send_all(connection.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            connection.receive_data(bytes(await stream.receive_some(_CHUNK)))
        elif isinstance(event, h11.Request):
            head = event
            if {b"content-length", b"transfer-encoding"} <= dict(head.headers).keys():
                # A proxy may believe the other length, and take a part of this body for another client's request.
                raise h11.RemoteProtocolError("the body has two lengths")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_MAX:
                raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return _request(head, bytes(body))
        else:
            return None


def _request(head: h11.Request, body: bytes) -> Request:
    target, _, query = head.target.decode("latin-1").partition("?")
    if target.startswith("http://"):  # as a client writes it for a proxy
        target = "/" + target.removeprefix("http://").partition("/")[2]
    told = dict(parse_qsl(query, keep_blank_values=True))
    return Request(head.method.decode("latin-1"), unquote(target), told, dict(head.headers), body)


async def _send(connection: h11.Connection, stream: trio.abc.Stream, response: Response, method: str) -> None:
    headers = [("Content-Type", response.kind), ("Content-Length", str(len(response.body))), *response.headers.items()]
    data = connection.send(h11.Response(status_code=response.status, headers=headers)) or b""
    if method != "HEAD":
        data += connection.send(h11.Data(data=response.body)) or b""
    data += connection.send(h11.EndOfMessage()) or b""
    await stream.send_all(data)


async def _refuse(connection: h11.Connection, stream: trio.abc.Stream, error: h11.RemoteProtocolError) -> None:
    """Answer a client that does not speak HTTP, and hang up."""
    if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        text = f"{error}\n".encode()
        with contextlib.suppress(h11.LocalProtocolError):
            response = Response(error.error_status_hint, text, headers={"Connection": "close"})
            await _send(connection, stream, response, "GET")
