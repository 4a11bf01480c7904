"""AsyncContentStore: `ContentStore` for tasks of asyncio or trio. Whatever touches the disk runs in a worker thread.

>>> import asyncio, tempfile
>>> async def main(folder):
...     async with AsyncContentStore(folder) as store:
...         digest = await store.put(b"a kernel")
...         return await store.get(digest), await store.exists(digest)
>>> with tempfile.TemporaryDirectory() as folder:
...     asyncio.run(main(folder))
(b'a kernel', True)
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import IO, ParamSpec, Self, TypeVar

from kcachefs.errors import StoreClosed
from kcachefs.event_loops import in_thread, in_thread_to_the_end
from kcachefs.store.content import ContentStore, Digest, StoreStatistics

P = ParamSpec("P")
T = TypeVar("T")


class AsyncContentStore:
    """A content-addressed store in a directory, open inside `async with`. Tasks may share one.

    Every method does what it does in `ContentStore`. A cancelled task does not wait for its call, but the call is still
    carried out: leaving `async with` waits for every call under way, and so does `close`.
    """

    def __init__(self, directory: str | os.PathLike[str], *, create: bool = True, level: int = 3) -> None:
        self._open = partial(ContentStore, directory, create=create, level=level)
        self._opened: ContentStore | None = None
        self._calls = 0
        self._fewer_calls = threading.Condition()

    async def __aenter__(self) -> Self:
        opened: list[ContentStore] = []
        try:
            await in_thread_to_the_end(lambda: opened.append(self._open()))
        except BaseException:
            if opened:  # the task was cancelled: nobody will leave the block
                await in_thread_to_the_end(opened[0].close)
            raise
        self._opened = opened[0]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def put(self, data: bytes | bytearray | memoryview | IO[bytes]) -> bytes:
        """Store bytes, or everything that a binary file returns, and return the digest."""
        return await self._call(self._store.put, data)

    async def get(self, digest: Digest) -> bytes:
        """All of an object's bytes. Raises ObjectMissing, or ObjectDamaged if they are not what was stored."""
        return await self._call(self._store.get, digest)

    async def read(self, digest: Digest, offset: int, size: int) -> bytes:
        """A range of an object; decodes only the frames that hold it."""
        return await self._call(self._store.read, digest, offset, size)

    async def exists(self, digest: Digest) -> bool:
        """Whether there is such an object."""
        return await self._call(self._store.exists, digest)

    async def verify(self, digest: Digest) -> bool:
        """Read an object from the disk and check it. If it is damaged, set it aside and return False."""
        return await self._call(self._store.verify, digest)

    async def delete(self, digest: Digest) -> bool:
        """Delete an object; its bytes stay if a file of the mount has them too. False if the store did not hold it."""
        return await self._call(self._store.delete, digest)

    async def digests(self) -> AsyncIterator[bytes]:
        """The digest of every object that is not damaged, in order, as of this call."""
        store = self._store
        for digest in await self._call(lambda: list(store.digests())):
            yield digest

    async def statistics(self) -> StoreStatistics:
        """What the store holds."""
        return await self._call(self._store.statistics)

    async def sync(self) -> None:
        """When this returns, everything put so far survives a power cut."""
        await self._call(self._store.sync)

    async def compact(self) -> int:
        """Free the space of deleted objects; returns how many bytes."""
        return await self._call(self._store.compact)

    async def close(self) -> None:
        """Close the store. Closing twice is fine."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await in_thread_to_the_end(self._close_after_calls, opened)

    async def _call(self, method: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._fewer_calls:
            self._calls += 1

        def call() -> T:
            try:
                return method(*args, **kwargs)
            finally:
                with self._fewer_calls:
                    self._calls -= 1
                    self._fewer_calls.notify_all()

        return await in_thread(call)

    def _close_after_calls(self, opened: ContentStore) -> None:
        with self._fewer_calls:
            self._fewer_calls.wait_for(lambda: not self._calls)
        opened.close()

    @property
    def _store(self) -> ContentStore:
        if self._opened is None:
            raise StoreClosed("the store is not open; use it inside `async with`")
        return self._opened
