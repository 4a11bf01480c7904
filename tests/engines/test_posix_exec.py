"""Programs in the filesystem: run, refused, and protected while they run."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.engines.refusals import refused

pytestmark = pytest.mark.usefixtures("as_user")


def test_a_script_is_run(root: Path) -> None:
    (root / "script").write_text('#!/bin/sh\necho "script got $1"\n')
    (root / "script").chmod(0o755)
    assert subprocess.check_output([root / "script", "this"]) == b"script got this\n"


def test_a_binary_is_run(root: Path) -> None:
    shutil.copy("/bin/echo", root / "binary")
    assert subprocess.check_output([root / "binary", "from here"]) == b"from here\n"


def test_a_binary_is_run_after_it_was_renamed_and_linked(root: Path) -> None:
    shutil.copy("/bin/echo", root / "first")
    (root / "first").rename(root / "second")
    os.link(root / "second", root / "third")
    (root / "symlink").symlink_to("third")
    for name in ("second", "third", "symlink"):
        assert subprocess.check_output([root / name, name]) == name.encode() + b"\n"


def test_a_file_without_the_execute_bit_is_not_run(root: Path) -> None:
    shutil.copy("/bin/echo", root / "binary")
    (root / "binary").chmod(0o644)
    with refused(errno.EACCES):
        subprocess.run([root / "binary"], check=False)
    (root / "binary").chmod(0o755)
    assert subprocess.check_output([root / "binary", "now"]) == b"now\n"


def test_a_program_is_run_without_the_right_to_read_it(root: Path) -> None:
    shutil.copy("/bin/echo", root / "binary")
    (root / "binary").chmod(0o111)
    assert subprocess.check_output([root / "binary", "unread"]) == b"unread\n"


def test_a_running_program_is_not_opened_for_writing(root: Path) -> None:
    shutil.copy("/bin/cat", root / "program")
    with subprocess.Popen([root / "program"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write(b"started\n")
        running.stdin.flush()
        assert running.stdout.readline() == b"started\n"
        with refused(errno.ETXTBSY):
            os.open(root / "program", os.O_WRONLY)
        running.stdin.close()
    os.close(os.open(root / "program", os.O_WRONLY))


def test_a_running_program_can_be_replaced_and_removed(root: Path) -> None:
    shutil.copy("/bin/cat", root / "program")
    shutil.copy("/bin/echo", root / "new")
    with subprocess.Popen([root / "program"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        os.replace(root / "new", root / "program")
        (root / "program").unlink()
        running.stdin.write(b"still running\n")
        running.stdin.close()
        assert running.stdout.read() == b"still running\n"
    assert running.returncode == 0


def test_a_process_works_in_a_directory_here(root: Path) -> None:
    (root / "folder").mkdir()
    said = subprocess.check_output(["/bin/sh", "-c", "pwd; echo x > made; cd ..; ls"], cwd=root / "folder", text=True)
    assert said.splitlines() == [str(root / "folder"), "folder"]
    assert (root / "folder" / "made").read_bytes() == b"x\n"
