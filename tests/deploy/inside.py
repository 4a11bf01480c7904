"""Runs inside the containers of the tests: works on a folder until told to stop, and prints a line per correct round.

It is a program for a Python without the tests, so it imports only the standard library.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from pathlib import Path


def work(folder: Path, name: str) -> None:
    """Do what compilers do with a cache: temporary folders, renames, locks, maps, listings; and check the results."""
    for turn in range(sys.maxsize):
        if (folder / "stop").exists():
            return
        content = f"{name} {turn} ".encode() * 3000
        temporary = folder / f"tmp.{name}"
        temporary.mkdir()
        (temporary / "kernel").write_bytes(content)
        entry = folder / f"{name}-{turn}"
        entry.mkdir()
        os.rename(temporary / "kernel", entry / "kernel")
        temporary.rmdir()
        with open(folder / "lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with open(folder / f"{name}.log", "ab") as log:
                log.write(b"%d\n" % turn)
        for path in (folder / f"{name}-{max(0, turn - 5)}", entry):
            with open(path / "kernel", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                number = path.name.rpartition("-")[2]
                assert view[:] == f"{name} {number} ".encode() * 3000, f"{path} holds something else"
        assert f"{name}-{turn}" in os.listdir(folder)
        assert (folder / f"{name}.log").read_bytes().count(b"\n") == turn + 1
        print(turn, flush=True)


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2])
