"""A bucket: objects with names, in any object store. obstore is used here, in `obstore_clients` and `storage_errors`.

obstore does not survive a fork once it was used: only processes that were started by exec may open a storage. It is
imported in `open_storage`, so that importing this module is harmless. Each request runs in a thread of its own, which
is abandoned when time is up: no call here takes longer than it was given, whatever the network does. Nothing is tried
again unless `retries` says so.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from kcachefs.errors import FleetMissing, FleetTooSlow, FleetTrickles, FleetUnreachable, PackError, UsageError
from kcachefs.fleet import bucket_urls, folder_listing, folder_writing, obstore_clients
from kcachefs.fleet.bucket_urls import BucketUrl
from kcachefs.fleet.storage_errors import translated

PAGE = 1000
"""How many objects one page of a listing holds."""
_CHUNK = 64 << 10
"""The least bytes of a chunk: small, so that a trickling transfer is noticed early."""
_CHUNKS_AHEAD = 64
"""How many chunks are received ahead of their use, at most."""
_SLOWEST = 256 << 10
"""The rate, in bytes per second, below which an upload is abandoned."""
_LATE = b""
_GLANCE = 0.05
"""How often, in seconds, a transfer's projected end is checked."""

Result = TypeVar("Result")


class Stored(NamedTuple):
    """An object that a listing names."""

    key: str
    size: int
    modified: float
    """By the clock of the store, in seconds since 1970."""


class Got(NamedTuple):
    """An object that was read."""

    content: bytes
    modified: float
    """By the clock of the store, in seconds since 1970."""


TRICKLE_BYTES_PER_SECOND = 64 << 10
"""A slower transfer is a fault; a faster one may merely be too large for what it is worth."""


class Patience(NamedTuple):
    """How long a transfer may take, in seconds."""

    first_byte: float = 10.0
    overall: float = 300.0
    budget: float | None = None
    """Give up as soon as the transfer would take longer than this at its rate so far."""


PATIENT = Patience()


