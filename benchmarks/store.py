"""The store compared with plain files: `python -m benchmarks.store [--quick]` prints tables with the aims.

Trust the ratios of one run, not the microseconds: what is compared takes turns. Everything is on the disk that --folder
is on, by default the one with this checkout.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import lmdb
from blake3 import blake3

from benchmarks.measure import corpus, pieces, ratios, spread, stopwatch, take_turns
from kcachefs.store import ContentStore, Options, Store
from kcachefs.store.frames import Codec
from kcachefs.store.ledger import Staged

SIZE = 16 << 10
THREADS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds, and a hundred thousand objects instead of a million"
    )
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="where to work")
    parser.add_argument("--only", choices=[*TABLES], help="print only this table")
    arguments = parser.parse_args()
    for name, table in TABLES.items():
        if arguments.only in (None, name):
            print(f"## {table.__doc__}\n", flush=True)
            with scratch(arguments.folder) as folder:
                rows = table(folder, arguments.quick)
            show(rows)


def show(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, tuple("-" * width for width in widths))
    for row in rows:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    print(flush=True)


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=folder) as made:
        yield Path(made)


# --- puts -------------------------------------------------------------------------------------------------------------


def table_put(folder: Path, quick: bool) -> list[tuple[str, ...]]:
    """Puts of 16 KiB of real cache content, 4 threads"""
    contents = pieces(1000 if quick else 2000, SIZE)
    rounds = 5 if quick else 15

    def into_store() -> float:
        path = folder / "store"
        with ContentStore(path) as store:
            seconds = in_threads(contents, store.put)
        shutil.rmtree(path)
        return len(contents) / seconds

    def into_files() -> float:
        path = folder / "files"
        path.mkdir()
        seconds = in_threads(contents, lambda data: write_file(path, data))
        shutil.rmtree(path)
        return len(contents) / seconds

    rates = take_turns(rounds, store=into_store, files=into_files)
    return [
        ("", "per second", "against files", "aim"),
        ("temp + rename", spread(rates["files"], digits=0), "1", ""),
        ("put", spread(rates["store"], digits=0), spread(ratios(rates["store"], rates["files"]), digits=2), ">= 0.5"),
    ]


def write_file(folder: Path, data: bytes) -> None:
    """Write a file as frameworks do: under a temporary name, then renamed."""
    name = folder / blake3(data).hexdigest(8)
    temporary = f"{name}.{threading.get_ident()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, data)
    os.close(fd)
    os.rename(temporary, name)


def in_threads(contents: list[bytes], act: Callable[[bytes], object]) -> float:
    def work(part: list[bytes]) -> None:
        for data in part:
            act(data)

    threads = [threading.Thread(target=work, args=(contents[number::THREADS],)) for number in range(THREADS)]
    with stopwatch() as taken:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return taken[0]


# --- gets -------------------------------------------------------------------------------------------------------------


def table_get(folder: Path, quick: bool) -> list[tuple[str, ...]]:
    """Gets of 16 KiB, one thread, microseconds"""
    contents = pieces(1000, SIZE)
    rounds = 7 if quick else 25
    files = []
    with ContentStore(folder / "store") as store:
        digests = [store.put(data) for data in contents]
    for data in contents:
        write_file(folder, data)
        files.append(str(folder / blake3(data).hexdigest(8)))
    store = ContentStore(folder / "store")

    def open_read_close() -> float:
        with stopwatch() as taken:
            for file in files:
                fd = os.open(file, os.O_RDONLY)
                os.read(fd, SIZE)
                os.close(fd)
        return taken[0] / len(files) * 1e6

    def get_all() -> float:
        with stopwatch() as taken:
            for digest in digests:
                store.get(digest)
        return taken[0] / len(digests) * 1e6

    def first() -> float:
        nonlocal store
        store.close()
        store = ContentStore(folder / "store")
        return get_all()

    times = take_turns(rounds, files=open_read_close, first=first, again=get_all)
    store.close()
    rows: list[tuple[str, ...]] = [
        ("", "µs", "against a file", "aim"),
        ("open + read + close, warm", spread(times["files"]), "1", ""),
    ]
    for name, label in (("first", "get, first: decoded and verified"), ("again", "get, again")):
        rows.append((label, spread(times[name]), spread(ratios(times[name], times["files"])), "<= 5"))
    return rows


# --- size -------------------------------------------------------------------------------------------------------------


def table_size(folder: Path, quick: bool) -> list[tuple[str, ...]]:
    """The corpus on disk: allocated blocks, folders and everything included"""
    files = corpus()
    plain = sum(map(len, files.values()))
    makers = {"files as they are": as_files, "a zstd file each": as_zstd_files, "values in LMDB": as_values}
    makers["volumes (what the store does)"] = as_store
    sizes = {}
    for number, (name, make) in enumerate(makers.items()):
        make(folder / str(number), files)
        os.sync()
        sizes[name] = allocated(folder / str(number))
    rows: list[tuple[str, ...]] = [
        ("", "MB", "smaller", "aim"),
        (f"{len(files)} files, plain bytes", f"{plain / 1e6:.2f}", "", ""),
    ]
    before = sizes["files as they are"]
    for name, size in sizes.items():
        aim = ">= 7" if name.startswith("volumes") else ""
        rows.append((name, f"{size / 1e6:.2f}", f"{before / size:.2f}", aim))
    return rows


def allocated(path: Path) -> int:
    total = path.stat().st_blocks
    for folder, folders, files in os.walk(path):
        total += sum(os.lstat(os.path.join(folder, name)).st_blocks for name in [*folders, *files])
    return total * 512


def as_files(path: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)


def as_zstd_files(path: Path, files: dict[str, bytes]) -> None:
    codec = Codec()
    for data in files.values():
        name = blake3(data).hexdigest()
        (path / name[:2]).mkdir(parents=True, exist_ok=True)
        (path / name[:2] / name).write_bytes(codec.encode_frame(data))


def as_values(path: Path, files: dict[str, bytes]) -> None:
    codec = Codec()
    path.mkdir()
    with lmdb.open(str(path), map_size=1 << 30) as env, env.begin(write=True) as txn:
        for data in files.values():
            txn.put(blake3(data).digest(), codec.encode_frame(data))


def as_store(path: Path, files: dict[str, bytes]) -> None:
    with ContentStore(path) as store:
        for data in files.values():
            store.put(data)


# --- a million --------------------------------------------------------------------------------------------------------


def table_million(folder: Path, quick: bool) -> list[tuple[str, ...]]:
    """A store of many objects"""
    counts = {"few": 10_000, "many": 100_000 if quick else 1_000_000}
    for name, count in counts.items():
        fill(folder / name, count)
    answers: dict[str, dict[str, list[float]]] = {name: {} for name in counts}

    def in_a_process_of_its_own(name: str) -> float:
        command = [sys.executable, "-m", "benchmarks.store_child", str(folder / name), str(counts[name])]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
        for field, value in (line.split() for line in done.stdout.splitlines()):
            answers[name].setdefault(field, []).append(float(value))
        return 0.0

    take_turns(
        3 if quick else 7, few=lambda: in_a_process_of_its_own("few"), many=lambda: in_a_process_of_its_own("many")
    )
    times = time_gets(folder, counts, 7 if quick else 25)
    few, many = answers["few"], answers["many"]
    slower = ratios(times["many"], times["few"])
    return [
        ("", f"{counts['few']:,} objects", f"{counts['many']:,} objects", "ratio", "aim"),
        ("open, s", spread(few["open"], digits=3), spread(many["open"], digits=3), "", "< 2"),
        ("get of a random one, µs", spread(times["few"]), spread(times["many"]), spread(slower, digits=2), "<= 1.3"),
        ("resident memory, MiB", spread(few["rss"]), spread(many["rss"]), "", "< 256"),
        ("of it anonymous, MiB", spread(few["anonymous"]), spread(many["anonymous"]), "", ""),
    ]


def time_gets(folder: Path, counts: dict[str, int], rounds: int) -> dict[str, list[float]]:
    """Microseconds for a get that decodes and verifies; the stores take turns in one process."""
    with ExitStack() as stack:
        works: dict[str, Callable[[], float]] = {}
        for name, count in counts.items():
            store = stack.enter_context(Store(folder / name, Options(cache_bytes=0)))
            works[name] = partial(get_all, store, random_digests(count))
            works[name]()  # after this the disk and the mapping of LMDB's pages no longer matter
        return take_turns(rounds, **works)


def get_all(store: Store, digests: list[bytes]) -> float:
    with stopwatch() as taken:
        for digest in digests:
            store.objects.get(digest)
    return taken[0] / len(digests) * 1e6


def random_digests(count: int) -> list[bytes]:
    """The digests of random objects that `fill` made."""
    chosen = random.Random(1)
    return [blake3(small_object(chosen.randrange(count))).digest() for _ in range(5000)]


def fill(path: Path, count: int) -> None:
    """Fill a store with small objects, a thousand per transaction."""
    with Store(path, Options(background=False)) as store:
        for start in range(0, count, 1000):
            staged: list[Staged] = [store.objects.stage(small_object(number)) for number in range(start, start + 1000)]
            with store.transaction() as txn:
                for one in staged:
                    store.objects.link(txn, one, held=True)
            for one in staged:
                store.objects.settle(one)
            if start % 20_000 == 0:
                store.fold()


def small_object(number: int) -> bytes:
    return random.Random(number).randbytes(300) + bytes(700)


TABLES: dict[str, Callable[[Path, bool], list[tuple[str, ...]]]] = {
    "put": table_put,
    "get": table_get,
    "size": table_size,
    "million": table_million,
}

if __name__ == "__main__":
    main()
