"""Forked processes of any user that ask the filesystem; their result or exception comes back."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

import pytest

from tests.waiting import PATIENCE

T = TypeVar("T")


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
