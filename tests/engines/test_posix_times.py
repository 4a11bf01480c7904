"""Times: kept to the nanosecond, and changed by exactly the operations that should change them."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines.clock import wait_for_a_tick
from tests.engines.refusals import refused
from tests.engines.syscalls import RENAME_EXCHANGE, UTIME_NOW, UTIME_OMIT, renameat2, set_times

pytestmark = pytest.mark.usefixtures("as_user")

SECOND = 10**9
OLD = 1_000_000_000 * SECOND
BEFORE_1970 = [-SECOND, -1_500_000_001]
AFTER_2038 = [2**31 * SECOND + 5, 2**33 * SECOND + 7]
MOMENTS = [0, 1, 999_999_999, SECOND, 1_700_000_000_123_456_789, *AFTER_2038, *BEFORE_1970]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, os.mkfifo], ids=["file", "directory", "fifo"])
def test_times_are_kept_to_the_nanosecond(root: Path, make: Callable[[Path], None], moment: int) -> None:
    make(root / "name")
    os.utime(root / "name", ns=(moment, moment + 3 * SECOND + 3))
    status = (root / "name").stat()
    assert (status.st_atime_ns, status.st_mtime_ns) == (moment, moment + 3 * SECOND + 3)


def test_times_set_through_a_descriptor_are_seen_by_name(root: Path) -> None:
    with open(root / "file", "wb") as file:
        os.utime(file.fileno(), ns=(OLD + 1, OLD + 2))
    status = (root / "file").stat()
    assert (status.st_atime_ns, status.st_mtime_ns) == (OLD + 1, OLD + 2)


def test_times_set_before_closing_are_not_overwritten_by_the_close(root: Path) -> None:
    with open(root / "file", "wb", buffering=0) as file:
        file.write(b"content" * 1000)
        os.utime(root / "file", ns=(OLD + 1, OLD + 2))
    assert (root / "file").stat().st_mtime_ns == OLD + 2
    assert (root / "file").read_bytes() == b"content" * 1000
    assert (root / "file").stat().st_mtime_ns == OLD + 2


def test_now_is_the_present_and_omit_leaves_alone(root: Path) -> None:
    (root / "file").touch()
    os.utime(root / "file", ns=(OLD + 1, OLD + 2))
    set_times(root / "file", (0, UTIME_NOW), (0, UTIME_OMIT))
    status = (root / "file").stat()
    assert status.st_atime_ns > OLD + SECOND
    assert status.st_mtime_ns == OLD + 2
    os.utime(root / "file", ns=(OLD + 1, OLD + 2))
    set_times(root / "file", (0, UTIME_OMIT), (0, UTIME_NOW))
    status = (root / "file").stat()
    assert status.st_atime_ns == OLD + 1
    assert status.st_mtime_ns > OLD + SECOND
    set_times(root / "file", (0, UTIME_OMIT), (77, 78))
    status = (root / "file").stat()
    assert (status.st_atime_ns, status.st_mtime_ns) == (OLD + 1, 77 * SECOND + 78)


def test_omitting_both_changes_nothing(root: Path) -> None:
    (root / "file").touch()
    before = (root / "file").stat()
    wait_for_a_tick(root)
    set_times(root / "file", (0, UTIME_OMIT), (0, UTIME_OMIT))
    assert (root / "file").stat() == before


def test_nonsense_nanoseconds_and_missing_names_are_refused(root: Path) -> None:
    (root / "file").touch()
    with refused(errno.EINVAL):
        set_times(root / "file", (0, SECOND), (0, 0))
    with refused(errno.EINVAL):
        set_times(root / "file", (0, 0), (0, -1))
    with refused(errno.ENOENT):
        set_times(root / "missing", (0, 0), (0, 0))


def test_a_new_file_has_the_present_time(root: Path) -> None:
    """With a second of slack: the kernel's coarse clock may lag behind the clock that Python reads."""
    before = time.time_ns() - SECOND
    (root / "file").touch()
    after = time.time_ns() + SECOND
    status = (root / "file").stat()
    for moment in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns):
        assert before <= moment <= after


@dataclass(frozen=True)
class Scene:
    """What an operation finds: two folders; the first holds a folder and a file that has a second name in `links`."""

    one: Path
    two: Path
    file: Path
    alias: Path
    empty: Path


def scene(root: Path) -> Scene:
    for name in ("one", "two", "links", "one/empty"):
        (root / name).mkdir()
    (root / "one" / "file").write_bytes(b"content")
    os.link(root / "one" / "file", root / "links" / "alias")
    return Scene(root / "one", root / "two", root / "one" / "file", root / "links" / "alias", root / "one" / "empty")


def write(path: Path) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.write(b"X")


def write_mapped(path: Path) -> None:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0:1] = b"X"
        mapped.flush()


def truncate_open(path: Path) -> None:
    with open(path, "r+b") as file:
        os.ftruncate(file.fileno(), 2)


def replace_from_second_folder(scene: Scene) -> None:
    (scene.two / "new").touch()
    os.replace(scene.two / "new", scene.file)


