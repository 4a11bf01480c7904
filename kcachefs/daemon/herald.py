"""Passes a worker's notifications on to the kernel: a thread of the supervisor's, one per worker.

To carry one out the kernel takes the lock of a directory, and waits for it whatever signals come. Who holds that lock
may be waiting for the worker's answer. So a worker that sent it itself and is killed at that moment can not end, nor
let go of its store, before its successor has answered, which can not begin before it has ended (seen: the 161st of 200
kills under load). Here only a thread of the supervisor waits, and the successor sets it free.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from kcachefs.engines.notifier import MESSAGE_MAX, RESULT, written


def start(channel: socket.socket, device: int) -> None:
    """Send what comes until the worker is gone; each is answered with the kernel's errno, 0 if it agreed."""
    threading.Thread(target=_pass_on, args=(channel, device), name="kcachefs-herald", daemon=True).start()


def _pass_on(channel: socket.socket, device: int) -> None:
    with channel, contextlib.suppress(OSError):
        while message := channel.recv(MESSAGE_MAX):
            channel.send(RESULT.pack(written(device, message)))
