"""One worker of the library benchmark with many processes: gets, puts and checks keys, then prints its times."""

from __future__ import annotations

import os
import random
import sys
import time

from blake3 import blake3

from kcachefs import Cache


def value_of(key: str) -> bytes:
    """The one value of a key, about as large as a kernel, so that every answer can be checked."""
    seed = blake3(key.encode()).digest()
    return seed * (32 + seed[0])


def main(folder: str, worker: str, operations: str) -> None:
    rng = random.Random(int(worker))
    shared = [(f"shared {number}", value_of(f"shared {number}")) for number in range(200)]
    own = [(f"{worker} {number}", value_of(f"{worker} {number}")) for number in range(200)]
    plan = [(rng.choice(shared if rng.random() < 0.5 else own), rng.random() < 0.7) for _ in range(int(operations))]
    cache = Cache(folder, memory_entries=0)
    written = set()
    print("ready", flush=True)
    sys.stdin.readline()
    cpu, wall = time.process_time(), time.monotonic()
    for (key, value), is_get in plan:
        if is_get:
            found = cache.get(key)
            if found != value and (found is not None or key in written):
                os._exit(1)
        else:
            cache.put(key, value)
            written.add(key)
    print(time.process_time() - cpu, time.monotonic() - wall, flush=True)
    if any(cache.get(key) != value_of(key) for key in written):
        os._exit(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
