"""What a fleet gives a fresh node, and what it costs one that it cannot help: python -m benchmarks.fleet

- A fresh node takes the caches of the corpus from a bucket whose every request and connection takes 30 or 100 ms, and a
  program looks up and reads all of it, beside a neighbour that has everything. The index is loaded before.
- A cold start that the fleet cannot help is replayed on mounts with and without a fleet, in turn.
- A client makes entries and reads them while a pack is brought in beside it, and while none is.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import replay
from benchmarks.bucket_server import BucketServer
from benchmarks.disk import write_all
from benchmarks.measure import corpus, in_turn, ratios, spread
from benchmarks.subjects import Kcachefs, empty, workplace
from kcachefs.fleet import finding, signing
from kcachefs.fleet.bucket import open_bucket
from kcachefs.fleet.publishing import Publisher
from kcachefs.fleet.views import FolderView

CACHES = ("gpt2_train", "resnet50")
LATENCIES = (0.03, 0.1)
ROUNDS, PAIRS = 5, 10
SCOPE = "benchmark"
COMPILE_MS = 60_000
OTHERS = 2000
"""Entries of a fleet that cannot help."""
NAMESPACES = ("triton", "inductor")
READER = """
import os, sys, time
root, names = sys.argv[1], sys.stdin.read().split("\\n")
begin, worst = time.perf_counter(), 0.0
for name in names:
    start = time.perf_counter()
    with open(os.path.join(root, name), "rb") as file:
        file.read()
    worst = max(worst, time.perf_counter() - start)
print(time.perf_counter() - begin, worst)
"""
CLIENT = """
import os, sys, time
root, seconds, content = sys.argv[1], float(sys.argv[2]), os.urandom(4000)
end, times, number = time.perf_counter() + seconds, [], 0
while (begin := time.perf_counter()) < end:
    folder = f"{root}/helion/{os.getpid()}-{number}"
    os.mkdir(folder)
    with open(f"{folder}/kernel.o", "wb") as file:
        file.write(content)
    os.stat(f"{folder}/kernel.o"); os.path.exists(f"{root}/jax/none{number}")
    times.append(time.perf_counter() - begin)
    number += 1
