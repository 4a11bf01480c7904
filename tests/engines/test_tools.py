"""Compilers and everyday tools at work in the filesystem."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.engines.callers import Child, in_child
from tests.engines.mounting import temporary_folder
from tests.engines.trees import same_trees, snapshot


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """What the command prints on both streams; a failure shows it."""
    done = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def test_gcc_builds_an_executable_that_runs(root: Path) -> None:
    (root / "main.c").write_text('#include <stdio.h>\nint main(void) { puts("built here"); return 0; }\n')
    run("gcc", "-g", "-O1", "-save-temps", "main.c", "-o", "main", cwd=root)
    assert run(root / "main", cwd=root) == "built here\n"
    assert {"main.i", "main.s", "main.o"} <= {name.removeprefix("main-") for name in os.listdir(root)}


def test_gcc_rebuilds_over_its_own_output(root: Path) -> None:
    for answer in (1, 2, 3):
        (root / "main.c").write_text(f"int main(void) {{ return {answer}; }}\n")
        run("gcc", "main.c", "-o", "main", cwd=root)
        assert subprocess.run([root / "main"], check=False).returncode == answer


def test_a_shared_object_is_linked_and_loaded(root: Path) -> None:
    (root / "answer.c").write_text("int answer(int x) { return x * 2; }\n")
    run("gcc", "-shared", "-fPIC", "answer.c", "-o", "answer.so", cwd=root)
    # In its own process: a library stays mapped, and keeps the mount busy, until its process ends.
    assert in_child(lambda: ctypes.CDLL(str(root / "answer.so")).answer(21)) == 42


def test_ld_links_objects_of_several_compilations(root: Path) -> None:
    for number in range(8):
        (root / f"part{number}.c").write_text(f"int part{number}(void) {{ return {number}; }}\n")
    compilers = [
        subprocess.Popen(["gcc", "-c", "-g", "-fPIC", f"part{number}.c", "-o", f"part{number}.o"], cwd=root)
        for number in range(8)
    ]
    assert [compiler.wait() for compiler in compilers] == [0] * 8
    objects = [f"part{number}.o" for number in range(8)]
    run("ar", "rcs", "parts.a", *objects, cwd=root)
    run("ld", "-r", "-o", "all.o", *objects, cwd=root)
    run("ld", "-shared", "-o", "all.so", "all.o", cwd=root)
    assert in_child(lambda: ctypes.CDLL(str(root / "all.so")).part7()) == 7


def test_a_precompiled_header_is_written_and_used(root: Path) -> None:
    (root / "all.h").write_text("#include <algorithm>\n#include <map>\n#include <string>\n#include <vector>\n")
    (root / "main.cpp").write_text(
        '#include "all.h"\nint main() { std::vector<int> v{3, 1, 2}; std::sort(v.begin(), v.end()); return v[0]; }\n'
    )
    run("g++", "-x", "c++-header", "all.h", "-o", "all.h.gch", cwd=root)
    assert (root / "all.h.gch").stat().st_size > 1_000_000
    said = run("g++", "-H", "-Winvalid-pch", "-Werror", "main.cpp", "-o", "main", cwd=root)
    assert said.splitlines()[0] == "! all.h.gch"
    assert subprocess.run([root / "main"], check=False).returncode == 1


@pytest.mark.skipif(shutil.which("ninja") is None, reason="ninja is not installed")
def test_ninja_builds_once_and_again_only_what_changed(root: Path) -> None:
    (root / "build.ninja").write_text(
        "rule upper\n  command = tr a-z A-Z < $in > $out\nrule join\n  command = cat $in > $out\n"
        "build one.out: upper one.in\nbuild two.out: upper two.in\nbuild all.out: join one.out two.out\n"
    )
    (root / "one.in").write_text("one\n")
    (root / "two.in").write_text("two\n")
    assert "[3/3]" in run("ninja", cwd=root)
    assert (root / "all.out").read_text() == "ONE\nTWO\n"
    assert "no work to do" in run("ninja", cwd=root)
    os.utime(root / "two.in", ns=((root / "all.out").stat().st_mtime_ns + 1,) * 2)
    (root / "one.out").unlink()
    said = run("ninja", "-d", "explain", cwd=root)
    assert "one.out doesn't exist" in said
    assert "two.out older than" in said


def test_compiled_python_is_used_as_long_as_its_source_is_the_same(root: Path) -> None:
    source = root / "module.py"
    source.write_text("answer = 1\n")
    run(sys.executable, "-m", "compileall", "-q", root, cwd=root)
    compiled = importlib.util.cache_from_source(str(source))
    assert Path(compiled).exists()
    program = "import module; print(module.answer)"
    said = run(sys.executable, "-v", "-c", program, cwd=root, env={"PYTHONPATH": str(root)})
    assert f"{compiled} matches {source}" in said
    source.write_text("answer = 22\n")
    assert run(sys.executable, "-c", program, cwd=root, env={"PYTHONPATH": str(root)}) == "22\n"


@pytest.mark.parametrize("journal", ["delete", "truncate", "wal"])
def test_sqlite_serves_two_processes(root: Path, journal: str) -> None:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(root / "database", timeout=60, isolation_level=None)
        connection.execute("pragma busy_timeout = 60000")
        return connection

    def insert(writer: int) -> None:
        connection = connect()
        for number in range(60):
            connection.execute("begin immediate")
            connection.execute("insert into numbers values (?, ?)", (writer, number))
            connection.execute("commit")
        connection.close()

    connection = connect()
    assert connection.execute(f"pragma journal_mode = {journal}").fetchone() == (journal,)
    connection.execute("create table numbers (writer integer, number integer)")
    connection.close()
    writers = [Child(partial(insert, writer)) for writer in range(2)]
    for writer in writers:
        with writer:
            writer.result()
    connection = connect()
    assert connection.execute("select writer, count(*), max(number) from numbers group by writer").fetchall() == [
        (0, 60, 59),
        (1, 60, 59),
    ]
    assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
    connection.close()


def test_git_commits_clones_packs_and_finds_no_fault(root: Path) -> None:
    identity = {f"GIT_{who}_{what}": "someone" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    settings = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "PATH": os.environ["PATH"]}
    git = partial(run, "git", env=identity | settings)
    work = root / "work"
    git("init", "-q", "-b", "main", "work", cwd=root)
    for turn in range(3):
        for number in range(20):
            (work / f"file{number}").write_text(f"{turn} {number}\n" * 50)
        git("add", ".", cwd=work)
        git("commit", "-q", "-m", f"turn {turn}", cwd=work)
    assert git("status", "--porcelain", cwd=work) == ""
    git("fsck", "--full", "--strict", cwd=work)
    git("gc", "-q", cwd=work)
    git("clone", "-q", "work", "clone", cwd=root)
    git("fsck", "--full", "--strict", cwd=root / "clone")
    assert git("log", "--format=%s", cwd=root / "clone") == "turn 2\nturn 1\nturn 0\n"


def grow(root: Path) -> Path:
    """A tree with one of everything an archive can hold."""
    tree = root / "tree"
    (tree / "folder" / "empty").mkdir(parents=True)
    (tree / "file").write_bytes(os.urandom(100_000))
    (tree / "folder" / "script").write_text("#!/bin/sh\n")
    (tree / "folder" / "script").chmod(0o755)
    os.link(tree / "file", tree / "folder" / "hard")
    (tree / "link").symlink_to("folder/script")
    os.mkfifo(tree / "fifo")
    with open(tree / "sparse", "wb") as file:
        file.seek(1_000_000)
        file.write(b"end")
    if os.geteuid() == 0:
        os.chown(tree / "file", 1234, 5678)
        os.lchown(tree / "link", 1234, 5678)
    for number, name in enumerate(("file", "link", "sparse", "folder/script", "folder/empty", "folder")):
        os.utime(tree / name, ns=(1, 1_600_000_000_123_456_789 + number), follow_symlinks=False)
    return tree


def test_a_tree_goes_through_tar_unchanged_in_and_out(root: Path) -> None:
    with temporary_folder() as outside:
        tar = partial(run, "tar", "--numeric-owner", "--format=posix", "-p", cwd=outside)
        outer = grow(outside)
        tar("-C", outside, "-cf", "in.tar", "tree")
        tar("-C", root, "-xf", "in.tar")
        same_trees(snapshot(root / "tree"), snapshot(outer))
        tar("-C", root, "-df", "in.tar")
        tar("-C", root, "-S", "-cf", "out.tar", "tree")
        (outside / "back").mkdir()
        tar("-C", outside / "back", "-xf", "out.tar")
        same_trees(snapshot(outside / "back" / "tree"), snapshot(outer))


def test_cp_copies_a_tree_with_all_it_has(root: Path) -> None:
    tree = grow(root)
    run("cp", "-a", tree, root / "copy", cwd=root)
    same_trees(snapshot(root / "copy"), snapshot(tree))
    with temporary_folder() as outside:
        run("cp", "-a", tree, outside / "copy", cwd=root)
        same_trees(snapshot(outside / "copy"), snapshot(tree))
        run("cp", "-a", outside / "copy", root / "back", cwd=root)
    same_trees(snapshot(root / "back"), snapshot(tree))


def test_mv_moves_a_tree_in_from_outside(root: Path) -> None:
    with temporary_folder() as outside:
        tree = grow(outside)
        before = snapshot(tree)
        run("mv", tree, root / "moved", cwd=root)
        assert not tree.exists()
    same_trees(snapshot(root / "moved"), before)


def test_rm_and_find_remove_large_trees_without_a_rest(root: Path) -> None:
    for remove in (["rm", "-r", "tree"], ["find", "tree", "-delete"]):
        for number in range(40):
            folder = root / "tree" / f"{number % 7}" / f"{number}"
            folder.mkdir(parents=True)
            for leaf in range(25):
                (folder / f"{leaf}").touch()
        run(*remove, cwd=root)
        assert os.listdir(root) == []
