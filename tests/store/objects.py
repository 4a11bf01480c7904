"""Objects stored, deleted and looked at in few lines; and work done in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kcachefs.errors import ObjectMissing
from kcachefs.store import Store
from kcachefs.store.object_records import ObjectRecord


def put(store: Store, data: bytes, *, held: bool = True) -> bytes:
    while True:
        staged = store.objects.stage(data)
        try:
            with store.transaction() as txn:
                store.objects.link(txn, staged, held=held)
            return staged.digest
        except ObjectMissing:
            continue
        finally:
            store.objects.settle(staged)


def delete(store: Store, digest: bytes) -> bool:
    with store.transaction() as txn:
        return store.objects.unlink(txn, digest, held=True)


def record(store: Store, digest: bytes) -> ObjectRecord:
    found = store.objects.record(digest)
    assert found is not None
    return found


def in_threads(*work: Callable[[], None]) -> None:
    """Run each in its own thread; raises the first exception of any of them."""
    errors: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
