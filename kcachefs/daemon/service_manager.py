"""Tells a service manager such as systemd when the mount is ready: one datagram to $NOTIFY_SOCKET."""

from __future__ import annotations

import contextlib
import socket

from kcachefs import config


def notify(message: str) -> None:
    """Send `message`; does nothing where no service manager listens."""
    address = config.notify_socket()
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)
