"""What comes in the middle of a call: a `__del__`, a signal handler, the end of a task that nobody runs any more."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from contextvars import Context
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from kcachefs import Cache, ObjectCache, cached, filelock
from kcachefs.caches import memory as memory_level
from kcachefs.caches import process_lock, single_flight, writers
from kcachefs.caches.memory import Memory
from tests.caches.locks import locks_of_the_library
from tests.waiting import PATIENCE, ending_soon, until, until_async


class Module:
    """Unloading it uses the cache it was in, here and in another thread."""

    objects: ObjectCache[Module]
    unloaded: list[bool]

    def __init__(self, code: bytes = b"code") -> None:
        self.code = code

    def __del__(self) -> None:
        self.objects.delete("another")
        thread = threading.Thread(target=self.objects.delete, args=("another",), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        self.unloaded.append(not thread.is_alive())


@pytest.fixture
def objects(tmp_path: Path) -> ObjectCache[Module]:
    Module.objects = ObjectCache(
        Cache(tmp_path), encode=lambda module: module.code, decode=Module, memory_entries=1, memory_bytes=100
    )
    Module.unloaded = []
    return Module.objects


def lose_the_files(objects: ObjectCache[Module]) -> None:
    assert objects.cache is not None
    shutil.rmtree(str(objects.cache.path))
    assert objects.get("key") is None


@pytest.mark.parametrize(
    "end",
    [
        lambda objects: objects.delete("key"),
        lambda objects: objects.clear(),
        lambda objects: objects.clear_memory(),
        lambda objects: objects.put("key", Module(b"new")),
        lambda objects: objects.put("key", Module(bytes(101))),
        lambda objects: objects.put("evicts", Module()),
        lambda objects: objects.cache.delete("key"),
        lose_the_files,
    ],
    ids=["delete", "clear", "clear_memory", "replace", "too large", "evict", "by another handle", "stale"],
)
def test_an_object_may_use_the_cache_when_it_is_let_go(
    objects: ObjectCache[Module], end: Callable[[ObjectCache[Module]], object]
) -> None:
    objects.put("key", Module())
    thread = threading.Thread(target=end, args=(objects,), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert Module.unloaded[:1] == [True]
    objects.clear_memory()


def test_a_signal_handler_may_use_a_cache_whatever_it_interrupts(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=1 << 20)
    objects = ObjectCache(cache, encode=str.encode, decode=bytes.decode)

    @cached(cache=cache, encode=str.encode, decode=bytes.decode)
    def build(x: int) -> str:
        return f"built {x}"

    cache.put("key", b"value")
    told: list[Any] = []

    def handle(*_: object) -> None:
        told.append((cache.put("key", b"new"), cache.get("key"), cache.delete("key"), cache.get("key")))
        told.append((objects.put("object", "x"), objects.get("object"), objects.delete("object")))
        told.append((build(1), cache.get_or_compute("computed", lambda: b"y"), len(Cache(tmp_path))))
        cache.clear()

    locks = locks_of_the_library()
    assert len(locks) >= 8
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with ending_soon():
            for lock in locks:
                lock.acquire()
            try:
                signal.raise_signal(signal.SIGUSR1)
            finally:
                for lock in locks:
                    lock.release()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert told == [(True, b"new", True, None), (True, "x", True), ("built 1", b"y", 2)]


def interrupt(call: Callable[[], object], module: ModuleType, at: int, by: Callable[[], object]) -> bool:
    """Make a call, and another one before line number `at` of a module that it comes to; whether it came so far."""
    left = [at]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                by()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with ending_soon():
            call()
    finally:
        sys.settrace(before)
    return left[0] <= 0


@pytest.mark.parametrize("name", ["put", "put another", "put more", "drop", "clear", "items"])
@pytest.mark.parametrize("inner", ["put", "put another", "put more", "drop", "clear", "items"])
def test_a_memory_that_is_used_in_the_middle_of_a_use_keeps_its_bounds_and_its_total(name: str, inner: str) -> None:
    at, goes_on = 0, True
    while goes_on:
        at += 1
        memory: Memory[bytes] = Memory(3, 100, "lru")
        for key in (b"a", b"b", b"c"):
            memory.put(key, key, 10)
        uses: dict[str, Callable[[], object]] = {
            "put": partial(memory.put, b"a", b"new", 20),
            "put another": partial(memory.put, b"d", b"d", 7),
            "put more": partial(memory.put, b"e", b"e", 95),
            "drop": partial(memory.drop, b"a"),
            "clear": memory.clear,
            "items": memory.items,
        }
        goes_on = interrupt(uses[name], memory_level, at, uses[inner])
        kept = list(memory._kept.values())
        assert memory.bytes == sum(one.size for one in kept) <= 100, f"line {at}"
        assert len(kept) <= 3
    assert at > 2


def test_a_process_that_signs_up_in_the_middle_of_signing_up_is_one_writer(tmp_path: Path) -> None:
    at, goes_on = 0, True
    while goes_on:
        at += 1
        with Cache(tmp_path / str(at)) as cache:
            goes_on = interrupt(partial(cache.put, "key", b"x"), writers, at, partial(cache.put, "another", b"y"))
            assert len(list((tmp_path / str(at) / "writers").iterdir())) == 1, f"line {at}"
        assert not list((tmp_path / str(at) / "writers").iterdir())
    assert at > 2


def raise_at(call: Callable[[], object], modules: tuple[ModuleType, ...], at: int) -> bool:
    """Run `call`, and raise as a signal could after the `at`-th call in `modules`; whether there are so many."""
    files, left = {module.__file__ for module in modules}, [at]

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "return", "c_return") and frame.f_code.co_filename in files:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    try:
        sys.setprofile(profile)
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def check_nothing_is_left(cache: Cache, folder: Path) -> None:
    flights = cache._levels.single_flight
    assert (flights._under_way, flights.waiting) == ({}, 0)
    assert (single_flight._computing, single_flight._inside.get()) == (set(), ())
    files = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    assert not [name for name in files if str(folder) in name and "/locks/" in name]
    paths = [lock._path or "" for lock in process_lock._open]  # other tests may have left theirs
    assert not [path for path in paths if path.startswith(str(folder))]


INTERRUPTED = single_flight, process_lock, filelock


def test_a_computation_that_is_interrupted_anywhere_leaves_nothing(tmp_path: Path) -> None:
    at, was_raised = 0, True
    cache = Cache(tmp_path)
    while was_raised:
        at += 1
        compute = partial(cache.get_or_compute, f"key {at}", lambda: b"made")
        was_raised = raise_at(compute, INTERRUPTED, at)
        check_nothing_is_left(cache, tmp_path)
        assert compute() == b"made"
    assert at > 50


def test_a_wait_that_is_interrupted_anywhere_leaves_nothing(tmp_path: Path) -> None:
    at, was_raised = 0, True
    while was_raised:
        at += 1
        cache = Cache(tmp_path / str(at))
        was_raised = interrupt_a_wait(cache, at)
        check_nothing_is_left(cache, tmp_path)
    assert at > 15


def interrupt_a_wait(cache: Cache, at: int) -> bool:
    """Have a computation that waits for another thread's interrupted; whether it was."""
    has_begun, is_over = threading.Event(), threading.Event()
    interrupted: list[bool] = []

    def compute() -> bytes:
        has_begun.set()
        until(lambda: is_over.is_set() or cache.stats().waiting)
        return b"made"

    def wait() -> bytes:
        try:
            return cache.get_or_compute("key", lambda: b"twice")
        finally:
            is_over.set()

    def make_outer() -> bytes:
        outer = single_flight._inside.get()[0]
        interrupted.append(raise_at(wait, INTERRUPTED, at))
        assert not outer.waits_for
        return b"outer"

    thread = threading.Thread(target=cache.get_or_compute, args=("key", compute))
    thread.start()
    assert has_begun.wait(PATIENCE)
    cache.get_or_compute("outer", make_outer)
    thread.join(PATIENCE)
    return interrupted[0]


