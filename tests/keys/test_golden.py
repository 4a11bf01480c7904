"""The keys of a release are those of the one before, in every process and on every machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.keys.told import told

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
ROOT = Path(__file__).parents[2]


def test_keys_are_those_of_the_last_release() -> None:
    """If this fails, either a change was not meant, or SCHEMA must be raised and golden.json written anew."""
    assert told() == GOLDEN


def test_all_pinned_keys_differ() -> None:
    assert len(set(GOLDEN.values())) == len(GOLDEN)


@pytest.mark.parametrize("seed", ["0", "1", "4294967295"])
def test_nothing_of_the_process_shows(seed: str, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    environment["PYTHONNODEBUGRANGES"] = seed[0]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.keys.told"], env=environment, cwd=tmp_path, capture_output=True, check=True
    )
    assert json.loads(ran.stdout) == GOLDEN
