"""Notifies the kernel of changes: from a thread of its own, never from the one that answers requests.

The kernel takes directory locks to carry out an invalidation, and a lookup that holds one of them may be waiting for
the request thread. So the new state is published first, and all our locks are dropped. Only then is the kernel
notified: by the supervisor's notification relay if there is one (its module says why), else by this thread itself.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import socket
import struct
import threading

from kcachefs.engines import protocol as p

log = logging.getLogger(__name__)

MESSAGE_MAX = 4096
RESULT = struct.Struct("<i")
"""The relay's reply to a message: the kernel's errno, or 0."""


class Notifier:
    """A queue of notifications and the thread that sends them."""

    def __init__(self, device: int, relay: socket.socket | None = None) -> None:
        self._device = device
        self._relay = relay
        self._talking = threading.Lock()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kcachefs-notify", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def entry_gone(self, parent: int, name: bytes) -> None:
        """A name no longer leads where the kernel thinks: make it look the name up again. Open files are left alone."""
        body = p.INVAL_ENTRY_OUT.pack(parent, len(name), 0) + name + b"\0"
        self._queue.put(_message(p.Notify.INVAL_ENTRY, body))

    def resend(self) -> None:
        """Ask for every request that was taken and not answered. Sent at once: it makes the kernel wait for nothing."""
        os.write(self._device, _message(p.Notify.RESEND, b""))

    def knows(self, ino: int) -> bool:
        """Whether the kernel holds an inode. If so, it will ask for the attributes again, but keeps pages and names."""
        result = self._tell(_message(p.Notify.INVAL_INODE, p.INVAL_INODE_OUT.pack(ino, -1, 0)))
        return result not in (errno.ENOENT, errno.ENODEV)

    def _run(self) -> None:
        while (message := self._queue.get()) is not None:
            # ENOENT: the kernel did not know the name anyway. ENODEV: the mount is gone.
            if (result := self._tell(message)) not in (0, errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
                log.warning("a notification was refused: %s", os.strerror(result))

    def _tell(self, message: bytes) -> int:
        """Send a message; returns the kernel's errno, or 0."""
        if self._relay is not None:
            with self._talking, contextlib.suppress(OSError):  # without a supervisor we do it ourselves
                self._relay.send(message)
                if answer := self._relay.recv(RESULT.size):
                    result: int = RESULT.unpack(answer)[0]
                    return result
        return tell_kernel(self._device, message)


def tell_kernel(device: int, message: bytes) -> int:
    """Write a message to the device; returns the kernel's errno, or 0."""
    try:
        os.write(device, message)
    except OSError as error:
        return error.errno or 0
    return 0


def _message(code: int, body: bytes) -> bytes:
    return p.OUT_HEADER.pack(16 + len(body), code, 0) + body
