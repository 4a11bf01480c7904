"""Writes a worker's notifications to the kernel on its behalf: one thread of the supervisor per worker.

To carry out a notification the kernel takes the lock of a directory, and that wait cannot be interrupted, not even by
SIGKILL. The holder of the lock may itself be waiting for an answer from the worker. A worker that wrote the
notification itself and was killed at that moment could not end, nor release its store, until its successor had
answered; and the successor cannot start until the worker has ended. With the relay only a thread of the supervisor
waits, and the successor's answer releases it.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from kcachefs.engines.notifier import MESSAGE_MAX, RESULT, tell_kernel


def start(channel: socket.socket, device: int) -> None:
    """Relay notifications until the worker is gone. Each one is answered with the kernel's errno, 0 for success."""
    threading.Thread(target=_relay, args=(channel, device), name="kcachefs-relay", daemon=True).start()


def _relay(channel: socket.socket, device: int) -> None:
    with channel, contextlib.suppress(OSError):
        while message := channel.recv(MESSAGE_MAX):
            channel.send(RESULT.pack(tell_kernel(device, message)))
