"""A state machine that performs the same random operations on a place and on a plain directory, and compares."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.engines.mounting import Place
from tests.engines.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from tests.engines.trees import Node, differences, snapshot

T = TypeVar("T")

# --- what is drawn: few names, so that operations collide -----------------------------------------------------------

FOLDERS = ["", "d/", "d/e/", "f/"]
ANYWHERE = [folder + name for folder in FOLDERS for name in "abdef"]


def existing(kind: str) -> st.SearchStrategy[str]:
    """A name that exists now, of this kind if there is one; sometimes any name."""
    found: st.SearchStrategy[str] = st.runner().flatmap(
        lambda machine: st.sampled_from(machine.present(kind) or ANYWHERE)
    )
    return st.one_of(found, found, found, st.sampled_from(ANYWHERE))


anywhere = st.sampled_from(ANYWHERE)
names = existing("")
files = existing("-")
folders = existing("d")
targets = st.sampled_from(["a", "b", "d", "e", "d/a", "e/b", ".", "missing"])
modes = st.sampled_from([0o000, 0o400, 0o644, 0o755, 0o777, 0o1777, 0o2755, 0o4711, 0o6777])
offsets = st.sampled_from([0, 1, 100, 4095, 4096, 5000, 65536, 200_001])
pieces = st.builds(
    lambda byte, length: bytes([byte]) * length,
    st.integers(0, 255),
    st.sampled_from([0, 1, 5, 100, 4096, 10_000, 140_000]),
)
flags = st.sampled_from([0, RENAME_NOREPLACE, RENAME_EXCHANGE])
openings = st.sampled_from(
    [
        os.O_RDWR,
        os.O_RDWR | os.O_CREAT,
        os.O_RDONLY,
        os.O_RDWR | os.O_CREAT | os.O_EXCL,
        os.O_RDWR | os.O_CREAT | os.O_TRUNC,
        os.O_RDWR | os.O_CREAT | os.O_APPEND,
        os.O_WRONLY | os.O_TRUNC,
        os.O_RDONLY | os.O_NOFOLLOW,
        os.O_RDONLY | os.O_DIRECTORY,
    ]
)

# Times that a rule sets lie in the past, which tells them from the times that operations set.
SECOND = 10**9
PRESENT = 1_700_000_000 * SECOND
moments = st.integers(-10 * SECOND, PRESENT - 1)


class Handle(NamedTuple):
    """One file, open on both sides."""

    subject: int
    reference: int


class Comparison(RuleBasedStateMachine):
    """Each rule does one thing to both sides and compares the outcomes; the trees are compared after every rule, except
    that what rules which only look leave behind is compared after the next that does not, and at the end."""

    place: ClassVar[Place]
    references: ClassVar[Path]
    """Where the plain directories are."""

    def __init__(self) -> None:
        super().__init__()
        self.subject = self.place.fresh()
        self.reference = Path(tempfile.mkdtemp(dir=self.references))
        self.reference.chmod(0o777)
        self.last: dict[str, Node] = {}
        """The reference as it was when the trees were last compared."""
        self.compared = False
        """Whether they were since a rule did more than look."""
        self.steps = 0
        self.restarted = False
        self.sound = True
        for side in self.sides:
            (side / "d" / "e").mkdir(parents=True)
            (side / "f").mkdir()
            for number, name in enumerate(("a", "d/a", "d/e/b", "f/f")):
                (side / name).write_bytes(b"%d" % number * 3000 * number)
        self.handles = [Handle(*(os.open(side / "f" / "f", os.O_RDWR) for side in self.sides))]

    def present(self, kind: str) -> list[str]:
        """The names below the root of this kind: "-" files, "d" directories, "" everything."""
        return [name for name, node in self.last.items() if node.kind.startswith(kind)]

    def teardown(self) -> None:
        try:
            # A second difference would only hide the first.
            if self.sound:
                self.compare_contents()
                self.close_handles()
                shutil.rmtree(self.subject)
        finally:
            self.close_handles()
            shutil.rmtree(self.reference)

    def both(self, operation: Callable[[Path], object], *, looks: bool = False) -> None:
        """Do the operation below both roots; the outcomes must be the same."""
        self.begin(looks)
        self.must_agree(outcome(operation, self.subject), outcome(operation, self.reference))

    def begin(self, looks: bool = False) -> None:
        self.steps += 1
        self.compared = self.compared and looks

    def must_agree(self, got: object, expected: object) -> None:
        if got != expected:
            self.sound = False
            raise AssertionError(f"a plain directory gives {shortened(expected)}, and this gives {shortened(got)}")

    # --- names ------------------------------------------------------------------------------------------------------

    @rule(path=anywhere, mode=modes)
    def mkdir(self, path: str, mode: int) -> None:
        self.both(lambda side: os.mkdir(side / path, mode))

    @rule(path=folders)
    def rmdir(self, path: str) -> None:
        self.both(lambda side: os.rmdir(side / path))

    @rule(path=files)
    def unlink(self, path: str) -> None:
        self.both(lambda side: os.unlink(side / path))

    @rule(source=names, onto=names | anywhere, flags=flags)
    def rename(self, source: str, onto: str, flags: int) -> None:
        self.both(lambda side: renameat2(side / source, side / onto, flags))

    @rule(source=files, onto=anywhere)
    def link(self, source: str, onto: str) -> None:
        self.both(lambda side: os.link(side / source, side / onto, follow_symlinks=False))

    @rule(content=targets, path=anywhere)
    def symlink(self, content: str, path: str) -> None:
        self.both(lambda side: os.symlink(content, side / path))

    @rule(path=anywhere)
    def mkfifo(self, path: str) -> None:
        self.both(lambda side: os.mkfifo(side / path))

    @rule(path=folders)
    def list_folder(self, path: str) -> None:
        self.both(lambda side: sorted(os.listdir(side / path)), looks=True)

    # --- attributes -------------------------------------------------------------------------------------------------

    @rule(path=names, mode=modes)
    def chmod(self, path: str, mode: int) -> None:
        self.both(lambda side: os.chmod(side / path, mode))

    @rule(path=names, uid=st.sampled_from([-1, 0, 1234]), gid=st.sampled_from([-1, 0, 5678]))
    @precondition(lambda self: os.geteuid() == 0)
    def chown(self, path: str, uid: int, gid: int) -> None:
        self.both(lambda side: os.lchown(side / path, uid, gid))

    @rule(path=names, atime=moments, mtime=moments)
    def set_times(self, path: str, atime: int, mtime: int) -> None:
        def set_and_look(side: Path) -> tuple[int, int]:
            os.utime(side / path, ns=(atime, mtime), follow_symlinks=False)
            status = os.lstat(side / path)
            return status.st_atime_ns, status.st_mtime_ns

        self.both(set_and_look)

    # --- bytes, by name ---------------------------------------------------------------------------------------------

    @rule(path=names | anywhere, piece=pieces)
    def write_whole(self, path: str, piece: bytes) -> None:
        how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self.both(lambda side: with_open(side / path, how, lambda file: os.write(file, piece)))

    @rule(source=anywhere, path=files | anywhere, piece=pieces)
    def write_and_replace(self, source: str, path: str, piece: bytes) -> None:
        """How every cache writes."""
        how = os.O_WRONLY | os.O_CREAT | os.O_EXCL

        def publish(side: Path) -> None:
            with_open(side / source, how, lambda file: os.write(file, piece))
            os.replace(side / source, side / path)

        self.both(publish)

    @rule(path=files, offset=offsets, piece=pieces)
    def write_at(self, path: str, offset: int, piece: bytes) -> None:
        self.both(lambda side: with_open(side / path, os.O_WRONLY, lambda file: os.pwrite(file, piece, offset)))

    @rule(path=files, piece=pieces)
    def append(self, path: str, piece: bytes) -> None:
        how = os.O_WRONLY | os.O_APPEND
        self.both(lambda side: with_open(side / path, how, lambda file: os.write(file, piece)))

    @rule(path=files, size=offsets)
    def truncate(self, path: str, size: int) -> None:
        self.both(lambda side: os.truncate(side / path, size))

    @rule(path=files, offset=offsets)
    def read(self, path: str, offset: int) -> None:
        def read(side: Path) -> bytes:
            return with_open(side / path, os.O_RDONLY, lambda file: os.pread(file, 150_000, offset))

        self.both(read, looks=True)

    @rule(path=files, offset=offsets, length=st.sampled_from([1, 5000, 100_000]))
    def allocate(self, path: str, offset: int, length: int) -> None:
        # Not fallocate(2), which pyfuse3 does not have: the C library writes zeros where it is missing. It writes none
        # where there are bytes already, and then the time stays as it was.
        def allocate(file: int) -> None:
            os.posix_fallocate(file, offset, length)
            os.utime(file)

        self.both(lambda side: with_open(side / path, os.O_RDWR, allocate))

    @rule(path=files, offset=offsets, piece=pieces)
    def write_mapped(self, path: str, offset: int, piece: bytes) -> None:
        self.both(lambda side: with_open(side / path, os.O_RDWR, lambda file: poke(file, offset, piece)))

    @rule(source=files, onto=files | anywhere)
    def copy(self, source: str, onto: str) -> None:
        def copy_file(side: Path) -> int:
            def into(file: int) -> int:
                how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                return with_open(side / onto, how, lambda made: os.copy_file_range(file, made, 1 << 20))

            return with_open(side / source, os.O_RDONLY, into)

        self.both(copy_file)

    @rule(path=names)
    def sync(self, path: str) -> None:
        self.both(lambda side: with_open(side / path, os.O_RDONLY, os.fsync))

    # --- bytes, by a handle that stays open -------------------------------------------------------------------------

    @rule(path=files | anywhere, how=openings)
    @precondition(lambda self: len(self.handles) < 4)
    def open_handle(self, path: str, how: int) -> None:
        self.begin()
        opened = [outcome(lambda side: open_without_waiting(side / path, how), side) for side in self.sides]
        descriptors = [descriptor for descriptor in opened if isinstance(descriptor, int)]
        if len(descriptors) == 2:
            self.handles.append(Handle(*descriptors))
            return
        for descriptor in descriptors:
            os.close(descriptor)
        self.must_agree(*opened)

    @rule(which=st.integers(0, 3), offset=offsets, piece=pieces)
    @precondition(lambda self: self.handles)
    def write_to_handle(self, which: int, offset: int, piece: bytes) -> None:
        self.by_handle(which, lambda file: os.pwrite(file, piece, offset))

    @rule(which=st.integers(0, 3), offset=offsets)
    @precondition(lambda self: self.handles)
    def read_from_handle(self, which: int, offset: int) -> None:
        self.by_handle(which, lambda file: os.pread(file, 150_000, offset), looks=True)

    @rule(which=st.integers(0, 3), size=offsets)
    @precondition(lambda self: self.handles)
    def truncate_handle(self, which: int, size: int) -> None:
        self.by_handle(which, lambda file: os.ftruncate(file, size))

    @rule(which=st.integers(0, 3), offset=offsets, piece=pieces)
    @precondition(lambda self: self.handles)
    def write_mapped_by_handle(self, which: int, offset: int, piece: bytes) -> None:
        self.by_handle(which, lambda file: poke(file, offset, piece))

    @rule(which=st.integers(0, 3), mode=modes)
    @precondition(lambda self: self.handles)
    def chmod_handle(self, which: int, mode: int) -> None:
        self.by_handle(which, lambda file: os.fchmod(file, mode))

    @rule(which=st.integers(0, 3))
    @precondition(lambda self: self.handles)
    def sync_handle(self, which: int) -> None:
        self.by_handle(which, os.fsync)

    @rule(which=st.integers(0, 3))
    @precondition(lambda self: self.handles)
    def stat_handle(self, which: int) -> None:
        self.by_handle(which, lambda file: attributes(os.fstat(file)), looks=True)

    @rule(which=st.integers(0, 3))
    @precondition(lambda self: self.handles)
    def close_handle(self, which: int) -> None:
        self.compared = False
        for descriptor in self.handles.pop(which % len(self.handles)):
            os.close(descriptor)

    def by_handle(self, which: int, operation: Callable[[int], object], *, looks: bool = False) -> None:
        self.begin(looks)
        handle = self.handles[which % len(self.handles)]
        self.must_agree(outcome(operation, handle.subject), outcome(operation, handle.reference))

    # --- the mount goes and comes back ------------------------------------------------------------------------------

    # Only once per example: it costs more than all the other rules together.
    @rule()
    @precondition(lambda self: self.steps >= 15 and not self.restarted)
    def remount(self) -> None:
        self.close_handles()
        self.restart(self.place.remount)

    @rule()
    @precondition(lambda self: self.steps >= 15 and not self.restarted)
    def kill(self) -> None:
        """Kill it while handles are open: what they wrote was acknowledged and must survive."""
        self.restart(lambda: self.place.kill(self.close_handles))

    def restart(self, how: Callable[[], None]) -> None:
        self.restarted = True
        self.sound = False
        how()
        self.sound = True
        self.compare_contents()

    def close_handles(self) -> None:
        while self.handles:
            for descriptor in self.handles.pop():
                # On a killed mount the kernel cannot reach the daemon and says so; the descriptor is closed anyway.
                with suppress(OSError):
                    os.close(descriptor)

    # --- the comparison of trees ------------------------------------------------------------------------------------

    @property
    def sides(self) -> tuple[Path, Path]:
        return self.subject, self.reference

    @invariant()
    def trees_are_the_same(self) -> None:
        if not self.compared:
            self.compare(contents=False)

    @rule()
    def compare_contents(self) -> None:
        self.compare(contents=True)

    def compare(self, contents: bool) -> None:
        subject, self.last = (comparable(snapshot(side, contents=contents)) for side in self.sides)
        if different := differences(subject, self.last):
            self.sound = False
            raise AssertionError(different)
        self.compared = True


def comparison_in(place: Place, references: Path) -> type[Comparison]:
    return type("Comparison", (Comparison,), {"place": place, "references": references})


def outcome(operation: Callable[[T], object], argument: T) -> object:
    """What the operation returned, or the name of the error it failed with."""
    try:
        return operation(argument)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def shortened(value: object) -> str:
    said = repr(value)
    return said if len(said) < 200 else f"{said[:100]} … ({len(said)} characters)"


def open_without_waiting(path: Path, how: int) -> int:
    """Nobody opens the other end of a FIFO here."""
    return os.open(path, how | os.O_NONBLOCK, 0o644)


def with_open(path: Path, how: int, operation: Callable[[int], T]) -> T:
    descriptor = open_without_waiting(path, how)
    try:
        return operation(descriptor)
    finally:
        os.close(descriptor)


def poke(descriptor: int, offset: int, piece: bytes) -> int:
    """Write through a shared mapping, as far as the file reaches."""
    size = os.fstat(descriptor).st_size
    if stat.S_ISREG(os.fstat(descriptor).st_mode) and size > offset:
        with mmap.mmap(descriptor, size) as mapped:
            piece = piece[: size - offset]
            mapped[offset : offset + len(piece)] = piece
            mapped.flush()
    return size if stat.S_ISREG(os.fstat(descriptor).st_mode) else 0


def attributes(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mode, status.st_nlink, 0 if stat.S_ISDIR(status.st_mode) else status.st_size


def comparable(tree: dict[str, Node]) -> dict[str, Node]:
    """Operations set different times on the two sides; only whether they set one is compared."""
    return {name: node if node.mtime_ns < PRESENT else node._replace(mtime_ns=PRESENT) for name, node in tree.items()}
