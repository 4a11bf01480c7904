"""Listings: complete, typed, resumable, and right while the directory changes under them."""

from __future__ import annotations

import os
import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from tests.engines.syscalls import DT_DIR, DT_FIFO, DT_LNK, DT_REG, DT_SOCK, DirectoryEntry, read_directory

MANY = 1050
"""The catalog is read a thousand names at a time."""
SMALL_BUFFER = 2048


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def listing(descriptor: int, size: int = SMALL_BUFFER) -> Iterator[DirectoryEntry]:
    """The rest of the listing, a few dozen names per call."""
    while children := read_directory(descriptor, size):
        yield from children


def fill(folder: Path, prefix: str = "file", count: int = MANY) -> set[str]:
    names = {f"{prefix}{number:05d}" for number in range(count)}
    for name in names:
        os.close(os.open(folder / name, os.O_CREAT | os.O_WRONLY))
    return names


def test_an_empty_directory_lists_itself_and_its_parent(root: Path) -> None:
    (root / "folder").mkdir()
    with opened(root / "folder") as descriptor:
        children = {child.name: child for child in listing(descriptor)}
    assert set(children) == {".", ".."}
    assert children["."].inode == (root / "folder").stat().st_ino
    assert children[".."].inode == root.stat().st_ino
    assert {child.kind for child in children.values()} == {DT_DIR}


def test_every_name_has_its_type_and_its_inode(root: Path) -> None:
    (root / "file").touch()
    (root / "folder").mkdir()
    (root / "link").symlink_to("file")
    os.link(root / "file", root / "hard")
    os.mkfifo(root / "fifo")
    with opened(root) as descriptor:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{descriptor}/socket")
        children = {child.name: child for child in listing(descriptor)}
    kinds = {name: child.kind for name, child in children.items() if name not in (".", "..")}
    assert kinds == {
        "file": DT_REG,
        "folder": DT_DIR,
        "link": DT_LNK,
        "hard": DT_REG,
        "fifo": DT_FIFO,
        "socket": DT_SOCK,
    }
    for name in kinds:
        assert children[name].inode == (root / name).lstat().st_ino


def test_a_large_directory_lists_every_name_once(root: Path) -> None:
    names = fill(root)
    with opened(root) as descriptor:
        seen = Counter(child.name for child in listing(descriptor))
    assert set(seen) == names | {".", ".."}
    assert set(seen.values()) == {1}
    assert Counter(os.listdir(root)) == Counter(names)


def test_a_listing_goes_on_from_any_position_it_gave(root: Path) -> None:
    fill(root)
    with opened(root) as descriptor:
        children = list(listing(descriptor))
        for index in random.Random(3).sample(range(len(children) - 1), 200):
            os.lseek(descriptor, children[index].offset, os.SEEK_SET)
            assert read_directory(descriptor, 512)[0].name == children[index + 1].name
        os.lseek(descriptor, children[-1].offset, os.SEEK_SET)
        assert read_directory(descriptor) == []


def test_a_position_of_one_listing_is_good_in_another(root: Path) -> None:
    fill(root, count=500)
    with opened(root) as first, opened(root) as second:
        children = list(listing(first))
        os.lseek(second, children[249].offset, os.SEEK_SET)
        assert [child.name for child in listing(second)] == [child.name for child in children[250:]]


def test_rewinding_shows_what_changed_since(root: Path) -> None:
    fill(root, count=100)
    with opened(root) as descriptor:
        before = {child.name for child in listing(descriptor)}
        (root / "new").touch()
        (root / "file00050").unlink()
        (root / "file00051").rename(root / "renamed")
        os.lseek(descriptor, 0, os.SEEK_SET)
        after = {child.name for child in listing(descriptor)}
    assert after == before - {"file00050", "file00051"} | {"new", "renamed"}


def test_names_that_stay_are_seen_once_while_others_come_and_go(root: Path) -> None:
    kept = fill(root, "kept")
    gone = fill(root, "gone", 700)
    doomed = iter(sorted(gone))
    seen: Counter[str] = Counter()
    with opened(root) as descriptor:
        for round_, children in enumerate(iter(lambda: read_directory(descriptor, SMALL_BUFFER), [])):
            seen.update(child.name for child in children)
            for name in islice(doomed, 20):
                (root / name).unlink()
            for number in range(10):
                (root / f"new{round_}-{number}").touch()
    assert {name for name in kept if seen[name] != 1} == set()
    assert max(seen.values()) == 1
    left = set(os.listdir(root))
    assert kept <= left
    assert left & gone == set(doomed)


def test_deleting_what_a_listing_gives_empties_the_directory_in_one_pass(root: Path) -> None:
    fill(root)
    with opened(root) as descriptor:
        for child in listing(descriptor):
            if child.name not in (".", ".."):
                (root / child.name).unlink()
    assert os.listdir(root) == []


def test_a_name_deleted_before_the_listing_begins_is_not_in_it(root: Path) -> None:
    fill(root, count=200)
    assert len(os.listdir(root)) == 200
    for number in range(0, 200, 2):
        (root / f"file{number:05d}").unlink()
    assert set(os.listdir(root)) == {f"file{number:05d}" for number in range(1, 200, 2)}


def test_a_listing_follows_every_single_change(root: Path) -> None:
    model: set[str] = set()
    choose = random.Random(7)
    for step in range(300):
        if model and choose.random() < 0.45:
            name = choose.choice(sorted(model))
            model.remove(name)
            if choose.random() < 0.5:
                (root / name).unlink()
            else:
                (root / name).rename(root / f"moved{step}")
                model.add(f"moved{step}")
        else:
            (root / f"made{step}").touch()
            model.add(f"made{step}")
        assert set(os.listdir(root)) == model


def test_several_listings_of_one_directory_do_not_disturb_each_other(root: Path) -> None:
    names = fill(root, count=600) | {".", ".."}
    with opened(root) as first, opened(root) as second:
        lists = listing(first, 512), listing(second, SMALL_BUFFER)
        seen: tuple[list[str], list[str]] = ([], [])
        exhausted = [False, False]
        while not all(exhausted):
            for index in (0, 1):
                child = next(lists[index], None)
                exhausted[index] = child is None
                if child is not None:
                    seen[index].append(child.name)
    assert sorted(seen[0]) == sorted(seen[1]) == sorted(names)