def exchange_with_second_folder(scene: Scene) -> None:
    (scene.two / "new").touch()
    renameat2(scene.file, scene.two / "new", RENAME_EXCHANGE)


def fail_to_change_names(scene: Scene) -> None:
    with refused(errno.EEXIST):
        scene.empty.mkdir()
    with refused(errno.ENOTEMPTY):
        scene.one.rmdir()
    with refused(errno.EISDIR):
        scene.file.rename(scene.empty)


# What each operation does, and which times of the file and of the folders it must change: "m" is mtime, "c" is ctime.
# All other times must stay.
MOVES: dict[str, tuple[Callable[[Scene], object], dict[str, str]]] = {
    "create": (lambda s: (s.one / "new").touch(), {"one": "mc"}),
    "mkdir": (lambda s: (s.one / "new").mkdir(), {"one": "mc"}),
    "symlink": (lambda s: (s.one / "new").symlink_to("x"), {"one": "mc"}),
    "mkfifo": (lambda s: os.mkfifo(s.one / "new"), {"one": "mc"}),
    "link": (lambda s: os.link(s.alias, s.one / "new"), {"one": "mc", "file": "c"}),
    "unlink": (lambda s: s.file.unlink(), {"one": "mc", "file": "c"}),
    "rmdir": (lambda s: s.empty.rmdir(), {"one": "mc"}),
    "rename within": (lambda s: s.file.rename(s.one / "new"), {"one": "mc", "file": "c"}),
    "rename across": (lambda s: s.file.rename(s.two / "new"), {"one": "mc", "two": "mc", "file": "c"}),
    "rename of a directory": (lambda s: s.empty.rename(s.two / "new"), {"one": "mc", "two": "mc"}),
    "replace": (replace_from_second_folder, {"one": "mc", "two": "mc", "file": "c"}),
    "exchange": (exchange_with_second_folder, {"one": "mc", "two": "mc", "file": "c"}),
    "write": (lambda s: write(s.file), {"file": "mc"}),
    "mapped write": (lambda s: write_mapped(s.file), {"file": "mc"}),
    "truncate": (lambda s: os.truncate(s.file, 3), {"file": "mc"}),
    "lengthen": (lambda s: os.truncate(s.file, 30), {"file": "mc"}),
    "ftruncate": (lambda s: truncate_open(s.file), {"file": "mc"}),
    "open with O_TRUNC": (lambda s: os.close(os.open(s.file, os.O_WRONLY | os.O_TRUNC)), {"file": "mc"}),
    "chmod": (lambda s: s.file.chmod(0o611), {"file": "c"}),
    "chmod of a directory": (lambda s: s.one.chmod(0o711), {"one": "c"}),
    "chown": (lambda s: os.chown(s.file, os.geteuid(), os.getegid()), {"file": "c"}),
    "utime": (lambda s: os.utime(s.file, ns=(OLD, OLD)), {"file": "c"}),
    "read": (lambda s: s.file.read_bytes(), {}),
    "list": (lambda s: os.listdir(s.one), {}),
    "open for writing": (lambda s: os.close(os.open(s.file, os.O_RDWR)), {}),
    "failed operations": (fail_to_change_names, {}),
}


@pytest.mark.parametrize("operation", MOVES)
def test_an_operation_moves_its_times_and_no_others(root: Path, operation: str) -> None:
    act, expected = MOVES[operation]
    stage = scene(root)
    # Some operations remove the file's first name, so its times are read by the second one.
    watched = {"file": stage.alias, "one": stage.one, "two": stage.two}
    for path in watched.values():
        os.utime(path, ns=(OLD, OLD))
    before = {name: path.stat() for name, path in watched.items()}
    wait_for_a_tick(root)
    act(stage)
    after = {name: path.stat() for name, path in watched.items()}
    moved = {}
    for name in watched:
        changes = "m" if after[name].st_mtime_ns > before[name].st_mtime_ns else ""
        changes += "c" if after[name].st_ctime_ns > before[name].st_ctime_ns else ""
        assert after[name].st_ctime_ns >= before[name].st_ctime_ns
        if changes:
            moved[name] = changes
    assert moved == expected


def test_an_open_descriptor_shows_moved_times_at_once(root: Path) -> None:
    with open(root / "file", "wb", buffering=0) as file:
        os.utime(root / "file", ns=(OLD, OLD))
        assert os.fstat(file.fileno()).st_mtime_ns == OLD
        file.write(b"X")
        assert os.fstat(file.fileno()).st_mtime_ns == (root / "file").stat().st_mtime_ns > OLD


def test_files_written_one_after_the_other_have_times_in_that_order(root: Path) -> None:
    """What ninja relies on: an output is never older than the input it was made from."""
    for number in range(50):
        (root / f"{number}").write_bytes(b"x")
    times = [(root / f"{number}").stat().st_mtime_ns for number in range(50)]
    assert times == sorted(times)
    wait_for_a_tick(root)
    (root / "last").write_bytes(b"x")
    assert (root / "last").stat().st_mtime_ns > times[-1]
