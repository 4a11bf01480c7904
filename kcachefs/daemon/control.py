"""The control socket: one JSON request, one JSON reply, per connection; for the mount's owner and root only.

The kernel says who is asking (SO_PEERCRED). docs/protocols.md lists every verb with its arguments and its result.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kcachefs.daemon import registry
from kcachefs.errors import DaemonError, KcachefsError, UsageError, exit_code_of

if TYPE_CHECKING:
    import trio

    from kcachefs.core.administration import Administration

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_PEER = struct.Struct("iII")
_LINE_MAX = 1 << 20


class Request(msgspec.Struct):
    """A verb and its arguments."""

    verb: str
    arguments: dict[str, Any] = {}


class Reply(msgspec.Struct):
    """A result, or the reason why there is none."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    exit_code: int = 0


async def serve(path: Path, administration: Administration, task_status: trio.TaskStatus[None]) -> None:
    """Reply on the socket at `path`, where nothing may be yet, until cancelled."""
    import trio  # here, because whoever only asks can do without

    with trio.socket.from_stdlib_socket(_listener(path)) as listener:
        task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                connection, _ = await listener.accept()
                nursery.start_soon(_serve_connection, trio.SocketStream(connection), administration)


def _listener(path: Path) -> socket.socket:
    """A socket for its owner only. By the umask: a confined worker cannot change modes."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with _short_address(path) as address:
            listener.bind(address)
        listener.listen()
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


@contextlib.contextmanager
def _short_address(path: Path) -> Iterator[str]:
    """The same file under a name that fits into a socket address, which holds at most 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


async def _serve_connection(stream: trio.SocketStream, administration: Administration) -> None:
    import trio

    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):
            line = b""
            while not line.endswith(b"\n") and len(line) < _LINE_MAX:
                chunk = await stream.receive_some()
                if not chunk:
                    break
                line += chunk
            if not _may_ask(stream):  # checked after reading: closing on a peer that still writes would lose the reply
                await stream.send_all(msgspec.json.encode(Reply(error="not your mount", exit_code=6)) + b"\n")
                return
            reply = await trio.to_thread.run_sync(_reply_to, line, administration)
            await stream.send_all(msgspec.json.encode(reply) + b"\n")


def _may_ask(stream: trio.SocketStream) -> bool:
    raw = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    assert isinstance(raw, bytes)
    uid = _PEER.unpack(raw)[1]
    return uid in (0, os.getuid())


def _reply_to(line: bytes, administration: Administration) -> Reply:
    try:
        request = msgspec.json.decode(line, type=Request)
        result = find_command(administration, request.verb)(**request.arguments)
        return Reply(result=msgspec.Raw(msgspec.json.encode(result)))
    except (KcachefsError, OSError) as error:
        return Reply(error=str(error), exit_code=exit_code_of(error))
    except (msgspec.DecodeError, TypeError) as error:
        return Reply(error=f"the request is malformed: {error}", exit_code=2)
    except Exception as error:
        log.exception("a control request failed")
        return Reply(error=f"{type(error).__name__}: {error}", exit_code=70)


VERBS = (
    *("stats", "ls", "pin", "evict", "prune", "gc", "progress"),
    *("entries", "artifacts", "runs", "tombstones", "events", "history", "note_costs", "reset"),
    *("metrics", "settings", "set", "start"),
)


def find_command(administration: Administration, verb: str) -> Callable[..., Any]:
    """The method of the administration that a verb stands for."""
    if verb not in VERBS:
        raise UsageError(f"{verb!r}: no such command; use one of {', '.join(VERBS)}")
    found: Callable[..., Any] | None = getattr(administration, verb, None)
    if found is None:
        raise UsageError(f"{verb!r}: is for a store that is mounted")
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
    """Ask the daemon of a mount of this user's for a result of that type, as `ask` does."""
    path = registry.socket_path(str(mountpoint))
    raw = ask(path, verb, arguments or {}, seconds=seconds, limit=limit)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise DaemonError(f"{path}: the daemon's answer to {verb!r} is not understood ({error})") from None


def ask(
    path: Path, verb: str, arguments: dict[str, Any], *, seconds: float | None = None, limit: int | None = None
) -> bytes:
    """Send a command to a running mount and return the result as JSON.

    Gives up if the mount is silent for `seconds`, or replies with more than `limit` bytes.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(seconds)
        try:
            with _short_address(path) as address:
                sock.connect(address)
            sock.sendall(msgspec.json.encode(Request(verb, arguments)) + b"\n")
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
        raise DaemonError(reply.error, reply.exit_code)
    return bytes(reply.result)
