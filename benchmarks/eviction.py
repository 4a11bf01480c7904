"""What clients notice while entries are evicted: python -m benchmarks.eviction [--entries N] [--quick].

A store of N entries is made through the core and mounted. While `kcachefs prune` evicts them all, a client looks up
names that the kernel does not know, and creates, writes and removes files. The latencies are compared with those before
the eviction. Finding a victim needs no scan, so the cost per eviction should stay flat as N grows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.filling import fill


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.eviction", description=__doc__.split("\n")[0])
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="5,000 entries")
    chosen = parser.parse_args()
    count = 5_000 if chosen.quick else chosen.entries
    with tempfile.TemporaryDirectory(prefix="kcachefs-bench-") as folder:
        base = Path(folder)
        print(f"making {count:,} entries", file=sys.stderr, flush=True)
        fill(base / "store", count, 2, filled=2)
        kcachefs("mount", str(base / "mount"), "--store", str(base / "store"), "--grace", "0")
        try:
            show(base / "mount", count)
        finally:
            kcachefs("umount", str(base / "mount"))


def show(mount: Path, count: int) -> None:
    quiet = Client(mount)
    quiet.run(lambda: len(quiet.taken) < 3000)
    busy, done = Client(mount), threading.Event()

    def prune() -> None:
        kcachefs("prune", "--mount", str(mount), "--unused")
        done.set()

    started = time.perf_counter()
    thread = threading.Thread(target=prune)
    thread.start()
    busy.run(lambda: not done.is_set())
    thread.join()
    seconds = time.perf_counter() - started
    print(
        f"{count:,} entries evicted in {seconds:.1f} s, {count / seconds:,.0f} per second; "
        f"{len(busy.taken):,} client requests during that"
    )
    print("| | median | p99 | worst | over 50 ms |")
    print("| --- | --- | --- | --- | --- |")
    for label, client in (("before", quiet), ("during", busy)):
        taken = sorted(client.taken)
        over = sum(1 for one in taken if one > 0.05)
        cells = [statistics.median(taken), taken[int(len(taken) * 0.99)], taken[-1]]
        print(f"| {label} | " + " | ".join(f"{one * 1000:.2f} ms" for one in cells) + f" | {over} of {len(taken):,} |")


class Client:
    """Exercises every request path and records how long each request took."""

    def __init__(self, mount: Path) -> None:
        self._folder = mount / "cupy"
        self.taken: list[float] = []

    def run(self, more: object) -> None:
        assert callable(more)
        number = 0
        while more():
            number += 1
            path = self._folder / f"{os.getpid()}-{id(self)}-{number}"
            started = time.perf_counter()
            path.exists()
            self.taken.append(time.perf_counter() - started)
            started = time.perf_counter()
            path.write_bytes(b"x" * 4096)
            path.unlink()
            self.taken.append(time.perf_counter() - started)
            time.sleep(0.001)


def kcachefs(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "kcachefs", *arguments], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
