"""Threads and processes of any user that ask the filesystem; their result or exception comes back.

To fork a process of pytest's size takes ten milliseconds. To the kernel a thread is as good a caller: its user, groups,
mask and working directory are its own where it asks the kernel itself, past the C library, which would change them in
all threads. Where a lock, a limit, a signal or an end is meant, it takes a process.
"""

from __future__ import annotations

import gc
import os
import pickle
import platform
import select
import signal
import sys
import threading
import traceback
import warnings
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

import pytest

from kcachefs import libc
from tests.waiting import PATIENCE

T = TypeVar("T")

_SET_GROUPS, _SET_GROUP_IDS, _SET_USER_IDS, _UNSHARE = {
    "aarch64": (159, 149, 147, 97),
    "x86_64": (116, 119, 117, 272),
}[platform.machine()]
_CLONE_FS = 0x200


@dataclass(frozen=True)
class Identity:
    """User, group and supplementary groups; the system need not know them."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    def assume(self) -> None:
        os.setgroups(self.groups)
        os.setgid(self.gid)
        os.setuid(self.uid)

    def assume_in_thread(self) -> None:
        """Only the calling thread becomes this user. It cannot go back."""
        libc.syscall(_SET_GROUPS, len(self.groups), array("I", self.groups).tobytes())
        libc.syscall(_SET_GROUP_IDS, self.gid, self.gid, self.gid)
        libc.syscall(_SET_USER_IDS, self.uid, self.uid, self.uid)


OTHER = Identity(uid=42042, gid=42043, groups=(42044,))
STRANGER = Identity(uid=42052, gid=42053)


class Child(Generic[T]):
    """A forked process that runs one function. `result` waits for it; leaving the scope kills it."""

    def __init__(self, function: Callable[[], T], identity: Identity | None = None) -> None:
        receive, send = os.pipe()
        with warnings.catch_warnings():
            # pytest's watchdog is a thread, but it holds no lock that a child needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            gc.freeze()  # to collect garbage would copy every page of what the parent has
            os.close(receive)
            _run_and_exit(function, identity, send)
        os.close(send)
        self._receive = receive
        self._gathered = False

    def result(self, timeout: float = PATIENCE) -> T:
        """Return what the function returned, or raise what it raised."""
        said = bytearray()
        while True:
            if not select.select([self._receive], [], [], timeout)[0]:
                raise TimeoutError(f"process {self.pid} has not ended after {timeout:.0f} s")
            if not (piece := os.read(self._receive, 1 << 20)):
                break
            said += piece
        status = self._gather()
        if not said:
            raise ChildProcessError(f"process {self.pid} ended without a result, wait status {status}")
        outcome, value, story = pickle.loads(said)
        if outcome == "returned":
            return value  # type: ignore[no-any-return]
        if outcome == "skipped":
            pytest.skip(value)
        value.add_note(f"in a child process:\n{story}")
        raise value

    def is_ready(self, timeout: float) -> bool:
        """Whether it has ended, waiting for that long at most."""
        return bool(select.select([self._receive], [], [], timeout)[0])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._gather()

    def _gather(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self._gathered = True
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._gathered:
            self.kill()
        os.close(self._receive)


def in_child(function: Callable[[], T], identity: Identity | None = None) -> T:
    """Run the function in its own process, as `identity` if given."""
    with Child(function, identity) as child:
        return child.result()


def in_thread(function: Callable[[], T], identity: Identity | None = None) -> T:
    """Run the function in its own thread, as `identity` if given. What it opens it has to close."""
    outcome: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            libc.syscall(_UNSHARE, _CLONE_FS)
            if identity is not None:
                identity.assume_in_thread()
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    before = _open_descriptors()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    result, error = outcome.pop()
    if error is not None:
        raise error
    left = {number: name for number, name in _open_descriptors().items() if before.get(number) != name}
    assert not left, f"left open: {left}"
    return result  # type: ignore[return-value]


def _open_descriptors() -> dict[str, str]:
    names = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the list itself
            names[number] = os.readlink(f"/proc/self/fd/{number}")
    return names


def _run_and_exit(function: Callable[[], object], identity: Identity | None, send: int) -> None:
    try:
        said = _outcome(function, identity)
        with os.fdopen(send, "wb") as pipe:
            pipe.write(said)
    finally:
        os._exit(0)


def _outcome(function: Callable[[], object], identity: Identity | None) -> bytes:
    try:
        if identity is not None:
            identity.assume()
        return pickle.dumps(("returned", function(), ""))
    except pytest.skip.Exception as skipped:
        return pickle.dumps(("skipped", str(skipped), ""))
    except BaseException as error:
        story = traceback.format_exc()
        try:
            said = pickle.dumps(("raised", error, story))
            pickle.loads(said)
        except Exception:
            said = pickle.dumps(("raised", RuntimeError(f"{type(error).__name__}: {error}"), story))
        sys.stderr.flush()
        return said
