"""Names and paths: every byte but two is allowed, and the limits are exact."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.engines.refusals import refused
from tests.engines.syscalls import RENAME_NOREPLACE, renameat2

pytestmark = pytest.mark.usefixtures("as_user")

LONGEST = "n" * 255


def test_a_name_of_255_bytes_is_good_for_everything(root: Path) -> None:
    longest = root / LONGEST
    longest.write_bytes(b"content")
    assert longest.read_bytes() == b"content"
    assert os.listdir(root) == [LONGEST]
    longest.rename(root / ("m" * 255))
    os.link(root / ("m" * 255), longest)
    (root / ("m" * 255)).unlink()
    longest.unlink()
    longest.mkdir()
    longest.rmdir()
    longest.symlink_to("x")
    longest.unlink()
    os.mkfifo(longest)
    longest.unlink()
    assert os.listdir(root) == []


@pytest.mark.parametrize("length", [256, 257, 1024, 1025, 3800])
def test_a_longer_name_is_too_long_for_everything(root: Path, length: int) -> None:
    too_long = root / ("n" * length)
    (root / "file").touch()
    (root / "folder").mkdir()
    for attempt in (os.stat, os.lstat, os.mkdir, os.rmdir, os.unlink, os.mkfifo, os.readlink, os.listdir):
        with refused(errno.ENAMETOOLONG):
            attempt(too_long)
    for flags in (os.O_RDONLY, os.O_CREAT | os.O_WRONLY):
        with refused(errno.ENAMETOOLONG):
            os.open(too_long, flags)
    with refused(errno.ENAMETOOLONG):
        os.symlink("target", too_long)
    with refused(errno.ENAMETOOLONG):
        os.link(root / "file", too_long)
    with refused(errno.ENAMETOOLONG):
        os.rename(root / "file", too_long)
    with refused(errno.ENAMETOOLONG):
        os.rename(root / "folder", too_long)
    with refused(errno.ENAMETOOLONG):
        renameat2(root / "file", too_long, RENAME_NOREPLACE)
    assert sorted(os.listdir(root)) == ["file", "folder"]


def test_the_limit_counts_bytes_not_characters(root: Path) -> None:
    (root / ("ü" * 127 + "x")).touch()
    with refused(errno.ENAMETOOLONG):
        (root / ("ü" * 128)).touch()


def test_a_path_of_4095_bytes_is_reached_and_4096_are_too_many(root: Path) -> None:
    path = os.fsencode(root)
    descriptor = os.open(root, os.O_RDONLY)
    while len(path) < 4095 - 202:
        os.mkdir(b"d" * 200, dir_fd=descriptor)
        below = os.open(b"d" * 200, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
        path += b"/" + b"d" * 200
    path += b"/" + b"f" * (4095 - len(path) - 1)
    os.close(descriptor)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    assert len(path) == 4095
    assert os.stat(path).st_size == 0
    with refused(errno.ENAMETOOLONG):
        os.stat(path + b"f")
    os.unlink(path)


def test_a_tree_deeper_than_any_path_is_built_and_taken_down(root: Path) -> None:
    depth = 30
    descriptors = [os.open(root, os.O_RDONLY)]
    try:
        for _ in range(depth):
            os.mkdir("d" * 250, dir_fd=descriptors[-1])
            descriptors.append(os.open("d" * 250, os.O_RDONLY, dir_fd=descriptors[-1]))
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptors[-1]))
        assert os.listdir(descriptors[-1]) == ["file"]
        os.unlink("file", dir_fd=descriptors[-1])
        for descriptor in reversed(descriptors[:-1]):
            os.rmdir("d" * 250, dir_fd=descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    assert os.listdir(root) == []


@pytest.mark.parametrize(
    "name",
    [
        b" ",
        b" leading and trailing ",
        b"new\nline",
        b"tab\tand\rreturn",
        b"-rf",
        b"...",
        b".hidden",
        b"~",
        b"back\\slash",
        b"quote'\"`$",
        b"*?[a]{b,c}",
        b"#%&;|<>",
        "Grüße-雪-🧊".encode(),
        b"\xff\xfe\x80 not UTF-8",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\x01\x1b[31m\x7f",
        b"\xff" * 255,
    ],
    ids=repr,
)
def test_an_unusual_name_is_kept_to_the_byte(root: Path, name: bytes) -> None:
    folder = os.fsencode(root)
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(name)
    assert os.listdir(folder) == [name]
    os.mkdir(os.path.join(folder, b"sub"))
    os.rename(path, os.path.join(folder, b"sub", name))
    with open(os.path.join(folder, b"sub", name), "rb") as file:
        assert file.read() == name
    os.unlink(os.path.join(folder, b"sub", name))
    os.mkdir(path)
    assert sorted(os.listdir(folder)) == sorted([b"sub", name])


def test_every_byte_but_slash_and_nul_makes_a_name(root: Path) -> None:
    folder = os.fsencode(root)
    names = [bytes([byte]) for byte in range(1, 256) if byte not in b"/."]
    for name in names:
        with open(os.path.join(folder, name), "wb") as file:
            file.write(name)
    assert sorted(os.listdir(folder)) == sorted(names)
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            assert file.read() == name


def test_names_that_look_alike_are_different(root: Path) -> None:
    names = ["a", "A", "é", "e\u0301", "ß", "SS", "ﬁ", "fi", "a ", "a."]
    for name in names:
        (root / name).write_text(name)
    assert sorted(os.listdir(root)) == sorted(names)
    assert [(root / name).read_text() for name in names] == names


def test_slashes_are_not_counted(root: Path) -> None:
    (root / "folder").mkdir()
    (root / "folder" / "file").write_bytes(b"content")
    with open(f"{root}//folder/.///file", "rb") as file:
        assert file.read() == b"content"
