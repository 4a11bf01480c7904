"""A file that a user asked for: there when it is whole, and never in place of a device, a pipe or a link."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from kcachefs.errors import UsageError
from kcachefs.whole_file import whole_file


def write(path: Path, content: bytes = b"new") -> None:
    with whole_file(path) as file:
        file.write(content)


def test_it_is_there_when_it_is_whole_with_the_mode_that_any_new_file_has(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    (tmp_path / "plain").touch()
    with whole_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_failure_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"old")
    with pytest.raises(TypeError):
        write(path, "no bytes")  # type: ignore[arg-type]
    assert [one.name for one in tmp_path.iterdir()] == ["page.html"]
    assert path.read_bytes() == b"old"


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("real")
    write(link)
    assert link.is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    seen: list[bytes] = []
    reader = threading.Thread(target=lambda: seen.append(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join()
    assert seen == [b"new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    device = tmp_path / "null"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    write(device)
    assert stat.S_ISCHR(device.stat().st_mode)


def test_what_cannot_be_written_is_named_as_it_was_given(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder; name a file in it"):
        write(tmp_path)
    with pytest.raises(FileNotFoundError) as raised:
        write(tmp_path / "nowhere" / "page.html")
    assert raised.value.filename == str(tmp_path / "nowhere" / "page.html")


def test_a_file_without_a_name_is_written_to(tmp_path: Path) -> None:
    """As standard output may be one."""
    with open(tmp_path / "file", "w+b") as file:
        os.unlink(tmp_path / "file")
        write(Path(f"/proc/self/fd/{file.fileno()}"))
        assert file.read() == b"new"
    assert list(tmp_path.iterdir()) == []
