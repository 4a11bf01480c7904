"""What a cache promises between processes: whole values, no lost entries, one computation, no harm from a kill."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kcachefs import Cache, ObjectCache, cached
from kcachefs.caches import decorator
from tests.caches.locks import locks_of_the_library
from tests.caches.processes import Worker, start
from tests.caches.workers import value_of
from tests.waiting import until

__all__ = ["start"]

Start = Callable[..., Worker]


def left_over(folder: Path) -> list[Path]:
    """Files that are not entries yet, or never became one."""
    return list(folder.glob("entries/*/*/.*"))


def test_eight_processes_mix_their_operations(tmp_path: Path, start: Start) -> None:
    workers = [start("mixed", tmp_path, number, 400) for number in range(8)]
    for worker in workers:
        worker.go()
    told = [worker.hear() for worker in workers]
    assert [worker.wait() for worker in workers] == [0] * 8
    assert sum(answer["damaged"] for answer in told) == 0
    shared = sum(str(key).startswith("shared") for key in Cache(tmp_path))
    assert len(Cache(tmp_path)) == shared + sum(answer["own"] for answer in told)
    assert left_over(tmp_path) == []
    assert os.listdir(tmp_path / "writers") == []


def test_a_writer_killed_between_any_two_calls_leaves_the_old_or_the_new_value(tmp_path: Path, start: Start) -> None:
    old, new = value_of("key", 1), value_of("key", 2)
    seen = set()
    for event in range(100):
        Cache(tmp_path)["key"] = old
        code = start("put_until_killed", tmp_path, event).wait()
        with Cache(tmp_path) as cache:
            found = cache.get("key")
            assert found in (old, new)
            assert cache.stats().damaged == 0
        assert left_over(tmp_path) == [], f"left over after event {event}"
        seen.add((code, found == new))
        if code == 0:
            break
    assert (-signal.SIGKILL, False) in seen
    assert (0, True) in seen
    assert event >= 3


def test_a_writer_killed_in_the_middle_of_a_value_leaves_nothing(tmp_path: Path, start: Start) -> None:
    worker = start("put_forever", tmp_path, 50_000_000)
    assert worker.hear() == "begun"

    def is_half_written() -> bool:
        for path in left_over(tmp_path):
            try:
                if 0 < path.stat().st_size < 50_000_000:
                    os.kill(worker.pid, signal.SIGSTOP)
                    if path.exists() and 0 < path.stat().st_size < 50_000_000:
                        return True
                    os.kill(worker.pid, signal.SIGCONT)
            except FileNotFoundError:
                os.kill(worker.pid, signal.SIGCONT)
        return False

    until(is_half_written, "a file is half written")
    assert left_over(tmp_path)
    with Cache(tmp_path):
        assert left_over(tmp_path), "the file of a living writer was removed"
    worker.kill()
    with Cache(tmp_path) as cache:
        assert left_over(tmp_path) == []
        assert cache.get("large") in (None, bytes(50_000_000))
        assert cache.put("large", b"small")
        assert cache["large"] == b"small"


def test_processes_compute_a_key_once(tmp_path: Path, start: Start) -> None:
    log = tmp_path / "log"
    workers = [start("compute", tmp_path / "cache", "key", log) for _ in range(4)]
    for worker in workers:
        assert worker.hear() == "ready"
    workers[0].go()
    assert workers[0].hear() == "computing"
    for worker in workers[1:]:
        worker.go()
    assert [worker.hear() for worker in workers[1:]] == ["waiting"] * 3
    workers[0].go()
    assert [worker.hear() for worker in workers] == ["made"] * 4
    assert log.read_text() == "x"
    assert os.listdir(tmp_path / "cache" / "locks") == []


def test_a_killed_holder_blocks_nobody(tmp_path: Path, start: Start) -> None:
    holder = start("hold", tmp_path / "cache", "key")
    assert holder.hear() == "computing"
    other = start("compute", tmp_path / "cache", "key", tmp_path / "log")
    assert other.hear() == "ready"
    other.go()
    assert other.hear() == "waiting"
    holder.kill()
    assert other.hear() == "computing"
    other.go()
    assert other.hear() == "made"


def test_a_forked_child_does_not_keep_its_dead_parents_lock(tmp_path: Path, start: Start) -> None:
    parent = start("fork_and_die", tmp_path / "cache", "key")
    child = parent.hear()
    try:
        parent.kill()
        assert Path(f"/proc/{child}").exists()
        with Cache(tmp_path / "cache") as cache:
            assert cache.get_or_compute("key", lambda: b"made") == b"made"
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lock_left_by_the_dead_is_removed(tmp_path: Path, start: Start) -> None:
    holder = start("hold", tmp_path, "key")
    assert holder.hear() == "computing"
    with Cache(tmp_path):
        assert len(os.listdir(tmp_path / "locks")) == 1
    holder.kill()
    with Cache(tmp_path):
        assert os.listdir(tmp_path / "locks") == []


def test_readers_against_eviction_and_replacement(tmp_path: Path, start: Start) -> None:
    """Two processes fill a bounded folder far beyond its bound while this one reads: every answer is whole."""
    workers = [start("mixed", tmp_path, number, 300) for number in range(2)]
    with Cache(tmp_path, memory_entries=0, max_bytes=40 * 4096) as cache:
        for worker in workers:
            worker.go()
        for number in range(300):
            key = f"bounded {number}"
            cache[key] = value_of(key, number)
            assert cache.get(key) in (None, value_of(key, number))
        assert cache.stats().damaged == 0
        assert cache.stats().disk_evictions > 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_threads_work_can_use_the_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            cache[str(number % 10)] = b"x"
            cache.get_or_compute(f"computed {number}", lambda: b"y")
            number += 1

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    cache["child"] = b"z"
                    code = 0 if cache["child"] == b"z" and cache.get_or_compute("c", lambda: b"w") == b"w" else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_holds_every_lock_can_do_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(decorator, "_default", None)
    cache = Cache(tmp_path / "cache", max_bytes=1 << 20)
    objects = ObjectCache(cache, encode=str.encode, decode=bytes.decode)

    @cached(cache=cache, encode=str.encode, decode=bytes.decode)
    def build(x: int) -> str:
        return f"built {x}"

    @cached
    def build_by_default(x: int) -> bytes:
        return b"built %d" % x

    assert (build(1), build_by_default(1), objects.get_or_make("o", lambda: "made")) == ("built 1", b"built 1", "made")
    locks = locks_of_the_library()
    assert len(locks) >= 8
    is_held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        is_held.set()
        may_go.wait()
        for lock in locks:
            lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert is_held.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # waiting for a lock is not interrupted by anything less
            code = 1
            try:
                cache["key"] = b"value"
                told = (build(1), build(2), build_by_default(1), build_by_default(2), cache["key"])
                assert told == ("built 1", "built 2", b"built 1", b"built 2", b"value")
                assert objects.get_or_make("o", str) == "made"
                assert objects.get_or_make("p", lambda: "new") == "new"
                assert (build.cache_info().hits, build.clear(), build_by_default.clear()) == (1, 2, 2)
                cache.clear()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        may_go.set()
        holder.join()
