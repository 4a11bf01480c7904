"""Programs that write to a mount until the power goes: `python -m tests.store.power_writers FOLDER SEED`.

Each thread writes in one of the ways that caches are written, and says on the standard output what it begins and what
it has done. What a file holds follows from its name and its version, so whoever finds it later can judge it.

    write NAME VERSION     the file holds this version: overwritten in place, or replaced by a rename
    sync NAME VERSION      and fsync(2) has returned
    unlink NAME VERSION    the file is gone
    entry KEY VERSION      a Triton entry: its parts, then the group file that names them
    remove KEY VERSION     the entry is gone, the group file first
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

FILES = 6
"""Files of each kind: few, so that each is written often."""
PIECES = 5
"""Pieces in which a file is overwritten, at most."""
ENTRIES = 8
"""Entries that are kept at a time."""
PARTS = ("kernel.ttir", "kernel.ptx", "kernel.cubin", "kernel.json")
GROUP = "__grp__kernel.json"

_say_lock = threading.Lock()


def content(name: str, version: int) -> bytes:
    """What a version of a file holds: mostly little, sometimes more than a slot takes."""
    chosen = random.Random(f"{name} {version}")
    kind = chosen.random()
    if kind < 0.80:
        size = chosen.randrange(1, 60_000)
    elif kind < 0.93:
        size = chosen.randrange(60_000, 1_000_000)
    else:
        size = chosen.randrange(1_100_000, 2_500_000)
    pattern = b"%s %d " % (name.encode(), version) + chosen.randbytes(1000)
    return (pattern * (size // len(pattern) + 1))[:size]


def say(stage: str, act: str, name: str, version: int) -> None:
    line = f"{stage} {act} {name} {version}\n".encode()
    with _say_lock:
        os.write(1, line)


class Writer:
    """One thread. `number` tells its files from those of the others."""

    def __init__(self, root: Path, seed: int, number: int) -> None:
        self.root = root
        self.number = number
        self.chosen = random.Random(f"{seed} {number}")
        self.versions: dict[str, int] = {}

    def next_version(self, name: str) -> int:
        self.versions[name] = self.versions.get(name, 0) + 1
        return self.versions[name]

    # --- files that are overwritten in place --------------------------------------------------------------------------

    def overwrite_plain(self) -> None:
        """Never synced, and now and then made anew."""
        self._overwrite(f"tvm_ffi/e{self.chosen.randrange(FILES)}/plain{self.number}", sync=0.0, unlink=0.2)

    def overwrite_synced(self) -> None:
        """Synced now and then, in the same entries."""
        self._overwrite(f"tvm_ffi/e{self.chosen.randrange(FILES)}/synced{self.number}", sync=0.3, unlink=0.05)

    def overwrite_alone(self) -> None:
        """Each file an entry of its own, of which nothing else is synced."""
        self._overwrite(f"jax/o{self.number}.{self.chosen.randrange(FILES)}-cache", sync=0.0, unlink=0.1)

    def _overwrite(self, name: str, sync: float, unlink: float) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        version = self.next_version(name)
        if self.chosen.random() < unlink and path.exists():
            say("begin", "unlink", name, version)
            path.unlink()
            say("done", "unlink", name, version)
            return
        data = content(name, version)
        say("begin", "write", name, version)
        truncate = os.O_TRUNC if self.chosen.random() < 0.4 else 0
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | truncate, 0o644)
        try:
            pieces = range(0, len(data), len(data) // self.chosen.randrange(1, PIECES + 1) + 1)
            for start in self.chosen.sample(pieces, len(pieces)):
                os.pwrite(descriptor, data[start : start + pieces.step], start)
            os.ftruncate(descriptor, len(data))
            say("done", "write", name, version)
            if self.chosen.random() < sync:
                os.fsync(descriptor)
                say("done", "sync", name, version)
        finally:
            os.close(descriptor)

    # --- files that are replaced --------------------------------------------------------------------------------------

    def replace(self) -> None:
        """By a rename; some are synced, before it and after it, and the others take their place unsynced."""
        name = f"jax/r{self.number}.{self.chosen.randrange(FILES)}-cache"
        version = self.next_version(name)
        temporary = self.root / f"jax/tmp.{self.number}"
        is_synced = self.chosen.random() < 0.3
        say("begin", "write", name, version)
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.pwrite(descriptor, content(name, version), 0)
            if is_synced:
                os.fsync(descriptor)
            os.rename(temporary, self.root / name)
            say("done", "write", name, version)
            if is_synced:
                os.fsync(descriptor)
                say("done", "sync", name, version)
        finally:
            os.close(descriptor)

    # --- entries of several files -------------------------------------------------------------------------------------

    def entry(self) -> None:
        """As Triton makes them: each file in a temporary folder, renamed out of it; the group file last."""
        key = f"K{self.number}.{self.next_version('entry')}"
        folder = self.root / "triton" / key
        say("begin", "entry", key, 1)
        folder.mkdir()
        for part in (*PARTS, GROUP):
            temporary = folder / f"tmp.pid_{os.getpid()}_{part}"
            temporary.mkdir()
            (temporary / part).write_bytes(content(f"triton/{key}/{part}", 1))
            os.rename(temporary / part, folder / part)
            temporary.rmdir()
        say("done", "entry", key, 1)
        if self.chosen.random() < 0.2:
            with open(folder / GROUP, "rb") as group:
                os.fsync(group.fileno())
            say("done", "sync", key, 1)
        self._remove_oldest()

    def _remove_oldest(self) -> None:
        oldest = f"K{self.number}.{self.versions['entry'] - ENTRIES}"
        folder = self.root / "triton" / oldest
        if folder.exists():
            say("begin", "remove", oldest, 1)
            (folder / GROUP).unlink()
            shutil.rmtree(folder)
            say("done", "remove", oldest, 1)


ACTS: tuple[Callable[[Writer], None], ...] = (
    Writer.overwrite_plain,
    Writer.overwrite_synced,
    Writer.overwrite_alone,
    Writer.replace,
    Writer.entry,
)


def main() -> None:
    root, seed = Path(sys.argv[1]), int(sys.argv[2])

    def work(number: int) -> None:
        writer = Writer(root, seed, number)
        try:
            while True:
                ACTS[number % len(ACTS)](writer)
        except BaseException as error:
            say("failed", type(error).__name__, str(error).replace(" ", "_"), number)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(ACTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