async def never() -> bytes:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def at_once() -> bytes:
    return b"computed"


def drop_a_task(ask: Callable[[], Any], goes: Callable[[], object]) -> None:
    """Begin a task in an event loop of its own, and forget both."""
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        task = loop.create_task(ask())
        await until_async(goes)
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    loop.run_until_complete(begin())
    loop.close()


@pytest.fixture
def unraised(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    return found


def test_a_computing_task_that_is_dropped_blocks_nobody(tmp_path: Path, unraised: list[Any]) -> None:
    cache = Cache(tmp_path)
    drop_a_task(lambda: cache.get_or_compute_async("key", never), lambda: cache._levels.single_flight._under_way)
    gc.collect()
    assert asyncio.run(asyncio.wait_for(cache.get_or_compute_async("key", at_once), PATIENCE)) == b"computed"
    assert not unraised


def test_a_thread_goes_on_when_the_task_it_waits_for_is_dropped(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    found: list[bytes] = []
    gc.disable()
    try:
        drop_a_task(lambda: cache.get_or_compute_async("key", never), lambda: cache._levels.single_flight._under_way)
        ask = threading.Thread(target=lambda: found.append(cache.get_or_compute("key", lambda: b"x")), daemon=True)
        ask.start()
        until(lambda: cache.stats().waiting)
    finally:
        gc.enable()
    gc.collect()
    ask.join(PATIENCE)
    assert found == [b"x"]


def test_a_waiting_task_that_is_dropped_leaves_only_what_it_waited_for(tmp_path: Path, unraised: list[Any]) -> None:
    """Its coroutines are closed in the middle of another computation, which is none of theirs."""
    cache = Cache(tmp_path)

    async def needs_slow() -> bytes:
        return await cache.get_or_compute_async("slow", at_once)

    def slowly() -> bytes:
        ask = lambda: cache.get_or_compute_async("key", needs_slow)  # noqa: E731
        Context().run(drop_a_task, ask, lambda: cache.stats().waiting)
        return b"slow"

    def collect() -> bytes:
        made = cache.get_or_compute("slow", slowly)
        gc.collect()
        return made

    assert cache.get_or_compute("another", collect) == b"slow"
    assert (cache.stats().waiting, unraised) == (0, [])
    assert asyncio.run(asyncio.wait_for(cache.get_or_compute_async("key", at_once), PATIENCE)) == b"computed"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_computation_that_goes_on_in_a_forked_child_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    pipe, writes = os.pipe()

    def forks() -> bytes:
        child = os.fork()
        if child == 0:
            os.dup2(writes, held[0])  # the number of the lock's descriptor is another file's by now
            raise Child
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return b"parent" if list((tmp_path / "locks").iterdir()) else b"unlocked"

    class Child(Exception):
        pass

    held: list[int] = []

    def compute() -> bytes:
        held.extend(lock._file.fileno() for lock in process_lock._open if lock._file is not None)
        return forks()

    try:
        made = cache.get_or_compute("key", compute)
    except Child:
        code = 1
        try:
            os.write(held[0], b"still open")
            code = 0
        finally:
            os._exit(code)
    assert made == b"parent"
    assert os.read(pipe, 100) == b"still open"
    os.close(pipe)
    os.close(writes)
