"""Prolog and epilog as Slurm runs them: jobs come and go on a node with a real mount."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs.frameworks import environment
from tests import command_program
from tests.cli.scene import PACKAGE, Scene, kill_and_wait, scene
from tests.deploy.places import DEPLOY
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.mount


class Node:
    """A node whose settings point into a scene."""

    def __init__(self, place: Scene, cache: Path | None = None) -> None:
        self.scene = place
        self.cache = cache or place.mountpoint
        self.scripts = place.folder / "slurm"
        shutil.copytree(DEPLOY / "slurm", self.scripts)
        settings = self.scripts / "settings.sh"
        text = settings.read_text()
        for there, here in (
            ("PATH=", f"PATH={place.folder / 'bin'}:"),
            ("cache=/srv/kcachefs/cache", f"cache={shlex.quote(str(self.cache))}"),
            ("store=/var/cache/kcachefs", f"store={place.store}"),
            ("jobs=/run/kcachefs-jobs", f"jobs={place.folder / 'jobs'}"),
        ):
            assert there in text
            text = text.replace(there, here, 1)
        settings.write_text(text)
        self.program = place.folder / "bin" / "kcachefs"
        command_program.write(self.program)

    def has_the_real_program(self) -> None:
        """From here on every command is a new Python."""
        self.program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kcachefs "$@"\n')

    def run(self, script: str, job: int | None) -> str:
        """Run a script as slurmd does, with an almost empty environment and the job's ids."""
        done = subprocess.run(
            [self.scripts / f"{script}.sh"],
            env={
                **{name: value for name, value in self.scene.environment.items() if name.startswith("KCACHEFS_")},
                "PYTHONPATH": str(PACKAGE.parent),
                **({"SLURM_JOB_ID": str(job)} if job is not None else {}),
                "SLURM_JOB_UID": "1001",
                "SLURM_JOB_USER": "alice",
                "SLURMD_NODENAME": "node1",
            },
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        self.said = done.stderr
        assert done.returncode == 0, "anything but 0 drains the node"
        return done.stdout

    def is_mounted(self) -> bool:
        return os.path.ismount(self.cache)


@pytest.fixture
def node() -> Iterator[Node]:
    with scene() as place:
        yield Node(place)


def test_the_first_job_mounts_and_the_last_unmounts(node: Node) -> None:
    node.has_the_real_program()
    node.run("prolog", 1)
    [state] = node.scene.status()
    (node.cache / "triton" / "kernel").write_text("compiled")
    node.run("prolog", 2)
    [same] = node.scene.status()
    assert same["supervisor_pid"] == state["supervisor_pid"]
    node.run("epilog", 1)
    assert node.is_mounted()
    node.run("epilog", 2)
    assert node.scene.is_over()
    node.run("prolog", 3)
    assert (node.cache / "triton" / "kernel").read_text() == "compiled"
    node.run("epilog", 3)
    assert node.scene.is_over()
    assert node.said == ""


def test_a_task_gets_the_variables_as_slurm_reads_them(node: Node) -> None:
    node.run("prolog", 1)
    given = exported(node.run("task_prolog", 1))
    assert "TORCH_EXTENSIONS_DIR" in given
    assert given == environment(node.cache) | bound(node.cache)
    node.run("epilog", 1)
    assert node.run("task_prolog", 1) == ""


def test_a_task_binds_the_folder_above_the_cache_only_if_that_was_made_for_it() -> None:
    with scene() as place:
        node = Node(place, place.folder / "kcachefs" / "it's the cache")
        (node.cache / ".kcachefs").mkdir(parents=True)
        (node.cache / ".kcachefs" / "stats.json").touch()
        (place.folder / "bin" / "kcachefs").write_text("#!/bin/sh\n")  # nothing but what is bound is to be shown
        assert exported(node.run("task_prolog", 1)) == bound(node.cache.parent)
        (node.cache.parent / "private").touch()
        assert exported(node.run("task_prolog", 1)) == bound(node.cache)


def exported(text: str) -> dict[str, str]:
    """The variables that Slurm finds in what a TaskProlog prints."""
    lines = text.splitlines()
    given = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))
    assert len(given) == len(lines)
    return given


def bound(folder: Path) -> dict[str, str]:
    return {"APPTAINER_BIND": str(folder), "SINGULARITY_BIND": str(folder)}


def test_a_job_whose_cache_cannot_be_mounted_runs_all_the_same(node: Node) -> None:
    node.scene.store.write_text("no store")
    node.run("prolog", 1)
    assert "runs without a cache" in node.said
    assert node.run("task_prolog", 1) == ""
    node.run("epilog", 1)
    assert node.said == ""


def test_a_cache_that_someone_still_uses_stays_mounted(node: Node) -> None:
    node.run("prolog", 1)
    with open(node.cache / "triton" / "file", "w"):
        node.run("epilog", 1)
        assert "stays mounted" in node.said
        assert node.is_mounted()
    node.run("prolog", 2)
    node.run("epilog", 2)
    assert node.scene.is_over()


def test_a_job_after_a_daemon_that_was_killed_finds_a_mount_again(node: Node) -> None:
    node.run("prolog", 1)
    (node.cache / "triton" / "kernel").write_text("compiled")
    [state] = node.scene.status()
    for name in ("supervisor_pid", "worker_pid"):
        kill_and_wait(state[name])
    node.run("prolog", 2)
    assert (node.cache / "triton" / "kernel").read_text() == "compiled"
    for job in (1, 2):
        node.run("epilog", job)
    assert node.scene.is_over()


def test_ten_jobs_that_begin_and_end_at_once_leave_nothing(node: Node) -> None:
    for script in ("prolog", "epilog"):
        environment = {**node.scene.environment, "SLURMD_NODENAME": "node1"}
        running = [
            subprocess.Popen([node.scripts / f"{script}.sh"], env={**environment, "SLURM_JOB_ID": str(job)})
            for job in range(10)
        ]
        assert [process.wait(PATIENCE) for process in running] == [0] * 10
        assert len(node.scene.mounted()) == (script == "prolog")
    assert node.scene.is_over()
    assert [path.name for path in (node.scene.folder / "jobs").iterdir()] == [".lock"]


@pytest.mark.parametrize("script", ["prolog", "epilog"])
def test_without_a_job_nothing_is_done_and_the_node_is_not_drained(node: Node, script: str) -> None:
    node.run(script, None)
    assert "SLURM_JOB_ID is not set" in node.said
    assert not node.is_mounted()


def test_rotating_the_logs_makes_every_daemon_open_a_new_one(node: Node) -> None:
    node.run("prolog", 1)
    [state] = node.scene.status()
    log = Path(state["log"])
    until(lambda: len(node.scene.daemons()) == 3)  # with the standby
    log.rename(log.with_suffix(".1"))
    config = (DEPLOY / "logrotate" / "kcachefs").read_text()
    script = config.partition("postrotate\n")[2].partition("endscript")[0]
    path = f"{node.scene.folder / 'bin'}:{os.environ['PATH']}"
    subprocess.run(["sh", "-euc", script], env={**node.scene.environment, "PATH": path}, check=True, timeout=PATIENCE)
    until(lambda: log.exists() and log.read_text().count("reopened the log") == 3)
    node.run("epilog", 1)
