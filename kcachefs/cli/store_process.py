"""A store that is not mounted, opened in a process of its own that answers one question after the other.

LMDB reads through a map, so a damaged catalog can kill the process that reads it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from kcachefs.cli.ending import NUMBERS, at_the_end, dying_when_told_to
from kcachefs.daemon import control
from kcachefs.errors import DaemonError, KcachefsError, StoreError, describe, exit_code_of
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.core import Filesystem

_LENGTH = struct.Struct("<Q")
_BUG = 70
_IDLE_SECONDS = 5.0
"""How long the store stays open without a request."""


def ask(store: Path, verb: str, arguments: dict[str, Any]) -> bytes:
    """The answer of the store's process as JSON. The process starts at the first question and ends with the command."""
    key = os.path.realpath(store)
    if key not in _running:
        _running[key] = StoreProcess(store)
        at_the_end.callback(end, store)
    return _running[key].ask(verb, arguments)


def end(store: Path) -> None:
    """Have the store closed, and raise the error if that fails. Does nothing if no process has the store open."""
    process = _running.pop(os.path.realpath(store), None)
    if process is not None:
        process.close()


@contextmanager
def opened(store: Path, *, create: bool = False) -> Iterator[Filesystem]:
    """The filesystem of a store that is not mounted, in this process."""
    from kcachefs.core import Filesystem
    from kcachefs.store import Options
    from kcachefs.store import Store as OpenStore

    with dying_when_told_to(), OpenStore(store, Options(create=create)) as found:
        fs = Filesystem(found)
        fs.settle()
        yield fs


class StoreProcess:
    """The store's process, as its parent sees it. One thread at a time."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._socket, theirs = socket.socketpair()
        self._child = os.fork()
        if self._child == 0:
            self._socket.close()
            with dying_when_told_to():
                _serve_and_exit(theirs, store)
        theirs.close()

    def ask(self, verb: str, arguments: dict[str, Any]) -> bytes:
        request = control.encoded(verb, arguments)
        try:
            _send(self._socket, request)
            raw = _receive(self._socket)
        except (BrokenPipeError, ConnectionResetError):
            raw = None
        except BaseException:  # we must end, so the process has to stop in the middle of its work
            os.kill(self._child, signal.SIGTERM)
            raise
        if raw is None:
            end(self._store)
            raise StoreError(f"{self._store}: the process that read it has ended")
        return _result(raw)

    def close(self) -> None:
        """Have the process close the store, wait for that, and raise the error if it fails."""
        raw = None
        try:
            with suppress(OSError):  # the process has ended
                self._socket.shutdown(socket.SHUT_WR)
                raw = _receive(self._socket)
        finally:
            self._socket.close()
            code = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        if code < 0 and -code not in NUMBERS:
            ended = signal.Signals(-code).name
            reason = f"its catalog is damaged ({ended} while reading it); run: kcachefs fsck --repair"
            raise StoreError(f"{self._store}: {reason}")
        if raw is not None:
            _result(raw)
        elif code > 0:
            sys.exit(code)


_running: dict[str, StoreProcess] = {}
"""The running processes, by the real paths of their stores."""


def _result(raw: bytes) -> bytes:
    reply = msgspec.json.decode(raw, type=control.Reply)
    if reply.error:
        raise DaemonError(reply.error, reply.exit_code)
    return bytes(reply.result)


def _serve_and_exit(connection: socket.socket, store: Path) -> NoReturn:
    code = _BUG
    try:
        try:
            with ExitStack() as stack:
                _serve(connection, store, stack)
        except (KcachefsError, OSError) as error:
            with suppress(BrokenPipeError, ConnectionResetError):  # nobody waits for the reply any more
                _send(connection, msgspec.json.encode(_failure(error)))
        code = 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def _serve(connection: socket.socket, store: Path, stack: ExitStack) -> None:
    from kcachefs.core.insight import Insight

    insight = None
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    while True:
        if insight is not None and not waiting.poll(_IDLE_SECONDS * 1000):
            stack.close()  # the result is being printed, and somebody may want to mount the store meanwhile
            insight = None
        if (raw := _receive(connection)) is None:
            return
        request = msgspec.json.decode(raw, type=control.Request)
        try:
            if insight is None:
                insight = Insight(stack.enter_context(opened(store)))
            result = control.find_command(insight, request.verb)(**request.arguments)
            reply = control.Reply(msgspec.Raw(msgspec.json.encode(result)))
        except (KcachefsError, OSError) as error:
            reply = _failure(error)
        _send(connection, msgspec.json.encode(reply))


def _failure(error: Exception) -> control.Reply:
    return control.Reply(error=printable(describe(error)), exit_code=exit_code_of(error))


def _send(connection: socket.socket, raw: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(raw)) + raw)


def _receive(connection: socket.socket) -> bytes | None:
    """The next message; None if the other side has ended, or ends in the middle of a message."""
    head = _take(connection, _LENGTH.size)
    return _take(connection, *_LENGTH.unpack(head)) if head is not None else None


def _take(connection: socket.socket, count: int) -> bytes | None:
    found = bytearray(count)
    rest = memoryview(found)
    while rest:
        if not (taken := connection.recv_into(rest)):
            return None
        rest = rest[taken:]
    return bytes(found)
