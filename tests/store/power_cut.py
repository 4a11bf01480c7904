"""Cuts the power of a mount in use, again and again, and judges what the next mount finds: scripts/power_cut.

The store lies on an ext4 in an image file. At a random instant the daemon is stopped and the image is copied: the
copy has what had reached the disk, and nothing that was only in memory. Before that some of the store's files, chosen
at random, are written back, as a kernel may do at any time: so bytes and records reach the disk in any order. Then
the copy is mounted, its store is opened as after a reboot, and every file is compared with what its writer had said.
"""

from __future__ import annotations

import json
import logging
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kcachefs.core import Filesystem
from kcachefs.store import Options, Store
from kcachefs.store.fsck import run as fsck
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.places import HEADER
from tests.disks import Disk, ext4, tmpfs
from tests.engines.mounting import Mount
from tests.store.kill import stop
from tests.store.power_writers import GROUP, PARTS, PIECES, content
from tests.waiting import PATIENCE

MEGABYTES = 512
CUTS_PER_DISK = 15
"""After so many cuts everything starts afresh, on a new disk."""
SYNCED_MIN = 5
"""Files and entries that have to be synced before a cut: one that cannot lose anything says nothing."""
OPTIONS = ("--max-size", "1GiB", "--min-free", "1MiB")
"""Nothing is evicted: whatever is missing was lost."""


@dataclass
class Findings:
    """What the cuts so far have shown."""

    rounds: int = 0
    judged: int = 0
    """Files that were there and were compared."""
    must_be_there: int = 0
    """Files and entries that had been synced."""
    wrong_bytes: list[str] = field(default_factory=list)
    partial_entries: list[str] = field(default_factory=list)
    synced_lost: list[str] = field(default_factory=list)
    inconsistent: list[str] = field(default_factory=list)
    """What fsck found after the store had been mounted."""

    @property
    def are_good(self) -> bool:
        return not (self.wrong_bytes or self.partial_entries or self.synced_lost or self.inconsistent)

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds: {len(self.wrong_bytes)} wrong bytes, {len(self.partial_entries)} partial entries, "
            f"{len(self.synced_lost)} synced lost, {len(self.inconsistent)} inconsistencies; "
            f"{self.judged} files compared, {self.must_be_there} had to be there"
        )


# --- what the writers say ---------------------------------------------------------------------------------------------


@dataclass
class Told:
    """What a writer has said of a file or an entry."""

    begun: int = 0
    synced: int = 0
    """The version that was synced last; 0 when a removal was begun since."""


