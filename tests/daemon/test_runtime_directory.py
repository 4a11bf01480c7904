"""The runtime directory in /tmp, where anybody may have taken its name before its user came."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

USER = 2_000_000_000 + os.getpid()
"""Nobody's number, so that nobody's directory is in the way."""
BASE = Path(f"/tmp/kcachefs-{USER}")
READ = f"""
import os
from kcachefs.daemon import registry
os.setgroups([]), os.setgid({USER}), os.setuid({USER})
print(registry.directory(create=False).exists(), registry.all_mounts(), registry.read("/mnt"))
"""
ASK = f"""
import os
from kcachefs.daemon import registry
os.setgroups([]), os.setgid({USER}), os.setuid({USER})
print(registry.directory(), registry.directory())
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    for path in (BASE, *BASE.parent.glob(f"{BASE.name}-*")):
        if path.is_symlink() or path.is_file():
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)


def ask() -> Path:
    """The directory that a command of the user uses; both times it asks."""
    [told] = set(run(ASK).split())
    return Path(told)


def run(code: str) -> str:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("XDG_RUNTIME_DIR", "KCACHEFS_RUNTIME_DIR")
    }
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=kept, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("squat", ["folder", "file", "link"])
def test_somebody_who_takes_the_name_first_locks_nobody_out(squat: str) -> None:
    if squat == "folder":
        BASE.mkdir()
        BASE.chmod(0o777)
    elif squat == "file":
        BASE.touch()
    else:
        BASE.symlink_to("/tmp")
    (BASE.parent / f"{BASE.name}-0").mkdir()  # not the user's either
    assert run(READ) == "False [] None\n", "who only reads needs none, and looks into nobody else's"
    used = ask()
    found = used.lstat()
    assert used.parent == BASE.parent
    assert used not in (BASE, BASE.parent / f"{BASE.name}-0")
    assert (found.st_uid, found.st_mode & 0o777) == (USER, 0o700)
    assert ask() == used
    if squat == "folder":
        BASE.rmdir()
        assert ask() == used, "a daemon that runs there is still found"


def test_without_a_squatter_the_name_is_the_plain_one() -> None:
    assert ask() == BASE
    watch = "import sys; sys.addaudithook(lambda event, of: event == 'os.scandir' and sys.exit('looks around in /tmp'))"
    assert run(f"{ASK}\n{watch}\nprint(registry.directory())").split() == [str(BASE)] * 3
