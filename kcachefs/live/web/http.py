"""HTTP/1.1 on trio, as much of it as one page needs: requests in, responses out, connections kept open."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import trio

log = logging.getLogger(__name__)

BODY_MAX = 1 << 16
IDLE_SECONDS = 75.0
"""How long a connection may be silent."""
_CHUNK = 1 << 14


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[bytes, bytes]
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes = b""
    kind: str = "text/plain; charset=utf-8"
    headers: dict[str, str] = field(default_factory=dict)


Handle = Callable[[Request], Awaitable[Response]]


async def serve_connection(stream: trio.abc.Stream, handle: Handle) -> None:
    """Answer the requests of one connection until it ends."""
    connection = h11.Connection(h11.SERVER)
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                with trio.move_on_after(IDLE_SECONDS) as scope:
                    try:
                        request = await _receive(connection, stream)
                    except h11.RemoteProtocolError as error:
                        await _refuse(connection, stream, error)
                        return
                if scope.cancelled_caught or request is None:
                    return
                await _send(connection, stream, await _answer(handle, request), request.method)
                if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                    return
                connection.start_next_cycle()


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
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_MAX:
                raise h11.RemoteProtocolError("the body is too large", error_status_hint=413)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return _request(head, bytes(body))
        else:
            return None


def _request(head: h11.Request, body: bytes) -> Request:
    target = urlsplit(head.target.decode("latin-1"))
    query = dict(parse_qsl(target.query, keep_blank_values=True))
    return Request(head.method.decode("latin-1"), unquote(target.path), query, dict(head.headers), body)


async def _send(connection: h11.Connection, stream: trio.abc.Stream, response: Response, method: str) -> None:
    headers = [("Content-Type", response.kind), ("Content-Length", str(len(response.body))), *response.headers.items()]
    data = connection.send(h11.Response(status_code=response.status, headers=headers)) or b""
    if method != "HEAD":
        data += connection.send(h11.Data(data=response.body)) or b""
    data += connection.send(h11.EndOfMessage()) or b""
    await stream.send_all(data)


async def _refuse(connection: h11.Connection, stream: trio.abc.Stream, error: h11.RemoteProtocolError) -> None:
    """Tell a client that speaks no HTTP, and hang up."""
    if connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        text = f"{error}\n".encode()
        with contextlib.suppress(h11.LocalProtocolError):
            response = Response(error.error_status_hint, text, headers={"Connection": "close"})
            await _send(connection, stream, response, "GET")
