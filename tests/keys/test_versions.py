"""The library under every Python version that the project supports: it can be imported, and keys are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.keys.interpreters import VERSIONS, Interpreter, interpreter

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
CACHED = """
import sys, kcachefs, kcachefs.keys
from pathlib import Path
with kcachefs.Cache(sys.argv[1]) as cache:
    @kcachefs.cached(cache=cache)
    def build(x):
        Path(sys.argv[2]).open("a").write("built ")
        return b"built " + x
    print(build(b"one") + build(b"one"), Path(sys.argv[2]).read_text())
"""


@pytest.fixture(scope="module", params=VERSIONS)
def other(request: pytest.FixtureRequest) -> Interpreter:
    return interpreter(request.param)


def test_the_library_can_be_imported_and_used(other: Interpreter, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CACHED)
    printed = other.run(str(tmp_path / "script.py"), str(tmp_path / "cache"), str(tmp_path / "calls"))
    assert printed.strip() == "b'built onebuilt one' built"


def test_keys_do_not_depend_on_the_version(other: Interpreter) -> None:
    assert json.loads(other.run("-m", "tests.keys.told")) == GOLDEN
