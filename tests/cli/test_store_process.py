"""A store at rest that a command has open in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kcachefs.cli import store_process, target
from kcachefs.core.report import Statistics
from kcachefs.errors import StoreBusy
from kcachefs.store import Store
from tests.waiting import PATIENCE, until


def can_be_opened(path: Path) -> bool:
    try:
        Store(path).close()
    except StoreBusy:
        return False
    return True


def test_others_can_have_it_when_no_more_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_process, "_IDLE_SECONDS", 0.1)
    Store(tmp_path / "store").close()
    target.call(None, tmp_path / "store", "stats", Statistics)
    assert can_be_opened(tmp_path / "store"), "while the result is printed"
    try:
        for _ in range(2):
            store_process.ask(tmp_path / "store", "stats", {})
            until(lambda: can_be_opened(tmp_path / "store"), "the store was closed, though the command goes on")
    finally:
        store_process.end(tmp_path / "store")


def test_a_command_with_more_than_a_thousand_files_open_can_ask(tmp_path: Path) -> None:
    Store(tmp_path / "store").close()
    script = f"""
import os, resource
from pathlib import Path
from kcachefs.cli import store_process
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
store = Path({str(tmp_path / "store")!r})
for _ in range(2):
    store_process.ask(store, "stats", {{}})
store_process.end(store)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE)
