"""Readiness for a service manager: one datagram to $NOTIFY_SOCKET, where it is set."""

from __future__ import annotations

import contextlib
import socket

from kcachefs import config


def notify(message: str) -> None:
    """Say `message`; nothing happens where nobody listens."""
    address = config.notify_socket()
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)
