"""The table of `tests.keys.cases`, walked in several processes: hash seeds, checkouts and Python versions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked_programs
from tests.forked_programs import Program
from tests.keys.cases import CASES
from tests.keys.cases.case import Case
from tests.keys.interpreters import ROOT, VERSIONS, interpreter
from tests.made_once import made_once

# Two of the processes need torch and all of its compiler, which takes long beside other load.
pytestmark = pytest.mark.timeout(900)

Keys = dict[str, list[str]]
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Keys]:
    """All keys, in two processes with other hash seeds and other checkouts; they run side by side."""
    return made_once(tmp_path_factory, "keys", walked_twice)


def walked_twice(folder: Path) -> list[Keys]:
    elsewhere = folder / "elsewhere" / "and deeper" / "checkout"
    program = folder / "walk.py"
    program.write_text("from tests.keys.cases.runner import main\nmain()\n")
    assert forked_programs.HASH_SEED != "1"
    # The other process has torch already.
    with started(folder / "here", "1") as first, Program(program, str(elsewhere), env=os.environ) as second:
        return [finished(first), finished(second)]


@pytest.fixture(scope="session")
def keys(both: list[Keys]) -> Keys:
    return both[0]


def started(folder: Path, seed: str, *sections: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *options, "-m", "tests.keys.cases.runner", str(folder), *sections]
    return subprocess.Popen(
        command, env=environment, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str]) -> Keys:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    told: Keys = json.loads(out)
    return told


def test_the_table_is_as_large_as_it_should_be() -> None:
    assert len(BY_NAME) == len(CASES), "two cases have one name"
    assert sum(case.expect == "change" for case in CASES) >= 400
    assert sum(case.expect == "same" for case in CASES) >= 80


def test_every_case_comes_out_as_it_must(keys: Keys) -> None:
    wrong = [f"{name}: {keys[name]}" for name in keys if not is_right(BY_NAME[name], *keys[name])]
    assert not wrong, "\n".join(wrong)
    assert len(keys) == len(CASES)


def is_right(case: Case, before: str, after: str) -> bool:
    if case.expect == "refused":
        return before.startswith("refused: ") and after.startswith("refused: ")
    if before.startswith(("refused: ", "failed: ")) or after.startswith(("refused: ", "failed: ")):
        return False
    return (before == after) == (case.expect == "same")


def test_a_refusal_says_what_to_do(keys: Keys) -> None:
    told = [after for name, (_, after) in keys.items() if BY_NAME[name].expect == "refused"]
    advice = ("`ignore`", "__kcachefs_key__", "`depends`", "; pass ", "; include ", "; write ", "; give ")
    assert [message for message in told if not any(words in message for words in advice)] == []


def test_neither_the_hash_seed_nor_the_checkout_shows(both: list[Keys]) -> None:
    one, two = both
    assert one.keys() == two.keys()
    assert differing(one, two) == {}


def test_python_that_optimises_has_other_keys_for_functions_and_the_same_for_data(keys: Keys, tmp_path: Path) -> None:
    data, functions = ("plain: ", "library: datetime", "program: "), ("function: ", "recursive: ", "annotation: ")
    with started(tmp_path, "1", *data, *functions, options=("-O",)) as process:
        other = finished(process)
    assert len(other) > 100
    assert [name for name in other if name.startswith(data) and other[name] != keys[name]] == []
    assert [name for name in other if name.startswith(functions) and other[name][0] == keys[name][0]] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_python_version_does_not_show(keys: Keys, version: str, tmp_path: Path) -> None:
    other = interpreter(version)
    told: Keys = json.loads(other.run("-m", "tests.keys.cases.runner", str(tmp_path)))
    assert len(told) >= 400
    assert differing(keys, told) == {}
    assert [name for name in told if not is_right(BY_NAME[name], *told[name])] == []


def differing(one: Keys, two: Keys) -> dict[str, tuple[list[str], list[str]]]:
    """The cases that both have, must agree on, and do not. How a refusal is worded may name a version's own classes."""
    return {
        name: (one[name], two[name])
        for name in one.keys() & two.keys()
        if BY_NAME[name].is_portable and BY_NAME[name].expect != "refused" and one[name] != two[name]
    }
