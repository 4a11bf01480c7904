"""What other processes do to a cache in the tests: `python -m tests.caches.workers <what> <folder> ...`.

Each reads lines from its standard input where it has to wait, and prints lines where others wait for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from blake3 import blake3

from kcachefs.caches import Cache
from tests.waiting import until


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


def value_of(key: str, version: int) -> bytes:
    """A value that can be checked by itself: its first bytes, repeated as often as they say."""
    seed = blake3(f"{key} {version}".encode()).digest()
    return seed * (1 + seed[0] * 4)


def is_value(content: bytes) -> bool:
    seed = content[:32]
    return content == seed * (1 + seed[0] * 4)


def mixed(folder: str, worker: str, operations: str) -> None:
    """Puts, gets and deletes on keys of its own and on keys of everyone; checks every answer."""
    mine = {}
    rng = random.Random(int(worker))
    with Cache(folder, memory_entries=0) as cache:
        sys.stdin.readline()
        for number in range(int(operations)):
            shared = f"shared {rng.randrange(50)}"
            own = f"{worker} {rng.randrange(50)}"
            what = rng.randrange(10)
            if what < 5:
                found = cache.get(shared)
                assert found is None or is_value(found), "torn read"
            elif what < 7:
                assert cache.put(shared, value_of(shared, number))
            elif what < 9:
                assert cache.put(own, value_of(own, number))
                mine[own] = number
            elif own in mine:
                assert cache.get(own) == value_of(own, mine[own]), "lost or foreign entry"
        for key, version in mine.items():
            assert cache.get(key) == value_of(key, version), "lost entry"
        say({"own": len(mine), "damaged": cache.stats().damaged})


def put_until_killed(folder: str, event: str) -> None:
    """Puts a value over an old one and kills itself at the given audit event: that is, between two system calls."""
    cache = Cache(folder)
    left = [int(event)]

    def hook(name: str, _: tuple[Any, ...]) -> None:
        if name.startswith(("open", "os.", "fcntl.")) and name != "os.kill":
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    value = value_of("key", 2)
    sys.addaudithook(hook)
    cache.put("key", value)
    os._exit(0)


def put_forever(folder: str, size: str) -> None:
    """Writes large values until it is killed."""
    cache = Cache(folder, memory_entries=0)
    content = bytes(int(size))
    say("begun")
    while True:
        cache.put("large", content)


def hold(folder: str, key: str) -> None:
    """Computes a key and never ends."""

    def compute() -> bytes:
        say("computing")
        signal.pause()
        return b""

    Cache(folder).get_or_compute(key, compute)


def compute(folder: str, key: str, log: str) -> None:
    """Computes a key when told to, and counts in a file how often that happened."""

    def made() -> bytes:
        with open(log, "a") as file:
            file.write("x")
        say("computing")
        sys.stdin.readline()
        return b"made"

    say("ready")
    sys.stdin.readline()
    cache = Cache(folder)
    threading.Thread(target=say_when_waiting, args=(cache,), daemon=True).start()
    say(cache.get_or_compute(key, made).decode())


def say_when_waiting(cache: Cache) -> None:
    flights = cache._levels.single_flight._under_way
    until(lambda: any(flight.awaits_process for flight in list(flights.values())))
    say("waiting")


def fork_and_die(folder: str, key: str) -> None:
    """Computes a key, forks a child that lives on, and is killed."""

    def made() -> bytes:
        child = os.fork()
        if child == 0:
            say(os.getpid())
            signal.pause()
        signal.pause()
        return b""

    Cache(folder).get_or_compute(key, made)


def refused(folder: str, user: str) -> None:
    """Uses a folder that cannot be written, as another user where one is given."""
    if int(user):
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))
    cache = Cache(folder)
    stored = cache.get("stored")
    put = cache.put("new", b"new")
    computed = cache.get_or_compute("computed", lambda: b"computed")
    say(
        {
            "stored": stored is not None and stored.decode(),
            "put": put,
            "new": cache["new"].decode(),
            "computed": computed.decode(),
            "refused": cache.stats().refused,
            "keys": sorted(map(str, cache)),
            "fresh": Cache(folder).get("new") is not None,
        }
    )


def fill(folder: str) -> None:
    """Puts until the disk is full, then makes room, then puts again."""
    cache = Cache(folder, memory_entries=0)
    stored = 0
    while cache.put(str(stored), os.urandom(50_000)):
        stored += 1
    left_over = list(map(str, Path(folder).glob("entries/*/*/.*")))
    whole = sum(cache.get(str(number)) is not None for number in range(stored))
    computed = cache.get_or_compute("computed", lambda: bytes(50_000))
    del cache["0"], cache["1"]
    say(
        {
            "stored": stored,
            "whole": whole,
            "left over": left_over,
            "again": cache.put("again", bytes(50_000)),
            "computed": len(computed),
            "damaged": cache.stats().damaged,
        }
    )


def cross(folder: str, mine: str, other: str) -> None:
    """Computes one key, for which it needs another that a second thread here is waiting to get from another process."""
    cache = Cache(folder)
    results = []

    def made() -> bytes:
        say("computing")
        sys.stdin.readline()
        waiter = threading.Thread(target=lambda: results.append(cache.get_or_compute(other, other.encode)))
        waiter.start()
        flights = cache._levels.single_flight._under_way
        until(lambda: any(flight.awaits_process for flight in list(flights.values())))
        say("waiting for the other process")
        sys.stdin.readline()
        return mine.encode() + cache.get_or_compute(other, other.encode)

    say(cache.get_or_compute(mine, made).decode())


def cross_pools(folder: str, mine: str, other: str, how: str) -> None:
    """Computes one key, and waits for a thread of a pool that asks for another, which another process computes."""
    cache = Cache(folder)

    async def make() -> bytes:
        return other.encode()

    def ask() -> bytes:
        if how == "task":
            return asyncio.run(cache.get_or_compute_async(other, make))
        return cache.get_or_compute(other, other.encode)

    def made() -> bytes:
        say("computing")
        sys.stdin.readline()
        with ThreadPoolExecutor(1) as pool:
            return mine.encode() + pool.submit(ask).result()

    say(cache.get_or_compute(mine, made).decode())


def change(folder: str, key: str, how: str) -> None:
    """Deletes an entry, or puts another value in its place."""
    with Cache(folder) as cache:
        cache.delete(key) if how == "delete" else cache.put(key, b"new")
    say("done")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
