"""Fetches one pack by its URL, from a bucket or a web server, into a temporary file."""

from __future__ import annotations

import http.client
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from kcachefs.errors import FleetMissing, FleetRefused, FleetUnreachable, PackError, UsageError, or_no_space
from kcachefs.fleet import bucket_urls
from kcachefs.fleet.object_storage import open_storage
from kcachefs.fleet.scratch_folder import scratch_folder
from kcachefs.printable import printable

FETCHED_MAX = 64 << 30
"""The most bytes fetched of a pack that is given by its URL."""
_WEB = ("https", "http")
_CHUNK = 1 << 20
_TIMEOUT = 60.0
_WORDS_MAX = 200
"""The most characters quoted from a server's message."""


def is_url(text: str) -> bool:
    """Whether a text names something to fetch rather than a file.

    >>> is_url("s3://bucket/warm.kcp"), is_url("warm.kcp"), is_url("/tmp/a:b")
    (True, False, False)
    """
    return text.partition("://")[0] in (*bucket_urls.SCHEMES, *_WEB) and "://" in text


def refuse_unknown_scheme(text: str) -> None:
    """Raise UsageError for what looks like a URL, but with a scheme that we cannot fetch from."""
    scheme, colon, _ = text.partition("://")
    if colon and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        known = ", ".join(f"{one}://" for one in (*bucket_urls.SCHEMES, *_WEB))
        raise UsageError(f"{text}: {scheme}:// is not known; use one of {known}")


@contextmanager
def fetched(url: str, progress: Callable[[int], None] = lambda count: None) -> Iterator[Path]:
    """The pack at a URL as a local file, as long as the context lasts. Nothing in it is checked yet.

    Errors about the file are raised again with the URL in its place, because the user does not know the file.
    """
    chunks = _from_web(url) if url.partition("://")[0] in _WEB else _from_bucket(url)
    with scratch_folder() as folder:
        path = folder / "fetched.kcp"
        try:
            with open(path, "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    progress(len(chunk))
        except OSError as error:
            raise or_no_space(error, tempfile.gettempdir()) from None
        try:
            yield path
        except PackError as error:
            raise type(error)(str(error).replace(str(path), url)) from None


def _from_bucket(url: str) -> Iterator[bytes]:
    bucket_urls.parse(url)  # checks the whole URL before a part of it is left out below
    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    if not name:
        raise UsageError(f"{url}: names a folder; name the pack in it, or use: kcachefs fleet pull {url}")
    yield from open_storage(parts._replace(path=folder or "/").geturl()).stream(unquote(name), limit=FETCHED_MAX)


def _from_web(url: str) -> Iterator[bytes]:
    asked, done = _quoted(url), 0
    try:
        with urllib.request.urlopen(asked, timeout=_TIMEOUT) as reply:
            total = reply.length
            while chunk := reply.read(_CHUNK):
                done += len(chunk)
                if done > FETCHED_MAX:
                    raise PackError(f"{url}: has more than {FETCHED_MAX:,} bytes")
                yield chunk
        if total is not None and done < total:
            raise FleetUnreachable(f"{url}: the server sent {done:,} of {total:,} bytes; try again")
    except urllib.error.HTTPError as error:
        kind = {404: FleetMissing, 401: FleetRefused, 403: FleetRefused}.get(error.code, FleetUnreachable)
        raise kind(f"{url}: {error.code} {_words(error.reason)}") from None
    except urllib.error.URLError as error:
        raise FleetUnreachable(f"{url}: {_words(error.reason)}") from None
    except OSError as error:
        raise FleetUnreachable(f"{url}: {_words(error)}") from None
    except (http.client.HTTPException, ValueError) as error:
        # The URL is fine: the fault lies with the server, or with the one that it redirects to.
        raise FleetUnreachable(f"{url}: the server's answer is not HTTP: {_words(error)}") from None


def _quoted(url: str) -> str:
    """The URL of a web server as it is requested; UsageError if it is not one.

    >>> _quoted("http://host/a b/ü%20.kcp?x=ö")
    'http://host/a%20b/%C3%BC%20.kcp?x=%C3%B6'
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        path, query = (quote(one, safe="%/:@!$&'()*+,;=?~") for one in (parts.path, parts.query))
        is_port = parts.port != 0
    except ValueError:  # and UnicodeError, which is one
        raise UsageError(f"{url}: is not a URL; write {url.partition(':')[0]}://HOST/PACK") from None
    if not host or not is_port or any(one.isspace() or not one.isprintable() for one in parts.netloc):
        raise UsageError(f"{url}: names no server; write {parts.scheme}://HOST/PACK")
    if "@" in parts.netloc:
        raise UsageError(f"{parts.scheme}://…@{parts.hostname}: credentials in a URL are not used; leave them out")
    return parts._replace(path=path, query=query, fragment="").geturl()


def _words(reason: object) -> str:
    """A server's message, made safe to show: its operator chose the words."""
    told = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return printable(told or type(reason).__name__)[:_WORDS_MAX]
