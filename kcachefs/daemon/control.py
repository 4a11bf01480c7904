"""The control socket: one JSON request, one JSON reply, per connection; for the mount's owner and root only.

The kernel says who is asking (SO_PEERCRED). docs/protocols.md lists every verb with its arguments and its result.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import msgspec

from kcachefs import __version__
from kcachefs.daemon import registry
from kcachefs.daemon.serving import PEER, short_address
from kcachefs.errors import DaemonError, DaemonRefused, KcachefsError, UsageError, exit_code_of, or_gone
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.core.administration import Administration

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_LINE_MAX = 1 << 20
_MALFORMED = "the request is malformed: "
_UNKNOWN = ": no such command; use one of "
"""How a daemon of any version words its refusal of a command, or an argument, that it does not know."""
AT_ONCE = 40
"""How many requests are carried out at a time."""
CONNECTIONS_MAX = 64
"""How many connections may be open: each has a descriptor and a thread. Other clients wait until one has left."""
SILENT_SECONDS = 60.0
"""How long a client may neither send nor read anything before its connection is closed."""
RETRY_SECONDS = 1.0
"""How long to wait after a connection could not be accepted."""


class Request(msgspec.Struct):
    """A verb and its arguments."""

    verb: str
    arguments: dict[str, Any] = {}


class Reply(msgspec.Struct):
    """A result, or the reason why there is none."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    exit_code: int = 0


