"""Fetches one pack by its URL, from a bucket or a web server, into a file of its own that goes when it was used."""

from __future__ import annotations

import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kcachefs.errors import FleetMissing, FleetRefused, FleetUnreachable, PackError, UsageError
from kcachefs.fleet import bucket_urls
from kcachefs.fleet.object_storage import open_storage

FETCHED_MAX = 64 << 30
"""The most bytes of a pack that somebody names by its URL."""
_WEB = ("https", "http")
_CHUNK = 1 << 20
_TIMEOUT = 60.0


def is_url(text: str) -> bool:
    """Whether it names something to fetch, and no file.

    >>> is_url("s3://bucket/warm.kcp"), is_url("warm.kcp"), is_url("/tmp/a:b")
    (True, False, False)
    """
    return text.partition("://")[0] in (*bucket_urls.SCHEMES, *_WEB) and "://" in text


@contextmanager
def fetched(url: str, progress: Callable[[int], None] = lambda count: None) -> Iterator[Path]:
    """The pack at a URL as a local file, as long as the context lasts. Nothing of it is checked yet."""
    with tempfile.TemporaryDirectory(prefix="kcachefs-") as folder:
        path = Path(folder, "fetched.kcp")
        with open(path, "wb") as file:
            for chunk in _from_web(url) if urlsplit(url).scheme in _WEB else _from_bucket(url):
                file.write(chunk)
                progress(len(chunk))
        yield path


def _from_bucket(url: str) -> Iterator[bytes]:
    bucket_urls.parse(url)  # before a part of it is left out below
    parts = urlsplit(url)
    folder, _, name = parts.path.rpartition("/")
    if not name:
        raise UsageError(f"{url}: names a folder; name the pack in it, or use: kcachefs fleet pull {url}")
    yield from open_storage(parts._replace(path=folder or "/").geturl()).stream(unquote(name), limit=FETCHED_MAX)


def _from_web(url: str) -> Iterator[bytes]:
    done = 0
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as reply:
            while chunk := reply.read(_CHUNK):
                done += len(chunk)
                if done > FETCHED_MAX:
                    raise PackError(f"{url}: has more than {FETCHED_MAX:,} bytes")
                yield chunk
    except urllib.error.HTTPError as error:
        kind = {404: FleetMissing, 401: FleetRefused, 403: FleetRefused}.get(error.code, FleetUnreachable)
        raise kind(f"{url}: {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise FleetUnreachable(f"{url}: {error.reason}") from None
    except (TimeoutError, ConnectionError) as error:
        raise FleetUnreachable(f"{url}: {error}") from None
