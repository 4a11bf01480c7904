"""Who may see the page: a token, the Host header, and the header that a request for a change must carry.

The page shows names of kernels and lines of source. Its port accepts connections from every user of the machine, and
any web site can make a browser send requests to it. The token keeps out the other users. The Host check keeps out a
site whose name was made to resolve to this machine, which the browser would take for the same origin. Changes need a
header of their own, which no other site can make a browser send.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from kcachefs.errors import UsageError

CHANGE_HEADER = b"x-kcachefs-change"
_TOKEN_BYTES = 24
_TOKEN_MIN = 16


class Access:
    """Decides about requests. Header names are lower case."""

    def __init__(self, token: str, hosts: Iterable[str] = (), prefix: str = "") -> None:
        self.token = token
        self.prefix = prefix
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        digest = hashlib.blake2b(token.encode(), digest_size=4).hexdigest()
        self._cookie = f"kcachefs-{digest}"
        """Browsers send cookies of a host to all of its ports, so two pages need two names."""

    def is_host_known(self, host: bytes | None) -> bool:
        """Whether the browser used a name or address of this server. The port may be that of a tunnel."""
        name = _host_name((host or b"").decode("latin-1"))
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # not a name, so nobody can have made it resolve to this machine

    def is_token_right(self, headers: Mapping[bytes, bytes], query: Mapping[str, str]) -> bool:
        """Whether the token is right: in the link, in the cookie it was exchanged for, or as a bearer token."""
        given = [query.get("token", "")]
        scheme, _, value = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() == "bearer":
            given.append(value.strip())
        given += _cookies(headers.get(b"cookie", b"").decode("latin-1"), self._cookie)
        return sum(hmac.compare_digest(one.encode(), self.token.encode()) for one in given) > 0

    def cookie(self) -> str:
        """The cookie that a browser gets in exchange for the token in its link."""
        return f"{self._cookie}={self.token}; Path={self.prefix or '/'}; HttpOnly; SameSite=Strict"

    def is_change_meant(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request that changes something comes from the page itself."""
        if CHANGE_HEADER not in headers:
            return False
        origin = headers.get(b"origin")
        if origin is not None and origin.partition(b"://")[2] != headers.get(b"host"):
            return False
        return headers.get(b"sec-fetch-site", b"same-origin") in (b"same-origin", b"none")


def new_token() -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES)


def token_in(path: Path) -> str:
    """The token in a file, for links and scrapers that outlast a restart; creates one if the file does not exist."""
    try:
        made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        found = path.read_text(errors="replace").strip()
        if len(found) < _TOKEN_MIN or not found.isascii() or not found.isprintable() or set(found) & set(' ";,\\'):
            raise UsageError(f"{path}: holds no token; delete it, and a new one is made") from None
        return found
    with open(made, "w") as file:
        file.write(new_token() + "\n")
    return token_in(path)


def _cookies(header: str, name: str) -> list[str]:
    """The values of a cookie. Ours needs no quotes; http.cookies takes seconds to unquote those of a hostile client.

    >>> _cookies("a=b; kcachefs-1=token; kcachefs-1=older", "kcachefs-1")
    ['token', 'older']
    """
    pairs = (one.strip().partition("=") for one in header.split(";"))
    return [value for found, _, value in pairs if found == name]


def _host_name(host: str) -> str:
    """A Host header without its port.

    >>> _host_name("LocalHost:80"), _host_name("[::1]:80"), _host_name("[::1]"), _host_name("10.0.0.1")
    ('localhost', '::1', '::1', '10.0.0.1')
    """
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