class ControlSocket:
    """Replies on a bound socket. Every connection has a thread of its own."""

    def __init__(self, administration: Administration) -> None:
        self._listener: socket.socket | None = None
        self._administration = administration
        self._places = threading.Semaphore(CONNECTIONS_MAX)
        self._turns = threading.Semaphore(AT_ONCE)
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="kcachefs-control", daemon=True)

    def listen(self, bound: socket.socket) -> None:
        """Take requests at this socket from now on, and no longer at the previous one."""
        bound.listen()  # in this process, because SO_PEERCRED names the process that listens
        former, self._listener = self._listener, bound
        if former is None:
            self._thread.start()
        else:
            with contextlib.suppress(OSError):
                former.shutdown(socket.SHUT_RDWR)  # wakes `_accept`, which closes it

    def close(self) -> None:
        """Take no more requests, and return when the current ones are done."""
        self._closing = True
        if self._listener is None:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `_accept`
        self._places.release()
        self._thread.join()
        self._listener.close()
        for _ in range(AT_ONCE):
            self._turns.acquire()
        self._turns.release(AT_ONCE)  # requests that still wait are turned away

    def _accept(self) -> None:
        while not self._closing:
            self._places.acquire()
            listener = self._listener
            assert listener is not None
            try:
                self._serve_next(listener)
            except (OSError, RuntimeError) as error:  # there is no descriptor or no thread left
                self._places.release()
                if listener is not self._listener:
                    listener.close()
                elif not self._closing:
                    log.error("a connection to the control socket failed: %s", error)
                    time.sleep(RETRY_SECONDS)

    def _serve_next(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        try:
            threading.Thread(target=self._serve, args=(connection,), name="kcachefs-command", daemon=True).start()
        except RuntimeError:
            connection.close()
            raise

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(SILENT_SECONDS)
            self._answer(connection)
        finally:
            self._places.release()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # the client has left, or is silent
            line = b""
            while not line.endswith(b"\n") and len(line) < _LINE_MAX:
                chunk = connection.recv(1 << 16)
                if not chunk:
                    break
                line += chunk
            if not _may_ask(connection):  # after reading: closing while the peer writes would lose the reply
                reply = Reply(error="not your mount", exit_code=6)
            else:
                with self._turns:
                    if self._closing:
                        return
                    reply = _reply_to(line, self._administration)
            rest = memoryview(msgspec.json.encode(reply) + b"\n")
            while rest:  # not `sendall`, which times out even while the client goes on reading
                rest = rest[connection.send(rest) :]


def _may_ask(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    uid = PEER.unpack(raw)[1]
    return uid in (0, os.getuid())


def _reply_to(line: bytes, administration: Administration) -> Reply:
    try:
        request = msgspec.json.decode(line, type=Request)
        command = find_command(administration, request.verb)
        result = command(**_converted(command, request.arguments))
        return Reply(result=msgspec.Raw(msgspec.json.encode(result)))
    except (KcachefsError, OSError) as raised:
        error = or_gone(raised, administration.store)
        return Reply(error=str(error), exit_code=exit_code_of(error))
    except (msgspec.DecodeError, TypeError, RecursionError) as error:
        return Reply(error=f"{_MALFORMED}{error}", exit_code=2)
    except Exception as error:
        log.exception("a control request failed")
        return Reply(error=f"{type(error).__name__}: {error}", exit_code=70)


def _converted(command: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as the command takes them; UsageError for one of another type."""
    kinds = get_type_hints(command)
    found = {}
    for name, value in arguments.items():
        try:
            found[name] = msgspec.convert(value, kinds[name]) if name in kinds else value
        except msgspec.ValidationError as error:
            raise UsageError(f"the argument {name} is wrong: {error}") from None
    return found


VERBS = (
    *("stats", "ls", "pin", "evict", "prune", "gc", "progress"),
    *("entries", "artifacts", "runs", "tombstones", "events", "history", "note_costs", "reset"),
    *("metrics", "settings", "set", "start"),
)


def find_command(administration: Administration, verb: str) -> Callable[..., Any]:
    """The method of the administration that a verb stands for."""
    if verb not in VERBS:
        raise UsageError(f"{verb!r}{_UNKNOWN}{', '.join(VERBS)}")
    found: Callable[..., Any] | None = getattr(administration, verb, None)
    if found is None:
        raise UsageError(f"{verb!r}: works only on a store that is mounted")
    return found


def ask_mount(
    mountpoint: str | Path,
    verb: str,
    kind: type[_T],
    arguments: dict[str, Any] | None = None,
    *,
    seconds: float | None = None,
    limit: int | None = None,
) -> _T:
    """Ask the daemon of this user's mount, as `ask` does, for a result of type `kind`."""
    path = registry.socket_path(str(mountpoint))
    raw = ask(path, verb, arguments or {}, seconds=seconds, limit=limit)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        _refuse_other_version(path)
        raise DaemonError(f"{path}: the daemon's answer to {verb!r} is not understood ({error})") from None


def encoded(verb: str, arguments: dict[str, Any]) -> bytes:
    """A request as JSON."""
    try:
        return msgspec.json.encode(Request(verb, arguments))
    except UnicodeEncodeError as error:
        raise UsageError(f"{printable(error.object)}: is not UTF-8") from None


def ask(
    path: Path, verb: str, arguments: dict[str, Any], *, seconds: float | None = None, limit: int | None = None
) -> bytes:
    """Send a command to a running mount and return the result as JSON.

    Gives up if the mount is silent for `seconds`, or replies with more than `limit` bytes.
    """
    request = encoded(verb, arguments) + b"\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(seconds)
        try:
            with short_address(path) as address:
                sock.connect(address)
            sock.sendall(request)
            raw = bytearray()
            while (chunk := sock.recv(1 << 16)) and (limit is None or len(raw) <= limit):
                raw += chunk
        except OSError as error:
            raise DaemonError(
                f"{path}: the daemon does not answer ({error.strerror or error}); see: kcachefs status"
            ) from None
    if limit is not None and len(raw) > limit:
        raise DaemonError(f"{path}: the daemon replies with more than {limit} bytes")
    try:
        reply = msgspec.json.decode(raw, type=Reply)
    except msgspec.DecodeError:
        raise DaemonError(f"{path}: the daemon closed the connection; find its log with: kcachefs status") from None
    if reply.error:
        if reply.error.startswith(_MALFORMED) or _UNKNOWN in reply.error:
            _refuse_other_version(path)
        raise DaemonRefused(reply.error, reply.exit_code)
    return bytes(reply.result)


def _refuse_other_version(path: Path) -> None:
    """Raise DaemonError if the daemon at that socket has another version: then that is why we do not understand it."""
    try:
        state = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=registry.MountState)
    except (OSError, msgspec.DecodeError):
        return
    if state.version == __version__:
        return
    numbers, ours = ([int(one) for one in re.findall(r"\d+", version)] for version in (state.version, __version__))
    what_to_do = f"run: kcachefs reload {shlex.quote(state.mountpoint)}" if numbers < ours else "use the newer one"
    runs = f"kcachefs {state.version}" if state.version else "an older kcachefs"
    raise DaemonError(f"{state.mountpoint}: the mount runs {runs}, this is {__version__}; {what_to_do}")
