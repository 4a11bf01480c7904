"""`kcachefs runs` and `stats --since`, `--by`, `--reset`: what happened, in tables and as JSON, mounted or at rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.cli.scene import Scene
from tests.waiting import until

pytestmark = pytest.mark.mount

MAKE = """
import os, sys
for key in sys.argv[2:]:
    os.mkdir(f"{sys.argv[1]}/triton/{key}")
    with open(f"{sys.argv[1]}/triton/{key}/kernel.cubin", "wb") as file:
        file.write(os.urandom(5000))
sys.stdin.read()
"""
READ = """
import select, sys
while not select.select([sys.stdin], [], [], 0.02)[0]:  # the kernel remembers an entry's name for a second
    open(f"{sys.argv[1]}/triton/{sys.argv[2]}/kernel.cubin", "rb").read()
"""


def program(scene: Scene, script: str, *arguments: str) -> None:
    """Another program than this one, which does not use the mount itself; it ends when it is among the runs, with the
    hit of one that reads."""
    what = "hits" if script is READ else "pid"

    def is_known() -> bool:
        return any(run[what] for run in told(scene, "runs") if run["pid"] == running.pid)

    command = [sys.executable, "-c", script, str(scene.mountpoint), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as running:
        until(is_known)
        running.communicate()
    assert running.returncode == 0


def told(scene: Scene, *words: str) -> Any:
    return json.loads(scene.must(*words, "--json"))


def test_runs_and_what_happened_are_shown_mounted_and_at_rest(scene: Scene) -> None:
    scene.mount()
    assert scene.must("runs").strip() == "no runs"
    program(scene, MAKE, "A", "B")
    told(scene, "stats")
    program(scene, READ, "A")
    maker, reader = told(scene, "runs")
    assert (maker["misses"], maker["hits"], reader["misses"], reader["hits"]) == (2, 0, 0, 1)
    assert reader["argv"].startswith(f"{sys.executable} -c ")
    assert len(reader["argv"]) == 200
    assert reader["seconds_saved"] <= maker["seconds_compiled"]
    lines = scene.must("runs").splitlines()
    assert lines[0].split()[:2] == ["run", "command"]
    assert len(lines) == 3
    scene.must("evict", "triton/B")
    program(scene, MAKE, "B")
    past = told(scene, "stats", "--since", "1h")
    assert [(row["name"], row["hits"], row["misses"], row["evictions"], row["remade"]) for row in past["rows"]] == [
        ("triton", 1, 3, 1, 0)
    ]
    assert told(scene, "stats", "--by", "user")["rows"][0]["name"] == "root"
    by_run = told(scene, "stats", "--since", "7d", "--by", "run")
    assert [row["misses"] for row in by_run["rows"]] == [2, 0, 1]
    assert by_run["total"]["hits"] == 1
    assert "evicted  1 entry in" in scene.must("stats")
    assert "the quota is large enough" in scene.must("stats", "--since", "2d")
    scene.umount()
    for place in (("--store", str(scene.store)),):
        assert [run["misses"] for run in told(scene, "runs", *place)] == [2, 0, 1]
        assert told(scene, "stats", "--since", "7d", *place)["rows"] == past["rows"]


def test_a_store_that_takes_more_than_its_quota_is_not_told_to_fit(scene: Scene) -> None:
    scene.mount("--grace", "0")
    program(scene, MAKE, "A", "B")
    scene.must("evict", "triton/B")
    assert scene.must("stats").rstrip().endswith("the quota is large enough")
    with open(scene.mountpoint / "triton" / "A" / "large", "wb") as held:
        held.write(os.urandom(3 << 20))
        held.flush()
        scene.must("set", scene.mountpoint, "--max-size", "1MiB")
        for words in (scene.must("stats"), scene.must("stats", "--since", "2d")):
            assert words.rstrip().endswith("the store takes more than the quota")


def test_numbers_are_reset_and_wrong_words_refused(scene: Scene) -> None:
    scene.mount()
    program(scene, MAKE, "A")
    assert told(scene, "stats")["total"]["misses"] == 1
    after = told(scene, "stats", "--reset")
    assert (after["total"]["misses"], after["total"]["entries"]) == (0, 1)
    assert after["since"] > 0
    assert told(scene, "stats", "--since", "7d")["since"] == after["since"]
    scene.run("stats", "--by", "colour").refused_with(2, "colour", "namespace, user, run")
    scene.run("stats", "--since", "soon").refused_with(2, "soon")
    scene.run("runs", "--since", "soon").refused_with(2, "soon")
