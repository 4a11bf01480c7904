"""Where the page's server listens: an address, or a socket in the filesystem."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kcachefs.errors import MountDenied, MountError, UsageError

_BACKLOG = 64


@dataclass(frozen=True, slots=True)
class Place:
    """An address and port, or the path of a socket."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can reach it."""
        if self.path is not None or self.host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False


def parse(text: str) -> Place:
    """
    >>> parse("127.0.0.1:0"), parse("8080").host, parse("[::1]:80").host, parse("unix:/run/page").path
    (Place(host='127.0.0.1', port=0, path=None), '127.0.0.1', '::1', PosixPath('/run/page'))
    """
    if text.startswith("unix:"):
        if len(text) == len("unix:"):
            raise UsageError("--listen unix: has no path; for example unix:/run/user/1000/kcachefs.sock")
        return Place(path=Path(os.path.abspath(text.removeprefix("unix:"))))
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {text}: is neither ADDRESS:PORT nor unix:PATH; for example 127.0.0.1:8080")
    return Place(host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port))


@contextlib.contextmanager
def listening(place: Place) -> Iterator[socket.socket]:
    """A socket that listens at the place during the scope."""
    if place.path is not None:
        with _unix_socket(place.path) as made:
            yield made
        return
    try:
        family, _, _, _, address = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"--listen {place.host}: {error.strerror or error}") from None
    with made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(address)
        except OSError as error:
            raise _refusal(f"{place.host}:{place.port}", error) from None
        made.listen(_BACKLOG)
        yield made


@contextlib.contextmanager
def _unix_socket(path: Path) -> Iterator[socket.socket]:
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        before = os.umask(0o177)
        try:
            made.bind(str(path))
        except OSError as error:
            raise _refusal(str(path), error) from None
        finally:
            os.umask(before)
        made.listen(_BACKLOG)
        try:
            yield made
        finally:
            with contextlib.suppress(OSError):
                path.unlink()


def _refusal(place: str, error: OSError) -> MountError:
    kind = MountDenied if isinstance(error, PermissionError) else MountError
    return kind(f"{place}: cannot listen there ({error.strerror or error}); choose another with --listen")


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that is gone, and nothing else."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
