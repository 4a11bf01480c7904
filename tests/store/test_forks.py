"""A store and forks: it stays its opener's, whatever a forked child does with what it inherited."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kcachefs import AsyncContentStore, ContentStore
from kcachefs.errors import StoreBusy, StoreClosed, StoreError
from tests.waiting import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def contents(name: str) -> list[bytes]:
    return [f"{name} {number} ".encode() * 500 for number in range(20)]


def in_child(use: Callable[[], object]) -> None:
    """Call `use` in a forked child, which must return."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE))  # waiting for a lock is not interrupted by anything less
        code = 1
        try:
            use()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def files(store: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in store.rglob("*") if path.is_file()}


USES: dict[str, Callable[[ContentStore, bytes], object]] = {
    "put": lambda store, digest: store.put(b"x"),
    "get": lambda store, digest: store.get(digest),
    "read": lambda store, digest: store.read(digest, 0, 1),
    "exists": lambda store, digest: store.exists(digest),
    "verify": lambda store, digest: store.verify(digest),
    "delete": lambda store, digest: store.delete(digest),
    "digests": lambda store, digest: list(store.digests()),
    "statistics": lambda store, digest: store.statistics(),
    "sync": lambda store, digest: store.sync(),
    "compact": lambda store, digest: store.compact(),
}


def test_no_use_in_a_child_reaches_the_parents_store(tmp_path: Path) -> None:
    public = {name for name in vars(ContentStore) if not name.startswith("_")}
    assert public == {*USES, "close"}
    with ContentStore(tmp_path / "store") as store:
        digest = store.put(b"a kernel")
        begun = store.digests()
        assert next(begun) == digest

        def go_on(store: ContentStore, digest: bytes) -> bytes:
            return next(begun)

        def use_all() -> None:
            for use in (*USES.values(), go_on):
                with pytest.raises(StoreClosed, match="store: was opened before this process was forked"):
                    use(store, digest)

        in_child(use_all)
        mine = [store.put(one) for one in contents("parent")]
        assert [store.get(one) for one in mine] == contents("parent")


def test_a_child_that_closes_changes_nothing(tmp_path: Path) -> None:
    """The parent goes on as if there were no child; what it puts later is there after it has died."""
    path = tmp_path / "store"
    before_death = f"""
import os, sys
from kcachefs import ContentStore
from tests.store.test_forks import contents
store = ContentStore({str(path)!r})
for one in contents("before"):
    store.put(one)
child = os.fork()
if child == 0:
    with store:
        sys.exit()  # leaves the block, and ends the interpreter as programs do
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert [store.get(store.put(one)) for one in contents("after")] == contents("after")
os._exit(0)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", before_death], check=True, timeout=PATIENCE)
    with ContentStore(path) as store:
        assert {store.get(digest) for digest in store.digests()} == {*contents("before"), *contents("after")}


def test_a_child_closes_descriptors_and_no_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with ContentStore(path) as store:
        digests = [store.put(one) for one in contents("parent")]
        store.sync()

        def close() -> None:
            before = files(path)
            store.close()
            store.close()
            assert files(path) == before
            links = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
            left = {os.path.basename(link) for link in links if link.startswith(str(path))}
            assert left <= {"data.mdb", "lock.mdb"}  # closing these would free the parent's places among the readers
            with pytest.raises(StoreClosed, match="forked"):
                store.get(digests[0])

        in_child(close)
        assert [store.get(digest) for digest in digests] == contents("parent")


def test_a_child_that_closes_and_ends_takes_no_reader_from_the_parent(tmp_path: Path) -> None:
    """LMDB keeps its readers in memory that a fork shares."""
    use = f"""
import os, sys
from kcachefs.store import Options, Store
store = Store({str(tmp_path / "store")!r}, Options(background=False))  # a thread that folds would keep it to the end
snapshot = store.catalog._folded.snapshot()
readers = store.catalog._folded.env.readers()
assert str(os.getpid()) in readers
child = os.fork()
if child == 0:
    store.close()
    del store, snapshot
    sys.exit()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert store.catalog._folded.env.readers() == readers
snapshot.abort()
store.close()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", use], check=True, timeout=PATIENCE)


def test_a_child_does_not_wait_for_locks_of_threads_that_it_does_not_have(tmp_path: Path) -> None:
    with ContentStore(tmp_path / "store") as store:
        store.get(store.put(b"a kernel"))
        inner = store._opened
        cache, catalog = inner.objects.cache, inner.catalog
        is_held, may_go = threading.Event(), threading.Event()

        def hold() -> None:
            with contextlib.ExitStack() as held:
                for lock in (
                    catalog.lock,
                    catalog._fold_lock,
                    inner.volumes._lock,
                    cache._lock,
                ):
                    held.enter_context(lock)
                is_held.set()
                assert may_go.wait(PATIENCE)

        holder = threading.Thread(target=hold)
        holder.start()
        try:
            assert is_held.wait(PATIENCE)
            in_child(store.close)
        finally:
            may_go.set()
            holder.join()


def test_a_child_that_lives_on_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = ContentStore(path)
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE))
        try:
            os.close(send)
            os.read(receive, 1)
        finally:
            os._exit(0)
    try:
        with pytest.raises(StoreBusy):
            ContentStore(path)
        store.close()
        ContentStore(path).close()
    finally:
        os.close(send)
        os.close(receive)
        os.waitpid(child, 0)


def test_a_child_opens_other_stores_and_is_told_what_to_do_about_this_one(tmp_path: Path) -> None:
    with ContentStore(tmp_path / "store") as store:
        store.put(b"a kernel")

        def use() -> None:
            with pytest.raises(StoreBusy):
                ContentStore(tmp_path / "store")
            with ContentStore(tmp_path / "other") as other:
                assert other.get(other.put(b"mine")) == b"mine"

        in_child(use)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(int(PATIENCE))
            code = 1
            try:
                os.close(send)
                os.read(receive, 1)
                with pytest.raises(StoreError, match="was open when this process was forked; open it in a new process"):
                    ContentStore(tmp_path / "store")
                code = 0
            finally:
                os._exit(code)
    os.close(send)
    os.close(receive)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with ContentStore(tmp_path / "store") as store:
        assert [store.get(digest) for digest in store.digests()] == [b"a kernel"]


def test_a_store_of_tasks_is_its_openers_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncContentStore(tmp_path / "store") as store:
            digest = await store.put(b"a kernel")

            def use() -> None:
                async def in_a_loop_of_its_own() -> None:
                    with pytest.raises(StoreClosed, match="forked"):
                        await store.put(b"x")
                    await store.close()

                asyncio.set_event_loop(None)
                asyncio.events._set_running_loop(None)
                asyncio.run(in_a_loop_of_its_own())

            in_child(use)
            assert await store.get(digest) == b"a kernel"

    asyncio.run(main())