times.sort()
print(times[len(times) * 99 // 100], times[-1], len(times))
"""


def main() -> None:
    os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}
    with workplace(None) as base:
        secret = base / "key"
        signing.keygen(secret)
        caches = {name: published(name, base, secret) for name in CACHES}
        print("| cache | files | neighbour, ms | requests | " + " | ".join(f"{1e3 * s:.0f} ms" for s in LATENCIES))
        for name, files in caches.items():
            print(fresh_node(name, files, base, secret), flush=True)
        print(cold_starts(base, secret), flush=True)
        print(busy_client(base, secret, caches[CACHES[-1]]), flush=True)


def published(cache: str, base: Path, secret: Path) -> dict[str, bytes]:
    """Publish a cache into a bucket of its own; returns its files."""
    own = {path.partition("/")[2]: data for path, data in corpus().items() if path.startswith(f"{cache}/")}
    return publish(cache, {path: data for path, data in own.items() if path.split("/")[0] in NAMESPACES}, base, secret)


def publish(cache: str, files: dict[str, bytes], base: Path, secret: Path) -> dict[str, bytes]:
    """Publish these files; returns those that a pack carries."""
    root, folder = base / f"{cache}-files", base / f"{cache}-bucket"
    write_all(root, files)
    folder.mkdir()
    signer, view = signing.Signer(secret), FolderView(root)
    bucket = open_bucket(f"file://{folder}", SCOPE, {signer.public}, base / "publisher" / cache)
    found = finding.find(view, [], lambda line: None)
    Publisher(bucket, signer).publish(view, found, compile_ms=COMPILE_MS)
    carried = {"/".join((one.namespace, *one.path_in, name)) for one in found for name in one.files}
    return {path: data for path, data in files.items() if path in carried}


@contextmanager
def node(place: Path, url: str, secret: Path) -> Iterator[Kcachefs]:
    """A fresh node whose index is loaded."""
    options = ("--fleet", url, "--trust", f"{secret}.pub", "--fleet-scope", SCOPE)
    subject = Kcachefs("direct", place, options) if url else Kcachefs("direct", place)
    subject.open()
    try:
        while url and not (subject.stats()["fleet"] or {}).get("index_keys"):
            time.sleep(0.02)
        yield subject
    finally:
        subject.close()


def read_all(subject: Kcachefs, files: dict[str, bytes]) -> tuple[float, float]:
    """How long looking everything up and reading it takes, and the longest wait for one file."""
    command = [sys.executable, "-S", "-c", READER, str(subject.mountpoint)]
    ran = subprocess.run(command, input="\n".join(sorted(files)), stdout=subprocess.PIPE, text=True, check=True)
    seconds, worst = map(float, ran.stdout.split())
    return seconds, worst


def fresh_node(cache: str, files: dict[str, bytes], base: Path, secret: Path) -> str:
    neighbour, fetched, requests = [], {latency: list[float]() for latency in LATENCIES}, 0
    for round_ in range(ROUNDS):
        with node(base / f"{cache}-warm{round_}", "", secret) as subject:
            write_all(subject.mountpoint, files)
            subject.stats()
        with node(base / f"{cache}-warm{round_}", "", secret) as subject:
            neighbour.append(read_all(subject, files)[0])
        for latency in LATENCIES:
            with BucketServer(base / f"{cache}-bucket", latency).running() as server:
                with node(base / f"{cache}-{round_}-{latency}", server.url, secret) as subject:
                    fetched[latency].append(read_all(subject, files)[0])
                requests = max(requests, len(server.asked))
    usual = statistics.median(neighbour)
    figures = " | ".join(f"{spread([1e3 * (one - usual) for one in fetched[latency]])}" for latency in LATENCIES)
    return f"| {cache} | {len(files)} | {1e3 * usual:.0f} | {requests} | +{figures} |"


def cold_starts(base: Path, secret: Path) -> str:
    """The time in the filesystem of cold starts that the fleet cannot help, with it by without it."""
    starts, content = replay.recorded(), b"".join(corpus().values())
    taken: dict[str, list[float]] = {"with": [], "without": []}
    files = {f"triton/OTHER{number}/add.ptx": b"of another program" for number in range(OTHERS)}
    publish("other", files, base, secret)
    with (
        BucketServer(base / "other-bucket").running() as server,
        node(base / "cold-with", server.url, secret) as there,
        node(base / "cold-without", "", secret) as absent,
    ):
        for name, subject in in_turn({"with": there, "without": absent}, range(PAIRS)):
            seconds = replay.replay(starts[replay.COLD], str(subject.root), content)
            empty(subject.root)
            seconds += replay.replay(starts[replay.MODEL], str(subject.root), content)
            empty(subject.root)
            taken[name].append(seconds)
        asked = len(server.packs_asked)
    ratio = spread([100 * (one - 1) for one in ratios(taken["with"], taken["without"])], " %")
    extra = statistics.median(taken["with"]) - statistics.median(taken["without"])
    return f"cold starts, {PAIRS} pairs: {ratio}; {1e3 * extra:+.0f} ms of both; {asked} packs asked for"


def busy_client(base: Path, secret: Path, files: dict[str, bytes]) -> str:
    """The p99 and the worst of a busy client beside the import of a pack, by those beside none."""
    found: dict[str, list[tuple[float, float]]] = {"import": [], "alone": []}
    with BucketServer(base / f"{CACHES[-1]}-bucket", 0.03).running() as server:
        for kind, number in in_turn({"import": 0, "alone": 1}, range(ROUNDS)):
            place = base / f"busy-{number}-{len(found['import'])}-{len(found['alone'])}"
            with node(place, server.url, secret) as subject:
                command = [sys.executable, "-S", "-c", CLIENT, str(subject.mountpoint), "1.5"]
                client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                time.sleep(0.3)
                if kind == "import":
                    with open(subject.mountpoint / min(files), "rb"):
                        pass
                p99, worst, _ = map(float, client.communicate()[0].split())
                found[kind].append((p99, worst))
    told = [
        f"{kind}: p99 {1e3 * statistics.median(one for one, _ in rows):.1f} ms, "
        f"worst {1e3 * max(worst for _, worst in rows):.0f} ms"
        for kind, rows in found.items()
    ]
    return "busy client: " + "; ".join(told)


if __name__ == "__main__":
    main()
