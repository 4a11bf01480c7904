"""How small packs of real caches are, and how fast they are made and unpacked: python -m benchmarks.packs

Each cache of the corpus is packed at the level of packs that are made once, and at the one for packs that are made
while others wait. It is unpacked into a fresh mount. The time of `unpack` is that of the whole work in the process:
checking, decoding, writing through the mount.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.disk import write_all
from benchmarks.measure import corpus
from benchmarks.subjects import Kcachefs
from kcachefs.fleet import finding, making, packfile, unpacking
from kcachefs.fleet.targets import MountTarget
from kcachefs.fleet.views import FolderView

ROUNDS = 5


def main() -> None:
    files = corpus()
    caches = sorted({path.split("/")[0] for path in files})
    print("| cache | folder MB | level 19 | made in s | level 9 | made in s | files | unpacked files/s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as base:
        for cache in caches:
            own = {path.partition("/")[2]: data for path, data in files.items() if path.startswith(f"{cache}/")}
            write_all(Path(base, cache), own)
            print(row(cache, Path(base, cache), Path(base), sum(map(len, own.values()))), flush=True)


def row(cache: str, root: Path, base: Path, folder: int) -> str:
    view, pack = FolderView(root), base / f"{cache}.kcp"
    entries = finding.find(view, [], lambda line: None)
    figures = []
    for level in (making.LEVEL, making.QUICK_LEVEL):
        begin = time.perf_counter()
        making.make(view, entries, pack, level=level)
        took = time.perf_counter() - begin
        figures.append(f"{folder / pack.stat().st_size:.1f}x | {took:.2f}")
    rates, count = [], 0
    for number in range(ROUNDS):
        rate, count = unpacked(pack, base / f"{cache}-{number}")
        rates.append(rate)
    return f"| {cache} | {folder / 1e6:.1f} | {' | '.join(figures)} | {count} | {statistics.median(rates):,.0f} |"


def unpacked(pack: Path, place: Path) -> tuple[float, int]:
    """Files a second, and files, of unpacking into a fresh mount."""
    place.mkdir()
    subject = Kcachefs("direct", place)
    subject.open()
    try:
        done, begin = unpacking.Unpacked(), time.perf_counter()
        with packfile.opened(pack, (), allow_unsigned=True) as opened:
            unpacking.unpack(opened, MountTarget(subject.mountpoint), done)
        return done.files / (time.perf_counter() - begin), done.files
    finally:
        subject.close()


if __name__ == "__main__":
    main()
