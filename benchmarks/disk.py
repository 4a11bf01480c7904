"""Bytes on disk for real caches, everything included: for one copy, mounted and at rest, and for eight tenants.

Eight tenants who compile the same code at the same path get the same files, except for the pickles of graphs, of which
about 85 bytes differ from tenant to tenant; these copies differ in the same way. What counts is the blocks that the
disk has allocated after everything was closed or unmounted, so each filesystem's own needs are included. For kcachefs
that is the size once the mount has been idle: the same code that works while it is idle runs at once here.
"""

from __future__ import annotations

import gzip
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import corpus
from benchmarks.peers import installed
from benchmarks.running import Run
from benchmarks.store import allocated
from benchmarks.subjects import Kcachefs
from kcachefs.daemon.idle_work import ROOM_SECONDS
from kcachefs.store import Options, Store

Files = dict[str, bytes]
IDLE_SECONDS = 2 * ROOM_SECONDS
PICKLES = ("/fxgraph/", "/aotautograd/")


def part(run: Run) -> None:
    base = run.place("disk")
    copy = {path: data for path, data in corpus().items() if not run.quick or path.startswith("triton/")}
    sets = {
        "one copy": copy,
        "eight tenants": {f"{t}/{path}": data for t in range(8) for path, data in tenant(copy, t)},
    }
    for what, files in sets.items():
        sizes: dict[str, list[float]] = {}
        for name, make in MAKERS.items():
            run.say(f"disk, {what}, {name}")
            folder = base / name.replace(" ", "-") / what.replace(" ", "-")
            folder.mkdir(parents=True)
            try:
                size = make(folder, files)
            except (OSError, subprocess.CalledProcessError) as error:
                run.results.absent[name] = str(error)
                continue
            sizes[name] = [size / 1e6]
            shutil.rmtree(folder)
        run.add(what, "MB", sizes)
    folder = base / "idle"
    run.say("disk, mounted and idle")
    plain = on_ext4(folder / "plain", copy) / 1e6
    run.add("one copy, mounted and idle", "MB", {"ext4": [plain], "direct": [mounted_and_idle(folder, copy) / 1e6]})
    shutil.rmtree(folder)


def tenant(files: Files, number: int) -> list[tuple[str, bytes]]:
    """One tenant's copy of the files."""
    rng = random.Random(number)
    return [(path, _altered(data, rng) if number and _is_pickle(path) else data) for path, data in files.items()]


def _is_pickle(path: str) -> bool:
    return any(folder in path for folder in PICKLES)


def _altered(data: bytes, rng: random.Random, count: int = 85) -> bytes:
    changed = bytearray(data)
    for _ in range(min(count, len(changed))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def write_all(base: Path, files: Files, encode: Callable[[bytes], bytes] = bytes) -> None:
    for path, data in files.items():
        target = base / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(encode(data))


def on_ext4(folder: Path, files: Files) -> float:
    write_all(folder, files)
    return _allocated(folder)


def gzipped(folder: Path, files: Files) -> float:
    write_all(folder, files, gzip.compress)
    return _allocated(folder)


def in_squashfs(folder: Path, files: Files) -> float:
    """squashfs finds identical files, but cannot be written to."""
    if not installed("squashfs-tools", "mksquashfs"):
        raise OSError("squashfs-tools are missing and could not be installed")
    write_all(folder / "tree", files)
    image = folder / "image"
    command = ["mksquashfs", str(folder / "tree"), str(image), "-comp", "zstd", "-quiet", "-no-progress"]
    subprocess.run(command, check=True, capture_output=True)
    return _allocated(image)


def on_btrfs(folder: Path, files: Files) -> float:
    """Compressed by the kernel, on an image of its own; returns the growth over the empty filesystem."""
    if not installed("btrfs-progs", "mkfs.btrfs"):
        raise OSError("btrfs-progs are missing and could not be installed")
    image, mount = folder / "image", folder / "mount"
    with open(image, "wb") as file:
        file.truncate(2 << 30)
    mount.mkdir()
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop,compress=zstd", image, mount], check=True, capture_output=True)
    try:
        before = _used(mount)
        write_all(mount, files)
        subprocess.run(["sync", "-f", mount], check=True)
        return _used(mount) - before
    finally:
        subprocess.run(["umount", mount], check=True)


def on_kcachefs(folder: Path, files: Files) -> float:
    subject = Kcachefs("direct", folder)
    subject.open()
    try:
        write_all(subject.folder, files)
    finally:
        subject.close()
    with Store(folder / "store", Options(background=False)) as store:
        for _ in store.repack(0):
            pass
    return _allocated(folder / "store")


def mounted_and_idle(folder: Path, files: Files) -> float:
    """The least that the store of a mount takes while nobody uses it."""
    on_kcachefs(folder, files)
    subject = Kcachefs("direct", folder)
    subject.open()
    try:
        write_all(subject.folder, {f"more/{path}": data + b"\n" for path, data in list(files.items())[:20]})
        shutil.rmtree(subject.folder / "more")
        least, until = _allocated(folder / "store"), time.monotonic() + IDLE_SECONDS
        while time.monotonic() < until:
            time.sleep(1)
            least = min(least, _allocated(folder / "store"))
        return least
    finally:
        subject.close()


MAKERS: dict[str, Callable[[Path, Files], float]] = {
    "ext4": on_ext4,
    "ext4, gzip each": gzipped,
    "squashfs": in_squashfs,
    "btrfs, zstd": on_btrfs,
    "direct": on_kcachefs,
}


def _allocated(path: Path) -> float:
    os.sync()
    return float(allocated(path))


def _used(mount: Path) -> float:
    found = os.statvfs(mount)
    return float((found.f_blocks - found.f_bfree) * found.f_frsize)
