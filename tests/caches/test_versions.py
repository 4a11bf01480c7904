"""Two versions of the project on one folder: each finds its own, neither harms the other's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kcachefs
from kcachefs import Cache

PACKAGE = Path(kcachefs.__file__).parent


def another_version(root: Path) -> Path:
    """A copy of the project as a later release might be: with another record format."""
    shutil.copytree(PACKAGE, root / "kcachefs", ignore=shutil.ignore_patterns("__pycache__"))
    record = root / "kcachefs" / "caches" / "record.py"
    text = record.read_text()
    assert text.count("\nFORMAT = 1\n") == 1
    record.write_text(text.replace("\nFORMAT = 1\n", "\nFORMAT = 2\n"))
    return root


def run(root: Path, folder: Path, code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root)}
    script = f"import sys; from kcachefs import Cache; cache = Cache(sys.argv[1], memory_entries=0)\n{code}"
    ran = subprocess.run(
        [sys.executable, "-c", script, str(folder)], env=environment, cwd=folder.parent, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_two_formats_share_a_folder(tmp_path: Path) -> None:
    later, folder = another_version(tmp_path / "later"), tmp_path / "cache"
    with Cache(folder, memory_entries=0) as cache:
        cache["key"] = b"ours"
        assert (
            run(later, folder, "print(cache.get('key')); cache['key'] = b'theirs'; print(list(cache))")
            == "None\n['key']"
        )
        assert cache["key"] == b"ours"
        assert run(later, folder, "print(cache['key']); cache.clear(); print(len(cache))") == "b'theirs'\n0"
        assert cache["key"] == b"ours"
        assert cache.stats().damaged == 0


def test_what_an_older_version_left_is_evicted_when_it_is_the_oldest(tmp_path: Path) -> None:
    later, folder = another_version(tmp_path / "later"), tmp_path / "cache"
    with Cache(folder) as cache:
        for number in range(10):
            cache[str(number)] = bytes(3000)
    code = "cache = Cache(sys.argv[1], max_bytes=10 * 4096)\n"
    code += "for n in range(8): cache[str(n)] = bytes(3000)\nprint(len(cache))"
    assert run(later, folder, code) == "8"
    assert len(Cache(folder)) <= 2
