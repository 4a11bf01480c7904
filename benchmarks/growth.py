"""Stores of 10 thousand, 100 thousand and a million files: does anything cost more when there is more of it?

The stores are filled through the core, without a mount. An entry is a folder of ten files, of which one holds unique
bytes and the others are empty, like locks and markers: what there are many of is names, entries and records. Then,
with the stores taking turns:

- mount: `kcachefs mount`, from the start of the process until the mount answers
- lookup: stat of a name that the kernel does not know
- put: create, write and rename a file of 4 KiB
- evict: entries evicted per second after mounting with a quota of fewer files, by the mount's own statistics
- recovery: from the worker's kill -9 until its successor answers a lookup
- memory: of the worker, after all of this
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack

from benchmarks.filling import fill, name_of
from benchmarks.measure import in_turn, stopwatch
from benchmarks.running import Run
from benchmarks.scale import memory_of
from benchmarks.subjects import Kcachefs, drop_caches

COUNTS = (10_000, 100_000, 1_000_000)
PER_ENTRY = 10
ASKED = 90
EVICTED = 300
PATIENCE = 60.0


def part(run: Run) -> None:
    counts = COUNTS[:2] if run.quick else COUNTS
    if run.quick:
        run.leave_out("a million files", "a quick run has no time to make them")
    base = run.place("scale")
    stores: dict[str, Kcachefs] = {}
    making: dict[str, list[float]] = {}
    for count in counts:
        run.say(f"making {count:,} files")
        store = stores[f"{count:,}"] = Kcachefs("direct", base / str(count), ("--max-size", "100GiB", "--grace", "0"))
        with stopwatch() as taken:
            fill(store.base / "store", count // PER_ENTRY, PER_ENTRY, filled=1)
        making[f"{count:,}"] = [taken[0] / count * 1e6]
    found = _measured(run, stores)
    run.add("making, without a mount", "µs per file", making, against=_FEWEST)
    for what, unit in _WHATS.items():
        run.add(what, unit, found[what], against=_FEWEST, better="more" if what == "evict" else "less")


_FEWEST = f"{COUNTS[0]:,}"
_WHATS = {
    "mount": "s",
    "lookup": "µs",
    "put": "µs",
    "evict": "entries/s",
    "recovery": "ms",
    "memory": "MiB",
    "memory that is not of files": "MiB",
}


def _measured(run: Run, stores: dict[str, Kcachefs]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {what: {name: [] for name in stores} for what in _WHATS}
    names = {name: _entries(int(name.replace(",", ""))) for name in stores}
    rounds = 2 if run.quick else 5
    drop_caches()
    with ExitStack() as stack:
        for name, store in stores.items():
            stack.callback(_close, store)
            for _ in in_turn({name: store}, range(rounds)):
                if store.mountpoint.is_mount():
                    store.close()
                with stopwatch() as taken:
                    store.open()
                found["mount"][name].append(taken[0])
        for name, store in in_turn(stores, run.rounds(rounds, 0.4, "scale")):
            entries = names[name]
            found["lookup"][name].append(_lookups(store, [entries.pop() for _ in range(ASKED)]))
            found["put"][name].append(_puts(store))
            found["recovery"][name].append(_recovery(store, entries.pop()))
        for name, store in stores.items():
            memory = memory_of(store.worker())
            found["memory"][name] = [memory["RSS in MiB"]]
            found["memory that is not of files"][name] = [memory["anonymous in MiB"]]
        for name, store in in_turn(stores, run.rounds(1 if run.quick else 3, 0.3, "scale, eviction")):
            found["evict"][name].append(_evictions(store))
    return found


def _close(store: Kcachefs) -> None:
    if store.mountpoint.is_mount():
        store.close()


def _entries(files: int) -> list[str]:
    """Every entry once, in random order, so that the next one has not been looked up yet."""
    every = [name_of(number) for number in range(files // PER_ENTRY)]
    return random.Random(1).sample(every, k=len(every))


def _lookups(store: Kcachefs, entries: list[str]) -> float:
    """Look up three files in each entry, in folders that the kernel knows."""
    for entry in entries:
        os.stat(store.folder / entry)
    paths = [f"{store.folder}/{entry}/f{number}" for entry in entries for number in range(3)]
    with stopwatch() as taken:
        for path in paths:
            os.stat(path)
    return taken[0] / len(paths) * 1e6


def _puts(store: Kcachefs, count: int = 300) -> float:
    folder = store.root / "cupy"
    content = os.urandom(4096)
    with stopwatch() as taken:
        for number in range(count):
            temporary = folder / f"tmp.{number}"
            temporary.write_bytes(content)
            temporary.rename(folder / f"{time.monotonic_ns()}.cubin")
    return taken[0] / count * 1e6


def _evictions(store: Kcachefs) -> float:
    """Entries per second, from the first eviction that is seen until the quota holds."""
    files = store.stats()["total"]["files"]
    store.close()
    usual = store.options
    # Empty files do not count, so every entry counts as one file.
    store.options = (*usual, "--max-files", str(files - EVICTED))
    opening = time.perf_counter()
    store.open()
    store.options = usual
    seen = [(time.perf_counter(), _evicted(store))]
    if seen[0][1] >= EVICTED:  # all evicted before the mount answered, so that time counts too
        seen.insert(0, (opening, 0))
    deadline = time.monotonic() + PATIENCE
    while seen[-1][1] < EVICTED:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{store.mountpoint} evicted {seen[-1][1]} of {EVICTED} entries")
        time.sleep(0.005)
        seen.append((time.perf_counter(), _evicted(store)))
    first = next(index for index, (_, count) in enumerate(seen) if count > seen[0][1] or count >= EVICTED)
    begin, there = seen[max(0, first - 1)]
    return (seen[-1][1] - there) / (seen[-1][0] - begin)


def _evicted(store: Kcachefs) -> int:
    return int(store.stats()["total"]["evictions"])


def _recovery(store: Kcachefs, entry: str) -> float:
    """Milliseconds until a lookup succeeds after the worker was killed."""
    worker = store.worker()
    with stopwatch() as taken:
        os.kill(worker, signal.SIGKILL)
        os.stat(store.folder / entry)
    until_replaced(store, worker)
    return taken[0] * 1e3


def until_replaced(store: Kcachefs, worker: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while store.worker() in (worker, 0):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no worker took over at {store.mountpoint}")
        time.sleep(0.05)
