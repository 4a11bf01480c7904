"""Opens a store that benchmarks/store.py made, in a process of its own, and says what getting objects took."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from blake3 import blake3

from benchmarks.measure import stopwatch
from benchmarks.store import small_object
from kcachefs import ContentStore

GETS = 5000


def main() -> None:
    path, count = Path(sys.argv[1]), int(sys.argv[2])
    chosen = random.Random(1)
    digests = [blake3(small_object(chosen.randrange(count))).digest() for _ in range(GETS)]
    with stopwatch() as opening:
        store = ContentStore(path)
    for digest in digests:  # the disk's part, which is not the store's, is over after this
        store.get(digest)
    store.close()
    store = ContentStore(path)
    with stopwatch() as getting:
        for digest in digests:
            store.get(digest)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print("open", opening[0])
    print("get", getting[0] / GETS * 1e6)
    print("rss", int(status["VmRSS"].split()[0]) / 1024)
    print("anonymous", int(status["RssAnon"].split()[0]) / 1024)
    store.close()


if __name__ == "__main__":
    main()