class Storage(Protocol):
    """What a fleet needs of an object store. Keys are relative to the URL; every method may raise FleetError."""

    url: str

    def stream(self, key: str, *, limit: int, patience: Patience = PATIENT) -> Iterator[bytes]:
        """The bytes of an object as they arrive. PackError as soon as there are more than `limit`."""

    def get(self, key: str, *, limit: int, patience: Patience = PATIENT) -> Got:
        """The whole object."""

    def put(self, key: str, content: bytes | Path, *, if_absent: bool = False) -> bool:
        """Write an object, whole or not at all. With `if_absent`, False if it existed and the store noticed.

        Some stores silently ignore the condition: True does not prove that nobody else got True.
        """

    def objects(self, prefix: str) -> Iterator[Stored]:
        """The objects below a folder, at any depth, in no order; `prefix` ends with a slash.

        Requests only as many pages, of `PAGE` objects each, as the caller reads.
        """

    def folders(self, prefix: str) -> list[str]:
        """The names of the folders in a folder, sorted. One request."""

    def head(self, key: str) -> Stored: ...

    def unfinished(self, prefix: str) -> Iterator[Stored]:
        """What killed writers left below a folder, where the store itself does not clear it away."""

    def copy(self, key: str, to: str) -> None:
        """Copy an object inside the store. The copy is new, not as old as the original."""

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; one that is gone already is not an error."""


def open_storage(url: str, *, retries: int = 0, timeout: float = 30.0) -> Storage:
    """Open `s3://bucket/prefix`, `gs://…`, `az://container/prefix` or `file:///folder`. Makes no request.

    Credentials come from the environment, or from the role of the instance or pod. `?endpoint=http://host:port` and
    `&region=…` name a store that is not the cloud's. `bucket_urls` says what else a URL may have.
    """
    where = bucket_urls.parse(url)
    try:
        import obstore
    except ImportError:
        raise UsageError("buckets need the package obstore: pip install 'kcachefs[fleet]'") from None
    try:
        client = obstore_clients.client(url, where, retries, timeout)
    except Exception as error:  # obstore's own classes, and ValueError
        raise translated(error, url) from None
    return ObstoreStorage(url, obstore, client, where, timeout)


def is_there(storage: Storage, key: str) -> bool:
    """Whether a bucket has an object."""
    try:
        storage.head(key)
    except FleetMissing:
        return False
    return True


class ObstoreStorage:
    """A storage that uses obstore."""

    def __init__(self, url: str, obstore: Any, client: Any, where: BucketUrl, timeout: float) -> None:
        self.url = url
        self._obstore = obstore
        self._client = client
        self._folder = where.path if where.scheme == "file" else ""
        self._prefix = f"{where.path}/" if where.path and not self._folder else ""
        self._timeout = timeout

    def stream(self, key: str, *, limit: int, patience: Patience = PATIENT) -> Iterator[bytes]:
        return (chunk for chunk in self._stream(key, limit, patience) if isinstance(chunk, bytes))

    def get(self, key: str, *, limit: int, patience: Patience = PATIENT) -> Got:
        modified, *chunks = self._stream(key, limit, patience)
        return Got(b"".join(chunks), modified)

    def _stream(self, key: str, limit: int, patience: Patience) -> Iterator[Any]:
        """Yields the time when the object was written, then its bytes."""
        arriving: queue.Queue[Any] = queue.Queue(_CHUNKS_AHEAD)
        given_up = threading.Event()

        def hand_over(what: Any) -> bool:
            """Queue an item for the reader; False if the reader has given up."""
            while not given_up.is_set():
                with contextlib.suppress(queue.Full):
                    arriving.put(what, timeout=_GLANCE)
                    return True
            return False

        def receive() -> None:
            try:
                found = self._obstore.get(self._client, self._prefix + key)
                size = int(found.meta["size"])
                hand_over((size, found.meta["last_modified"].timestamp()))
                if size > limit:
                    return  # an object that is too large is not even received
                for chunk in found.stream(min_chunk_size=_CHUNK):
                    if not hand_over(bytes(chunk)):
                        return
                hand_over(None)
            except BaseException as error:  # a panic in obstore is not an Exception
                hand_over(error)

        threading.Thread(target=receive, name="kcachefs-transfer", daemon=True).start()
        try:
            yield from self._received(key, arriving, limit, patience)
        finally:
            given_up.set()

    def _received(self, key: str, arriving: queue.Queue[Any], limit: int, patience: Patience) -> Iterator[Any]:
        began = time.monotonic()
        first = self._next(key, arriving, patience.first_byte)
        if first is _LATE:
            raise FleetUnreachable(f"{self.url}: {key}: no answer within {patience.first_byte:g} s")
        total, modified = first
        if total > limit:
            raise PackError(f"{self.url}: {key}: has {total:,} bytes; at most {limit:,} are fetched")
        yield modified
        done = 0
        while True:
            chunk = self._next(key, arriving, _GLANCE)
            if chunk is None:
                return
            done += len(chunk)
            if done > limit:
                raise PackError(f"{self.url}: {key}: has more than {limit:,} bytes, which is too much")
            taken = time.monotonic() - began
            slow = FleetTrickles if done < TRICKLE_BYTES_PER_SECOND * taken else FleetTooSlow
            # A whole object may come a little late. But an answer that never ends is late, however much has arrived.
            is_late = taken > min(patience.overall, patience.budget or patience.overall)
            if is_late and (done != total or chunk is _LATE):
                raise slow(f"{self.url}: {key}: had not arrived after {taken:.1f} s")
            if patience.budget is not None and done < total and _is_hopeless(taken, done / total, patience.budget):
                raise slow(f"{self.url}: {key}: would take longer than {patience.budget:.1f} s")
            if chunk:
                yield chunk

    def _next(self, key: str, arriving: queue.Queue[Any], seconds: float) -> Any:
        """The next item received; _LATE if none came in time."""
        try:
            came = arriving.get(timeout=seconds)
        except queue.Empty:
            return _LATE
        if isinstance(came, BaseException):
            raise translated(came, f"{self.url}: {key}")
        return came

    def put(self, key: str, content: bytes | Path, *, if_absent: bool = False) -> bool:
        from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

        def send() -> bool:
            if self._folder:
                return folder_writing.write(self._folder, key, content, if_absent=if_absent)
            if if_absent:
                try:
                    self._obstore.put(self._client, self._prefix + key, content, mode="create")
                    return True
                except (AlreadyExistsError, PreconditionError):
                    return False
                except NotSupportedError:
                    pass
            self._obstore.put(self._client, self._prefix + key, content)
            return True

        size = content.stat().st_size if isinstance(content, Path) else len(content)
        return self._within(key, send, self._timeout + size / _SLOWEST)

    def objects(self, prefix: str) -> Iterator[Stored]:
        yield from self._listed(prefix, self._folder_pages(prefix) if self._folder else self._pages(prefix))

    def unfinished(self, prefix: str) -> Iterator[Stored]:
        if self._folder:  # elsewhere the bucket's own rule clears them away
            yield from self._listed(prefix, self._folder_pages(prefix, staged=True))

    def _listed(self, prefix: str, pages: Iterator[list[Stored]]) -> Iterator[Stored]:
        while page := self._within(prefix, lambda: next(pages, None)):
            yield from page

    def _pages(self, prefix: str) -> Iterator[list[Stored]]:
        began_with: set[str] = set()
        for listed in self._obstore.list(self._client, self._prefix + prefix, chunk_size=PAGE):
            page = list(map(self._stored, listed))
            # A store that cannot continue a listing sends the same page again, and would do so for ever.
            if any(one.key in began_with for one in page):
                told = "lists the same objects again and again: it ignores where a listing is to go on"
                raise FleetUnreachable(f"{self.url}: {prefix}: {told}")
            began_with |= {one.key for one in page[:1]}
            yield page

    def _folder_pages(self, prefix: str, *, staged: bool = False) -> Iterator[list[Stored]]:
        found = folder_listing.files(os.path.join(self._folder, prefix), staged=staged)
        while page := list(itertools.islice(found, PAGE)):
            yield [Stored(prefix + path, told.st_size, told.st_mtime) for path, told in page]

    def folders(self, prefix: str) -> list[str]:
        def ask() -> list[str]:
            if self._folder:
                return folder_listing.folders(os.path.join(self._folder, prefix))
            found = self._obstore.list_with_delimiter(self._client, (self._prefix + prefix).rstrip("/") or None)
            return sorted(one.rstrip("/").rpartition("/")[2] for one in found["common_prefixes"])

        return self._within(prefix, ask)

    def head(self, key: str) -> Stored:
        return self._within(key, lambda: self._stored(self._obstore.head(self._client, self._prefix + key)))

    def copy(self, key: str, to: str) -> None:
        if self._folder:  # obstore would make a hard link, which is as old as the original
            size, original = self.head(key).size, Path(self._folder, key)
            seconds = self._timeout + size / _SLOWEST
            self._within(key, lambda: folder_writing.write(self._folder, to, original), seconds)
            return
        self._within(key, lambda: self._obstore.copy(self._client, self._prefix + key, self._prefix + to))

    def delete(self, keys: Sequence[str]) -> None:
        def remove() -> None:
            if self._folder:
                folder_writing.delete(self._folder, keys)
                return
            paths = [self._prefix + key for key in keys]
            try:
                self._obstore.delete(self._client, paths)  # many in one request where the store can
            except FileNotFoundError:
                for path in paths:
                    with contextlib.suppress(FileNotFoundError):
                        self._obstore.delete(self._client, path)

        self._within(f"{len(keys)} objects", remove, self._timeout * (1 + len(keys)))

    def _stored(self, found: Any) -> Stored:
        return Stored(found["path"].removeprefix(self._prefix), found["size"], found["last_modified"].timestamp())

    def _within(self, what: str, ask: Callable[[], Result], seconds: float | None = None) -> Result:
        """The result of `ask`, if it comes in time; FleetUnreachable otherwise."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def work() -> None:
            try:
                answers.put((ask(), None))
            except BaseException as error:  # as above
                answers.put((None, error))

        threading.Thread(target=work, name="kcachefs-request", daemon=True).start()
        try:
            answer, error = answers.get(timeout=seconds or self._timeout)
        except queue.Empty:
            raise FleetUnreachable(f"{self.url}: {what}: no answer within {seconds or self._timeout:g} s") from None
        if error is not None:
            raise translated(error, f"{self.url}: {what}")
        result: Result = answer
        return result


def _is_hopeless(taken: float, share: float, budget: float) -> bool:
    """Whether a transfer will not end within its budget. The first eighth of the budget is too early to tell."""
    return taken > budget / 8 and taken > budget * share
