"""The run itself: peers, clients, and a small run from start to end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.clients import Gate, together
from benchmarks.measure import in_turn
from benchmarks.peers import KINDS, Absent, Bindfs, opened
from benchmarks.running import Run
from benchmarks.subjects import ROOT
from tests.disks import need_root

FEWER = f"""#!{sys.executable}
import runpy, sys
from benchmarks import operations
operations.LISTED = 60
option, module, *sys.argv[1:] = sys.argv[1:]
assert option == "-m"
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""A Python for benchmarks/run with which folders that are listed hold no thousand files."""


def mounts() -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


@pytest.mark.mount
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_small_run_writes_its_result_and_leaves_nothing_behind(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With one peer: the others would take most of the time, and what is tested is not what they do."""
    programs = tmp_path_factory.mktemp("programs")
    for folder in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(folder).glob("*"):
            (programs / program.name).unlink(missing_ok=True)
            (programs / program.name).symlink_to(program)
    for name in ("mergerfs", "rclone", "gocryptfs"):
        (programs / name).unlink(missing_ok=True)
    fewer = programs / "python-fewer"
    fewer.write_text(FEWER)
    fewer.chmod(0o755)
    command = [str(ROOT / "benchmarks" / "run"), "--quick", "--only", "operations", "--host", "here"]
    command += ["--out", str(tmp_path / "out"), "--directory", str(tmp_path)]
    # Not below tmp_path, because it holds sockets, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="kcb-") as temporary, tempfile.TemporaryFile() as said:
        environment = {**os.environ, "PYTHON": str(fewer), "TMPDIR": temporary, "PATH": str(programs)}
        code = subprocess.run(command, stdout=said, stderr=said, env=environment, check=False).returncode
        said.seek(0)
        assert code == 0, said.read().decode()
        assert os.listdir(temporary) == []
    (path,) = (tmp_path / "out").glob("*.json")
    found = results.load(path)
    assert found.host == "here"
    assert {"put, 1 client, warm", "get, 1 client, cold", "stat, 8 clients, warm"} <= {
        one.what for one in found.figures
    }
    assert {"ext4", "direct", "pyfuse3"} <= {one.subject for one in found.figures}
    assert set(found.absent) >= {"mergerfs", "rclone", "gocryptfs"}
    assert path.with_suffix(".md").exists()
    assert os.listdir(tmp_path) == ["out"]
    assert [mount for mount in mounts() if mount.startswith(str(tmp_path))] == []


def test_a_quick_run_does_not_get_into_the_readme(tmp_path: Path) -> None:
    results.save(results.new("here", quick=True), tmp_path / "quick.json")
    command = [str(ROOT / "benchmarks" / "run"), "--publish", str(tmp_path / "quick.json")]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "not from a whole run" in done.stderr


@need_root
@pytest.mark.mount
@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("ext4", "direct", "pyfuse3")])
def test_a_peer_serves_files_is_remounted_and_goes(name: str, tmp_path: Path) -> None:
    absent: dict[str, str] = {}
    with opened([name], tmp_path, absent) as found:
        if name in absent:
            pytest.skip(absent[name])
        subject = found[name]
        (subject.folder / "file").write_text("bytes")
        subject.forget()
        assert (subject.folder / "file").read_text() == "bytes"
        assert subject.root.is_mount()
        pids = subject.pids()
    assert [mount for mount in mounts() if mount.startswith(str(tmp_path))] == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_peer_that_cannot_be_had_is_named_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Missing(Bindfs):
        package = "no-such-package-of-any-distribution"

    monkeypatch.setitem(KINDS, "bindfs", Missing)
    absent: dict[str, str] = {}
    with opened(["bindfs", "ext4"], tmp_path, absent) as found:
        assert list(found) == ["ext4"]
    assert "not installed" in absent["bindfs"]
    assert "bindfs takes no part" in capfd.readouterr().err


@pytest.mark.mount
def test_a_peer_that_dies_at_once_says_why(tmp_path: Path) -> None:
    if shutil.which("bindfs") is None:
        pytest.skip("bindfs is not installed")

    class Broken(Bindfs):
        def command(self) -> list[str]:
            return ["bindfs", "-f", "--no-such-option", str(self.under), str(self.root)]

    with pytest.raises(Absent, match="did not mount"):
        Broken("bindfs", tmp_path / "bindfs").open()


def test_clients_work_at_the_same_time_and_all_are_heard() -> None:
    def work(number: int, gate: Gate) -> tuple[int, int]:
        gate()
        return number, os.getpid()

    told = together(4, work)
    assert [number for number, _ in told] == [0, 1, 2, 3]
    assert len({pid for _, pid in told}) == 4
    assert together(1, work) == [(0, os.getpid())]


def test_a_client_that_fails_fails_them_all() -> None:
    def work(number: int, gate: Gate) -> None:
        if number == 0:
            raise ValueError("this one")
        gate()

    with pytest.raises(RuntimeError, match="this one"):
        together(3, work)


def test_peers_take_turns_in_both_orders() -> None:
    order = [name for name, _ in in_turn({"a": 1, "b": 2, "c": 3}, range(2))]
    assert order == ["a", "b", "c", "c", "b", "a"]


def test_a_part_out_of_time_still_has_one_round(tmp_path: Path) -> None:
    said: list[str] = []
    run = Run(results.new("here", quick=True), tmp_path, True, said.append)
    run.begin("files", 0.0)
    assert list(run.rounds(5)) == [0]
    run.begin("files", 1e9)
    assert list(run.rounds(3)) == [0, 1, 2]
    assert said[0] == "files, round 1 of 5"
