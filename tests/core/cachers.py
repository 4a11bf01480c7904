"""Processes that use a mount as compilers do: they look up entries, read whole ones, and make missing ones."""

from __future__ import annotations

import hashlib
import mmap
import os
import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SUFFIXES = ("source", "ttir", "ttgir", "llir", "ptx", "cubin", "json")


def content(key: str, part: str, size: int) -> bytes:
    """What a file must hold: incompressible, and determined by its name."""
    return random.Random(f"{key}/{part}").randbytes(size)


@dataclass
class Cacher:
    """One process. It draws keys from a working set much larger than the quota, newer ones more often."""

    root: Path
    number: int
    keys: int
    size: int
    deeds: dict[str, int] = field(default_factory=lambda: {"read": 0, "made": 0, "mapped": 0})

    def work(self, stop: Path) -> dict[str, int]:
        """Work until the file `stop` exists; returns how often it did what."""
        choose = random.Random(f"{os.environ['KCACHEFS_SEED']} {self.number}")
        held: list[tuple[str, mmap.mmap]] = []
        while not stop.exists():
            key = f"K{int(choose.triangular(0, self.keys, self.keys * 0.8)):05d}"
            if choose.random() < 0.5:
                self.kernel(key)
            else:
                self.module(key)
            if choose.random() < 0.05:
                held = [*held[-4:], *self.map(key)]
            for name, view in held:
                assert view[:] == content(name, "cubin", self.size), f"the mapped {name} changed"
        return self.deeds

    def kernel(self, key: str) -> None:
        """As Triton: once the group file exists, all the files that it names must exist."""
        folder = self.root / "triton" / key
        if (folder / "__grp__kernel.json").exists():
            for suffix in SUFFIXES:
                got = (folder / f"kernel.{suffix}").read_bytes()
                assert got == content(key, suffix, self.size), f"{folder}/kernel.{suffix} is wrong"
            self.deeds["read"] += 1
            return
        for name in (*(f"kernel.{suffix}" for suffix in SUFFIXES), "__grp__kernel.json"):
            data = b"{}" if name.startswith("__grp__") else content(key, name.partition(".")[2], self.size)
            self._publish(folder, name, data)
        self.deeds["made"] += 1

    def _publish(self, folder: Path, name: str, data: bytes) -> None:
        temporary = folder / f"tmp.pid_{os.getpid()}_{self.number}_{name}"
        temporary.mkdir(parents=True)
        (temporary / name).write_bytes(data)
        os.replace(temporary / name, folder / name)
        with suppress(OSError):
            os.removedirs(temporary)

    def module(self, key: str) -> None:
        """As Inductor: one Python file, written under another name and renamed."""
        stem = hashlib.sha256(key.encode()).hexdigest()[:40]
        folder = self.root / "inductor" / stem[:2]
        path = folder / f"c{stem}.py"
        try:
            got = path.read_bytes()
        except FileNotFoundError:
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{os.getpid()}.{self.number}.tmp"
            temporary.write_bytes(content(key, "py", self.size))
            os.replace(temporary, path)
            self.deeds["made"] += 1
        else:
            assert got == content(key, "py", self.size), f"{path} is wrong"
            self.deeds["read"] += 1

    def map(self, key: str) -> list[tuple[str, mmap.mmap]]:
        try:
            with open(self.root / "triton" / key / "kernel.cubin", "rb") as file:
                view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (FileNotFoundError, ValueError):
            return []
        self.deeds["mapped"] += 1
        return [(key, view)]
