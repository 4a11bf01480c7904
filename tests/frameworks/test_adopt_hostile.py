"""`kcachefs adopt` from a folder that somebody else can write to while it is being copied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcachefs.errors import MountError
from kcachefs.frameworks import adoption
from kcachefs.frameworks.copying import DEPTH_MAX
from tests.engines.mounting import Mount
from tests.frameworks.commands import kcachefs
from tests.frameworks.test_adopt import make_triton

SECRET = b"only root may read this"
ROUNDS = 150

SWAPPER = """
import sys
from pathlib import Path
from tests.engines.syscalls import RENAME_EXCHANGE, renameat2
one, two = map(Path, sys.argv[1:])
print("swapping", flush=True)
while True:
    renameat2(one, two, RENAME_EXCHANGE)
"""


def copies(folder: Path) -> list[bytes]:
    """The content of every file below, without following links."""
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


@contextmanager
def swapping(one: Path, two: Path) -> Iterator[None]:
    """A process that exchanges two names as fast as it can."""
    with subprocess.Popen([sys.executable, "-c", SWAPPER, one, two], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"swapping\n"
        try:
            yield
        finally:
            process.kill()


def test_an_entry_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "key").write_bytes(SECRET)
    source = make_triton(tmp_path / "cache", 1)
    (tmp_path / "mount").mkdir()
    [found] = adoption.find(source, "triton")
    os.rename(source / "KEY0", source / "moved")
    (source / "KEY0").symlink_to(tmp_path / "root")
    tally = adoption.Tally()
    adoption.adopt(found, tmp_path / "mount", tally)
    assert copies(tmp_path / "mount") == []
    assert tally.adopted == 0
    [line] = tally.skipped
    assert line.startswith(f"{source}/KEY0: ")


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_link_swapped_in_during_the_copy_is_not_followed(tmp_path: Path, what: str) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "add.cubin").write_bytes(SECRET)
    entry = tmp_path / "cache" / "KEY0"
    (entry / "inner").mkdir(parents=True)
    (entry / "inner" / "add.cubin").write_bytes(b"kernel")
    victim = entry / "inner" / "add.cubin" if what == "file" else entry / "inner"
    lure = tmp_path / "lure"
    lure.symlink_to(tmp_path / "root" / "add.cubin" if what == "file" else tmp_path / "root")
    outcomes = set()
    with swapping(victim, lure):
        for number in range(ROUNDS):
            mount = tmp_path / f"mount{number}"
            mount.mkdir()
            for found in adoption.find(tmp_path / "cache", "triton"):
                adoption.adopt(found, mount, adoption.Tally())
            outcomes.update(copies(mount))
    assert SECRET not in outcomes
    assert outcomes == {b"kernel"}, "the test must meet the file itself, too"


def test_a_link_in_the_mount_does_not_lead_the_copy_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount" / "triton").symlink_to(tmp_path / "elsewhere")
    [found] = adoption.find(make_triton(tmp_path / "cache", 1), "triton")
    with pytest.raises(MountError, match="not a folder"):
        adoption.adopt(found, tmp_path / "mount", adoption.Tally())
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.mount
def test_what_cannot_be_copied_is_skipped_with_a_line_each(mount: Mount, base: Path) -> None:
    source = make_triton(base / "cache", 2)
    deep = source / "DEEP"
    deep.mkdir()
    at = os.open(deep, os.O_RDONLY)
    for _ in range(DEPTH_MAX * 40):  # a path of that length cannot even be said
        os.mkdir("down", dir_fd=at)
        below = os.open("down", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    os.mkfifo(source / "KEY0" / "pipe\x1b[2J")
    nonsense = {
        "list": "[]",
        "nested": "[" * 100_000,
        "text": "not JSON",
        "numbers": json.dumps({"child_paths": [1, 2]}),
        "escape": json.dumps({"child_paths": {"../../../etc/passwd": "x"}}),
        "absolute": json.dumps({"child_paths": {"/etc/passwd": "x"}}),
        "large": json.dumps({"child_paths": {str(number): "x" * 100 for number in range(20_000)}}),
    }
    for name, content in nonsense.items():
        (source / "KEY1" / f"__grp__{name}.json").write_text(content)
    done = kcachefs("adopt", source, "--mount", mount.mountpoint, check=False)
    subprocess.run(["rm", "-r", deep], check=True)  # too deep for what removes `base`
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert "2 entries adopted" in done.stdout
    assert len(lines) == 2 + len(nonsense), lines
    assert all(line.startswith("kcachefs: ") and "was skipped" in line for line in lines)
    assert any("pipe\\x1b[2J: is not a file" in line for line in lines)
    assert any("/DEEP/" in line for line in lines)
    for entry in ("KEY0", "KEY1"):
        names = sorted(os.listdir(mount.mountpoint / "triton" / entry))
        assert names == ["__grp__add.json", "add.cubin", "add.json", "add.ptx"]
