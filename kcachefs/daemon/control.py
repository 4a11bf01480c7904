"""The control socket: one JSON line in, one out. Answers to the mount's owner and to root, by what the kernel says."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import trio

from kcachefs.core.administration import Administration
from kcachefs.errors import DaemonError, KcachefsError, UsageError, exit_code_of

log = logging.getLogger(__name__)

_PEER = struct.Struct("iII")
_LINE_MAX = 1 << 20


class Request(msgspec.Struct):
    """What is asked: a command and its arguments."""

    verb: str
    arguments: dict[str, Any] = {}


class Answer(msgspec.Struct):
    """The result, or why there is none."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    exit_code: int = 0


async def serve(
    path: Path, administration: Administration, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer on the socket at `path` until cancelled."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        with _within_reach(path) as address:
            await listener.bind(address)
        os.chmod(path, 0o600)
        listener.listen()
        task_status.started()
        async with trio.open_nursery() as nursery:
            while True:
                connection, _ = await listener.accept()
                nursery.start_soon(_converse, trio.SocketStream(connection), administration)


@contextlib.contextmanager
def _within_reach(path: Path) -> Iterator[str]:
    """The same file under a name that is short enough for a socket's address, which ends at 107 bytes."""
    folder = os.open(path.parent, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


async def _converse(stream: trio.SocketStream, administration: Administration) -> None:
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):
            line = b""
            while not line.endswith(b"\n") and len(line) < _LINE_MAX:
                chunk = await stream.receive_some()
                if not chunk:
                    break
                line += chunk
            if not _may_ask(stream):  # said after it was heard: hanging up on someone who speaks loses the answer too
                await stream.send_all(msgspec.json.encode(Answer(error="not your mount", exit_code=6)) + b"\n")
                return
            answer = await trio.to_thread.run_sync(_answer, line, administration)
            await stream.send_all(msgspec.json.encode(answer) + b"\n")


def _may_ask(stream: trio.SocketStream) -> bool:
    raw = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    assert isinstance(raw, bytes)
    uid = _PEER.unpack(raw)[1]
    return uid in (0, os.getuid())


def _answer(line: bytes, administration: Administration) -> Answer:
    try:
        request = msgspec.json.decode(line, type=Request)
        result = command(administration, request.verb)(**request.arguments)
        return Answer(result=msgspec.Raw(msgspec.json.encode(result)))
    except (KcachefsError, OSError) as error:
        return Answer(error=str(error), exit_code=exit_code_of(error))
    except (msgspec.DecodeError, TypeError) as error:
        return Answer(error=f"the request makes no sense: {error}", exit_code=2)
    except Exception as error:
        log.exception("a control request failed")
        return Answer(error=f"{type(error).__name__}: {error}", exit_code=70)


COMMANDS = ("stats", "ls", "pin", "evict", "prune", "gc")


def command(administration: Administration, verb: str) -> Callable[..., Any]:
    if verb not in COMMANDS:
        raise UsageError(f"there is no command {verb!r}")
    found: Callable[..., Any] = getattr(administration, verb)
    return found


def ask(path: Path, verb: str, arguments: dict[str, Any]) -> bytes:
    """Send a command to a running mount; the result, as JSON."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            with _within_reach(path) as address:
                sock.connect(address)
            sock.sendall(msgspec.json.encode(Request(verb, arguments)) + b"\n")
            raw = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        except OSError as error:
            raise DaemonError(f"{path}: the daemon does not answer ({error.strerror}); see: kcachefs status") from None
    try:
        answer = msgspec.json.decode(raw, type=Answer)
    except msgspec.DecodeError:
        raise DaemonError(f"{path}: the daemon hung up; see its log: kcachefs status") from None
    if answer.error:
        failure = DaemonError(answer.error)
        failure.exit_code = answer.exit_code
        raise failure
    return bytes(answer.result)
