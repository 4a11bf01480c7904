"""What commands print for programs: JSON of every verb, and silence when nobody reads on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kcachefs.cli import make_app
from tests import forked_daemons
from tests.cli.scene import KCACHEFS, Scene
from tests.waiting import PATIENCE

pytestmark = pytest.mark.mount


def test_every_verb_has_json() -> None:
    commands: dict[str, Any] = dict(typer.main.get_command(make_app()).commands)  # type: ignore[attr-defined]
    for name, group in [(name, one) for name, one in commands.items() if hasattr(one, "commands")]:
        del commands[name]
        commands |= {f"{name} {verb}": one for verb, one in group.commands.items()}
    words = {"help", "completion"}  # they print text for a person or a shell, and nothing else
    without = [name for name, one in commands.items() if not any("--json" in part.opts for part in one.params)]
    assert set(without) <= words


@pytest.fixture
def filled(scene: Scene) -> Scene:
    folder = scene.mount()
    for number in range(3):
        (folder / f"KEY{number}").mkdir()
        (folder / f"KEY{number}" / "kernel.cubin").write_bytes(b"cubin%d" % number * 100)
    scene.settle()
    return scene


def test_what_changes_something_tells_it_as_json(filled: Scene, tmp_path: Path) -> None:
    def asked(*arguments: str | Path) -> Any:
        return json.loads(filled.must(*arguments, "--json"))

    assert asked("pin", "triton/KEY0")["entries"] == ["triton/KEY0"]
    assert asked("gc")["freed_bytes"] >= 0
    assert asked("env")["KCACHEFS_MOUNT"] == str(filled.mountpoint)
    source = tmp_path / "triton"
    (source / "NEW").mkdir(parents=True)
    (source / "NEW" / "kernel.cubin").write_bytes(b"x")
    told = asked("adopt", source, "--as", "triton")
    assert told == {"adopted": 1, "present": 0, "bytes": 1, "evicted": 0, "skipped": [], "interrupted": False}
    assert filled.must("adopt", source, "--as", "triton") == "0 entries adopted (0 B), 1 was there already\n"
    reloaded = asked("reload")
    assert reloaded["worker_pid"] == filled.status()[0]["worker_pid"] != reloaded["former_worker_pid"]


@pytest.fixture
def names_asked_for_each_time() -> Iterator[None]:
    """Else the kernel knows a name from its writer for a second, and asks nobody.

    Before the scene, which takes the environment as it is then.
    """
    with forked_daemons.constants({"kcachefs.core.name_requests.HEARTBEAT_SECONDS": 0}):
        yield


@pytest.mark.usefixtures("names_asked_for_each_time")
def test_a_run_ends_with_a_line_of_json(filled: Scene) -> None:
    script = f"cat {filled.mountpoint}/triton/KEY1/kernel.cubin; echo talk >&2; exit 3"
    outcome = filled.run("run", "--json", "--", "sh", "-c", script)
    assert (outcome.code, outcome.out) == (3, "cubin1" * 100)
    talk, line = outcome.err.splitlines()
    told = json.loads(line)
    assert talk == "talk"
    assert (told["mountpoint"], told["hits"], told["misses"]) == (str(filled.mountpoint), 1, 0)
    assert (told["warm"], told["exit_code"]) == (True, 3)
    cold = filled.run("run", "--json", "--assert-warm", "--", "true")
    assert (cold.code, json.loads(cold.err)["warm"]) == (1, False)


def test_watching_prints_a_line_of_json_each_time(filled: Scene) -> None:
    with subprocess.Popen(
        [*KCACHEFS, "stats", "--watch", "--json"], env=filled.environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert [one["total"]["entries"] for one in lines] == [3, 3]


def _write_end_of_a_closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("verb", ["ls", "stats", "status", "env", "frameworks", "doctor", "gc"])
def test_a_reader_that_has_seen_enough_is_no_error(filled: Scene, verb: str) -> None:
    writer = _write_end_of_a_closed_pipe()
    try:
        ended = subprocess.run([*KCACHEFS, verb], env=filled.environment, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_output_that_cannot_be_written_is_one_line(filled: Scene) -> None:
    filled.environment.pop("PYTHONUNBUFFERED", None)
    with open("/dev/full", "wb") as full:
        ended = subprocess.run([*KCACHEFS, "status"], env=filled.environment, stdout=full, stderr=subprocess.PIPE)
    assert (ended.returncode, ended.stderr) == (5, b"kcachefs: standard output: No space left on device\n")


def test_a_closed_output_is_no_error(filled: Scene) -> None:
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *KCACHEFS, "env"], env=filled.environment, stderr=subprocess.PIPE
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
