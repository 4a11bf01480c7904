"""Keys in the processes of a script, which goes by other names in its workers and where it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.pythons import ROOT

SCRIPT = """
import dataclasses, enum, multiprocessing
from kcachefs.keys import hash_function, hash_value
class Mode(enum.Enum):
    FAST = 1
    def stages(self):
        return 2
class Bits(enum.Flag):
    ONE = 1
    TWO = 2
@dataclasses.dataclass
class Config:
    mode: Mode = Mode.FAST
def kernel(x, mode=Mode.FAST):
    return mode.stages(), Bits.ONE, Config
def told(_=None):
    values = (Mode.FAST, Bits.ONE | Bits.TWO, {Mode.FAST: 1}, Config(), Mode)
    return " ".join([hash_function(kernel), *map(hash_value, values)])
if __name__ == "__main__":
    print(told())
    for way in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            print(pool.map(told, [None])[0])
"""


@pytest.mark.parametrize(
    ("name", "started", "asked"),
    [
        ("train.py", ["train.py"], "train"),
        ("tools/train.py", ["-m", "tools.train"], "tools.train"),
        ("site-packages/tools/train.py", ["-m", "tools.train"], "tools.train"),
    ],
    ids=["script", "module", "installed"],
)
def test_a_script_has_the_same_keys_in_its_workers_and_where_it_is_imported(
    name: str, started: list[str], asked: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT)
    places = [str(ROOT), str(tmp_path / "site-packages"), str(tmp_path)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(places), "TMPDIR": tempfile.gettempdir()}
    keys = []
    for words in (started, ["-c", f"import {asked} as script; print(script.told())"]):
        ran = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        keys += ran.stdout.splitlines()
    in_workers, imported = keys[:4], keys[4]
    assert in_workers == [in_workers[0]] * 4
    if "site-packages" not in name:  # what is installed counts by name and version where it is imported
        assert imported == in_workers[0]