class Writers:
    """The process that writes, and what it has said so far."""

    def __init__(self, root: Path, seed: int) -> None:
        command = [sys.executable, "-m", "tests.store.power_writers", str(root), str(seed)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._rest = b""
        self._said = 0
        self.files: dict[str, Told] = {}
        self.entries: dict[str, Told] = {}

    def listen(self) -> None:
        """Take note of all that has been said until now."""
        assert self._process.stdout is not None
        with suppress(BlockingIOError):
            while more := os.read(self._process.stdout.fileno(), 1 << 20):
                *lines, self._rest = (self._rest + more).split(b"\n")
                self._said += len(lines)
                for line in lines:
                    self._note(line.decode())

    def let_them_say(self, lines: int) -> None:
        """Wait until they have said so much more, and a few files are synced."""
        assert self._process.stdout is not None
        enough, poll = self._said + lines, select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        while self._said < enough or self.synced < SYNCED_MIN:
            assert poll.poll(PATIENCE * 1000), "the writers say nothing any more"
            self.listen()

    def _note(self, line: str) -> None:
        stage, act, name, version = line.split()
        assert stage != "failed", line
        told = (self.files if "/" in name else self.entries).setdefault(name, Told())
        if (stage, act) in (("begin", "write"), ("begin", "entry")):
            told.begun = int(version)
        elif (stage, act) == ("done", "sync"):
            told.synced = int(version)
        elif (stage, act) in (("begin", "unlink"), ("begin", "remove")):
            told.synced = 0

    @property
    def synced(self) -> int:
        """How many files and entries must be there after a power cut."""
        return sum(told.synced > 0 for told in (*self.files.values(), *self.entries.values()))

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()


# --- cutting ----------------------------------------------------------------------------------------------------------


@contextmanager
def in_use(folder: Path, name: str, seed: int) -> Iterator[tuple[Disk, Mount, Writers]]:
    """A mount whose store is on a disk of its own, with writers at work."""
    with ext4(folder, name, megabytes=MEGABYTES) as disk, ExitStack() as scope:
        mount = scope.enter_context(Mount(folder / f"{name}.mount", disk.path / "store", "direct", *OPTIONS))
        writers = Writers(mount.mountpoint, seed)
        scope.callback(writers.close)
        yield disk, mount, writers
    assert disk.image is not None
    disk.image.unlink()


def write_back_some(store: Path, chosen: random.Random) -> None:
    """Have the disk get some files' bytes, as the kernel may at any time."""
    for path in sorted(path for path in store.rglob("*") if path.suffix in (".log", ".vol", ".arena", "")):
        if chosen.random() < 0.3 and path.parent.name != "catalog":
            with suppress(FileNotFoundError, IsADirectoryError), open(path, "rb") as file:
                os.fdatasync(file.fileno())


@contextmanager
def cut(folder: Path, disk: Disk, mount: Mount, writers: Writers, chosen: random.Random) -> Iterator[Path]:
    """The store as it is found after the power went: on a copy of the disk as it is now."""
    assert disk.image is not None
    copy = folder / "copy.img"
    worker = mount.daemon()[1]
    if chosen.random() < 0.5:
        write_back_some(mount.store, chosen)
    stop(worker)
    try:
        writers.listen()
        subprocess.run(["cp", "--sparse=always", str(disk.image), str(copy)], check=True)
    finally:
        os.kill(worker, signal.SIGCONT)
    try:
        with ext4(folder, "copy", image=copy) as lost:
            store = lost.path / "store"
            header = json.loads((store / HEADER).read_bytes())
            assert header["boot"], "the store was open, and its header does not say so"
            (store / HEADER).write_text(json.dumps({**header, "boot": "another boot"}))
            yield store
        os.rmdir(lost.path)
    finally:
        copy.unlink()


# --- judging ----------------------------------------------------------------------------------------------------------


def judge(store: Path, writers: Writers, findings: Findings) -> None:
    """Open what is left of a store as the next mount does, and compare every file with what was said of it."""
    findings.rounds += 1
    with Store(store, Options(background=False)) as opened:
        fs = Filesystem(opened)
        found = dict(_files(fs, ROOT_INO, ""))
        fs.settle()
    for name, told in writers.files.items():
        _judge_file(f"round {findings.rounds}: {name}", name, found.get(name), told, findings)
    for key, told in writers.entries.items():
        _judge_entry(f"round {findings.rounds}: {key}", key, found, told, findings)
    findings.inconsistent += [f"round {findings.rounds}: {finding}" for finding in fsck(store).findings]


def _files(fs: Filesystem, folder: int, path: str) -> Iterator[tuple[str, bytes]]:
    for _, name, ino, kind in fs.tree.listing(folder, 2, 1 << 30):
        below = f"{path}{os.fsdecode(name)}"
        if kind == 4:
            yield from _files(fs, ino, f"{below}/")
        else:
            try:
                yield below, fs.read(ino, 0, fs.attributes(ino).size)
            except Exception as error:
                yield below, b"cannot be read: %r" % error


def _judge_file(what: str, name: str, found: bytes | None, told: Told, findings: Findings) -> None:
    findings.must_be_there += bool(told.synced)
    if found is None:
        if told.synced:
            findings.synced_lost.append(f"{what}: version {told.synced} was synced, and the file is gone")
        return
    findings.judged += 1
    version = next((v for v in range(told.begun, 0, -1) if content(name, v) == found), 0)
    if not version and not _is_half_overwritten(name, found, told):
        versions = f"at version {told.begun}, version {told.synced} synced"
        findings.wrong_bytes.append(f"{what}: {_describe(found)}, {versions}")
    elif version and version < told.synced:
        findings.synced_lost.append(f"{what}: version {told.synced} was synced, and {version} is there")


def _is_half_overwritten(name: str, found: bytes, told: Told) -> bool:
    """Whether a file is what it was between two writes to it: a writer may pause for so long that it is sealed then."""
    if name.startswith("jax/r"):  # replaced by a rename, and so never seen half written
        return False
    for version in range(told.synced + 1, told.begun + 1):
        data = content(name, version)
        for before in (b"", *(content(name, one) for one in range(max(1, told.synced), version))):
            if any(_is_mixed(found, before, data, len(data) // parts + 1) for parts in range(1, PIECES + 1)):
                return True
    return False


def _is_mixed(found: bytes, before: bytes, data: bytes, step: int) -> bool:
    """Whether some of the pieces of `data`, each as long as `step`, were written over `before`, and nothing else."""
    made = bytearray(before)
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        if found[start : start + len(piece)] == piece:
            made.extend(bytes(max(0, start + len(piece) - len(made))))
            made[start : start + len(piece)] = piece
    return made == found


def _judge_entry(what: str, key: str, found: dict[str, bytes], told: Told, findings: Findings) -> None:
    findings.must_be_there += bool(told.synced)
    there = {part for part in (*PARTS, GROUP) if f"triton/{key}/{part}" in found}
    for part in there:
        findings.judged += 1
        name = f"triton/{key}/{part}"
        if found[name] != content(name, 1):
            findings.wrong_bytes.append(f"{what}: {part}: {_describe(found[name])}")
    if GROUP in there and len(there) <= len(PARTS):
        findings.partial_entries.append(f"{what}: only {sorted(there)}")
    if told.synced and GROUP not in there:
        findings.synced_lost.append(f"{what}: was synced, and its group file is gone")


def _describe(found: bytes) -> str:
    zeros = found.count(0)
    return f"{len(found)} bytes, {zeros} of them zero, beginning {found[:40]!r}"


# --- many cuts --------------------------------------------------------------------------------------------------------


def rounds(count: int, seed: int, folder: Path) -> Iterator[Findings]:
    """Cut that often; yields what was found until then after every cut. The disks are in memory, which is quick."""
    findings, chosen = Findings(), random.Random(seed)
    with tmpfs(folder, megabytes=3 * MEGABYTES) as memory:
        while findings.rounds < count:
            here = min(CUTS_PER_DISK, count - findings.rounds)
            with in_use(memory.path, f"disk{findings.rounds}", chosen.randrange(1 << 32)) as (disk, mount, writers):
                for _ in range(here):
                    writers.let_them_say(chosen.randrange(1, 300))
                    with cut(memory.path, disk, mount, writers, chosen) as store:
                        judge(store, writers, findings)
                    yield findings


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    if os.geteuid() != 0:
        sys.exit("only root may mount disk images")
    logging.disable(logging.CRITICAL)
    print(f"{count} rounds, seed {seed}", flush=True)
    seen: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="kcachefs-power-") as folder:
        os.environ["KCACHEFS_RUNTIME_DIR"] = f"{folder}/run"
        os.environ["KCACHEFS_LOG_DIR"] = f"{folder}/log"
        for findings in rounds(count, seed, Path(folder)):
            bad = {*findings.wrong_bytes, *findings.partial_entries, *findings.synced_lost, *findings.inconsistent}
            for line in sorted(bad - seen):
                print(line, flush=True)
            seen = bad
            if findings.rounds % 10 == 0 or findings.rounds == count:
                print(findings, flush=True)
    sys.exit(0 if findings.are_good else 1)


if __name__ == "__main__":
    main()
