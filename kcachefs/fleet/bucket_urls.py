"""URLs of buckets: what each part means, and what is wrong with one. No part of a URL is ever ignored."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from kcachefs.errors import UsageError

_OPTIONS = {"s3": ("endpoint", "region"), "gs": (), "az": ("endpoint",), "file": ()}
SCHEMES = tuple(_OPTIONS)
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""The environment variables that name a store's endpoint, by scheme; the first one that is set counts."""


class BucketUrl(NamedTuple):
    """A bucket, or a part of one. `%20` in the URL is a blank here, as in every URL."""

    scheme: str
    bucket: str
    """The bucket's name; empty if the URL is that of a folder."""
    path: str
    """The path of the folder, or the prefix in a bucket, without slashes around it."""
    options: dict[str, str]


def parse(url: str) -> BucketUrl:
    """What a URL means; UsageError if it is not a bucket's, or has something that would be ignored."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _no_bucket(url) from None
    scheme = parts.scheme
    if "@" in parts.netloc or any(_may_tell_secret(one) for pair in _pairs(parts) for one in pair):
        raise _secret(f"{scheme}://…")
    if scheme not in SCHEMES or not url.startswith(f"{scheme}://"):
        raise _no_bucket(url)
    if scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise UsageError(f"{url}: needs three slashes: file:///folder")
    if scheme != "file" and not parts.netloc:
        raise UsageError(f"{url}: names no bucket; write {scheme}://BUCKET/PREFIX")
    if "#" in url:
        raise UsageError(f"{url}: a bucket has nothing after a #; if it is part of a name, write %23")
    path = _decoded(url, parts.path)
    found = BucketUrl(scheme, parts.netloc, path if scheme == "file" else path.strip("/"), _options(url, parts))
    endpoint(found)
    return found


def endpoint(where: BucketUrl) -> str:
    """The endpoint of a store that is not the cloud's own, by the URL or the environment; empty if neither has one."""
    if given := where.options.get("endpoint", ""):
        return _checked(f"endpoint={given}", given)
    name = next((one for one in _ENDPOINTS.get(where.scheme, ()) if os.environ.get(one)), "")
    return _checked(f"{name}={os.environ[name]}", os.environ[name]) if name else ""


def _checked(told: str, address: str) -> str:
    if _may_tell_secret(address):
        raise _secret(told.partition("=")[0])
    if not _is_address(address):
        raise UsageError(f"{told}: is not an endpoint; write http://HOST:PORT or https://HOST")
    scheme = urlsplit(address).scheme
    return scheme + address[len(scheme) :]  # in lower case, as obstore wants it


def _may_tell_secret(text: str) -> bool:
    """Whether a text may contain credentials. An @ after the host of an address belongs to a name."""
    return "@" in text and not _is_address(text)


def _is_address(text: str) -> bool:
    """Whether a text is the address of a server, without credentials."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    is_http = parts.scheme in ("http", "https") and text[len(parts.scheme) :].startswith("://")
    is_clean = text.isprintable() and " " not in text and "@" not in parts.netloc
    return is_http and is_clean and bool(parts.hostname)


def _secret(where: str) -> UsageError:
    """The error for a URL that may contain credentials. It does not repeat them: they would end up in logs."""
    return UsageError(f"{where}: has an @; everybody sees a URL, so put credentials into the environment instead")


def _no_bucket(url: str) -> UsageError:
    return UsageError(f"{url}: is not a bucket; write s3://…, gs://…, az://… or file:///…")


def _decoded(url: str, path: str) -> str:
    try:
        found = unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise UsageError(f"{url}: what follows a % is not UTF-8; a % in a name is written %25") from None
    # urlsplit silently drops some control characters, so look at the URL too.
    if any(ord(one) < 0x20 or ord(one) == 0x7F for one in url + found):
        raise UsageError(f"{url}: has a control character, which no name in a bucket may have")
    return found


def _options(url: str, parts: SplitResult) -> dict[str, str]:
    if "?" not in url:
        return {}
    known = _OPTIONS[parts.scheme]
    may = f"the options are {' and '.join(known)}" if known else f"{parts.scheme}:// has none"
    options: dict[str, str] = {}
    for name, value in _pairs(parts) or [("", "")]:
        if not name:
            raise UsageError(f"{url}: names no option after the ?; if it is part of a name, write %3F")
        if name not in known:
            raise UsageError(f"{url}: {name}: is not an option of a bucket; {may}")
        if not value or name in options:
            raise UsageError(f"{url}: {name}: needs one value, like ?{name}=…")
        options[name] = value
    return options


def _pairs(parts: SplitResult) -> list[tuple[str, str]]:
    return parse_qsl(parts.query, keep_blank_values=True)
