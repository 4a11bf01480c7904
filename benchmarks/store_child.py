"""Opens a store that benchmarks/store.py filled, in a process of its own, and prints the time and memory it took."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measure import stopwatch
from benchmarks.store import get_all, random_digests
from kcachefs.store import Options, Store


def main() -> None:
    path, count = Path(sys.argv[1]), int(sys.argv[2])
    digests = random_digests(count)
    with stopwatch() as opening:
        store = Store(path, Options(cache_bytes=0))
    get_all(store, digests)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print("open", opening[0])
    print("rss", int(status["VmRSS"].split()[0]) / 1024)
    print("anonymous", int(status["RssAnon"].split()[0]) / 1024)
    store.close()


if __name__ == "__main__":
    main()
