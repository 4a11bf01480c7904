"""`GET /metrics` over HTTP, from a thread of the supervisor: for a Prometheus that scrapes a mount as a service.

Any client may be slow or hostile. So one thread serves a few connections at a time without waiting for any of them, and
drops the oldest for a new one. A request may take a few kilobytes and a few seconds at most. The worker is asked at
most twice a second, however many clients ask. The supervisor's own work runs in another thread and waits for nothing
here.

While the worker is being replaced, or does not answer, the reply has what the supervisor knows by itself.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable

from kcachefs.errors import MountError

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 16
"""How many connections are served at a time; one more takes the place of the oldest."""
REQUEST_MAX = 8 << 10
PATIENCE_SECONDS = 10.0
"""How long a connection may take from beginning to end."""
FRESH_SECONDS = 0.5
"""How long a reply is reused before a new one is made."""
_TURN_SECONDS = 1.0
"""How often connections that took too long are looked for."""
_PAUSE_SECONDS = 0.05
"""How long to wait after an error that may come again at once, such as running out of descriptors."""
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def listen(address: str) -> socket.socket:
    """A socket that listens on `ADDRESS:PORT`; raises MountError if it cannot."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, int(port)))
        listener.listen(CONNECTIONS_MAX)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise MountError(f"--metrics-listen {address}: {error.strerror}; choose another address or port") from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The address of a listening socket, with the port that the kernel chose if none was given."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Connection:
    """The part of the request that was read so far, and the part of the reply that is still to be sent."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.until = time.monotonic() + PATIENCE_SECONDS
        self.request = b""
        self.reply = memoryview(b"")
        self.is_answered = False


class MetricsServer:
    """Serves what `collect` returns. It is called in the server's own thread, and may take a moment."""

    def __init__(self, listener: socket.socket, collect: Callable[[], bytes]) -> None:
        self._listener = listener
        self._collect = collect
        self._selector = selectors.DefaultSelector()
        self._connections: list[_Connection] = []
        """The oldest first."""
        self._fresh_until = 0.0
        self._body = b""

    def start(self) -> None:
        """Serve until the process ends."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        threading.Thread(target=self._serve, name="kcachefs-metrics", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                self._turn()
            except Exception:
                log.exception("the metrics could not be served")
                time.sleep(_PAUSE_SECONDS)

    def _turn(self) -> None:
        for key, _ in self._selector.select(_TURN_SECONDS):
            if key.data is None:
                self._accept()
            elif key.data in self._connections:  # unless it was dropped for another a moment ago
                self._go_on(key.data)
        now = time.monotonic()
        for late in [one for one in self._connections if one.until < now]:
            self._close(late)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the client is gone already, or there are no descriptors left
            time.sleep(_PAUSE_SECONDS)
            return
        connection.setblocking(False)
        if len(self._connections) >= CONNECTIONS_MAX:
            self._close(self._connections[0])
        made = _Connection(connection)
        self._connections.append(made)
        self._selector.register(connection, selectors.EVENT_READ, made)

    def _go_on(self, one: _Connection) -> None:
        try:
            if one.reply:
                self._send(one)
            elif chunk := one.socket.recv(REQUEST_MAX):
                self._read(one, chunk)
            else:
                self._close(one)
        except BlockingIOError:
            pass
        except OSError:
            self._close(one)

    def _read(self, one: _Connection, chunk: bytes) -> None:
        if one.is_answered:
            return  # anything after the request is thrown away: closing at once could cost the client the reply
        one.request += chunk
        if b"\r\n\r\n" in one.request or b"\n\n" in one.request or len(one.request) >= REQUEST_MAX:
            one.reply = memoryview(self._reply_to(one.request))
            one.is_answered = True
            self._selector.modify(one.socket, selectors.EVENT_WRITE, one)

    def _send(self, one: _Connection) -> None:
        one.reply = one.reply[one.socket.send(one.reply) :]
        if not one.reply:
            one.socket.shutdown(socket.SHUT_WR)
            self._selector.modify(one.socket, selectors.EVENT_READ, one)

    def _close(self, one: _Connection) -> None:
        self._connections.remove(one)
        self._selector.unregister(one.socket)
        one.socket.close()

    def _reply_to(self, request: bytes) -> bytes:
        words = request.partition(b"\n")[0].split()
        if len(request) >= REQUEST_MAX:
            return _reply("431 Request Header Fields Too Large")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _reply("400 Bad Request")
        if words[1].partition(b"?")[0] != b"/metrics":
            return _reply("404 Not Found")
        if words[0] != b"GET":
            return _reply("405 Method Not Allowed", more="Allow: GET\r\n")
        now = time.monotonic()
        if now > self._fresh_until:
            self._body = self._collect()
            self._fresh_until = time.monotonic() + FRESH_SECONDS
        return _reply("200 OK", self._body, _TYPE)


def _reply(status: str, body: bytes = b"", kind: str = "text/plain; charset=utf-8", more: str = "") -> bytes:
    body = body or f"{status}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}"
    return f"{head}Connection: close\r\n\r\n".encode() + body
