"""`ObjectCache`: handles in memory, keyed like the rest, with their bytes on disk or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kcachefs import Cache, ObjectCache
from tests.waiting import until


class Module:
    """Something loaded: it cannot be compared, copied or pickled, and is known by its code."""

    loads = 0

    def __init__(self, code: bytes) -> None:
        self.code = code
        Module.loads += 1

    def __reduce__(self) -> str:
        raise TypeError("a module cannot be pickled")


def code_of(module: Module) -> bytes:
    return module.code


@pytest.fixture(autouse=True)
def nothing_loaded() -> None:
    Module.loads = 0


def modules(path: Path, memory_entries: int = 1024, memory_bytes: int | None = None) -> ObjectCache[Module]:
    return ObjectCache(
        Cache(path), encode=code_of, decode=Module, memory_entries=memory_entries, memory_bytes=memory_bytes
    )


def test_an_object_comes_back_as_itself_and_in_the_next_process_from_its_bytes(tmp_path: Path) -> None:
    objects = modules(tmp_path)
    made = objects.get_or_make("key", lambda: Module(b"code"))
    assert objects.get("key") is made
    assert objects.get_or_make("key", lambda: Module(b"other")) is made
    assert Module.loads == 1
    again = modules(tmp_path)
    found = again.get("key")
    assert found is not None
    assert (found.code, found is made) == (b"code", False)
    assert again.get(b"key") is found
    stats = again.stats()
    assert (stats.loaded, stats.made, stats.memory_hits) == (1, 0, 1)


def test_without_an_encoding_objects_live_in_memory_alone() -> None:
    objects: ObjectCache[Module] = ObjectCache()
    made = Module(b"code")
    assert objects.put("key", made)
    assert objects.get("key") is made
    assert objects.cache is None
    objects.clear_memory()
    assert objects.get("key") is None
    assert "key" not in objects


def test_clearing_the_memory_leaves_the_disk(tmp_path: Path) -> None:
    objects = modules(tmp_path)
    first = objects.get_or_make("key", lambda: Module(b"code"))
    objects.clear_memory()
    assert objects.stats().memory_entries == 0
    assert "key" in objects
    second = objects.get_or_make("key", lambda: Module(b"other"))
    assert second is not first
    assert second.code == b"code"
    objects.clear()
    assert "key" not in objects
    assert modules(tmp_path).get("key") is None


def test_delete_is_for_both_levels(tmp_path: Path) -> None:
    objects = modules(tmp_path)
    objects.put("key", Module(b"code"))
    assert objects.delete("key")
    assert not objects.delete("key")
    assert modules(tmp_path).get("key") is None


def test_objects_are_bounded_by_count(tmp_path: Path) -> None:
    objects = modules(tmp_path, memory_entries=2)
    for name in "abc":
        objects.put(name, Module(name.encode()))
    assert objects.stats().memory_entries == 2
    assert objects.stats().memory_evictions == 1
    dropped = objects.get("a")
    assert dropped is not None
    assert (dropped.code, objects.stats().loaded) == (b"a", 1)


def test_objects_are_bounded_by_the_bytes_of_their_encoding(tmp_path: Path) -> None:
    objects = modules(tmp_path, memory_bytes=100)
    for name in "abc":
        objects.put(name, Module(bytes(40)))
    assert (objects.stats().memory_entries, objects.stats().memory_bytes) == (2, 82)
    objects.put("large", Module(bytes(200)))
    assert (objects.stats().memory_entries, "large" in objects) == (2, True)


def test_objects_are_bounded_by_what_they_are_said_to_take() -> None:
    objects: ObjectCache[Module] = ObjectCache(memory_bytes=100, size_of=lambda module: len(module.code) * 10)
    assert objects.put("a", Module(bytes(9)))
    assert objects.put("b", Module(bytes(9)))
    assert (objects.get("a"), objects.stats().memory_bytes) == (None, 91)
    assert not objects.put("large", Module(bytes(11)))


def test_an_object_that_is_nothing_is_an_object() -> None:
    objects: ObjectCache[None] = ObjectCache()
    made = []
    for _ in range(2):
        assert objects.get_or_make("key", lambda: made.append(1)) is None
    assert made == [1]
    assert objects.get("key", "default") is None


def test_threads_load_an_object_once(tmp_path: Path) -> None:
    modules(tmp_path).put("key", Module(b"code"))
    Module.loads = 0
    begun, go_on = threading.Event(), threading.Event()

    def decode(code: bytes) -> Module:
        begun.set()
        go_on.wait()
        return Module(code)

    objects = ObjectCache(Cache(tmp_path), encode=code_of, decode=decode)
    found: list[Module] = []
    threads = [
        threading.Thread(target=lambda: found.append(objects.get_or_make("key", lambda: Module(b"other"))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    begun.wait()
    until(lambda: objects._single_flight.waiting == 3, "three threads wait")
    go_on.set()
    for thread in threads:
        thread.join()
    assert Module.loads == 1
    assert len(set(map(id, found))) == 1


def test_its_own_cache_keeps_no_bytes_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCACHEFS_CACHE_DIR", str(tmp_path))
    objects = ObjectCache(encode=code_of, decode=Module)
    objects.put("key", Module(b"code"))
    assert objects.cache is not None
    assert objects.cache.path == tmp_path / "objects"
    assert objects.cache.stats().memory_entries == 0
