"""`kcachefs adopt`: caches that were made elsewhere are found in the mount."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kcachefs.errors import UsageError
from kcachefs.frameworks import adoption, headers
from kcachefs.session import account
from tests.engines.mounting import Mount
from tests.frameworks.commands import KCACHEFS, PATIENCE, kcachefs

pytestmark = pytest.mark.mount


def make_triton(folder: Path, kernels: int = 3, size: int = 100) -> Path:
    for number in range(kernels):
        entry = folder / f"KEY{number}"
        entry.mkdir(parents=True)
        children = {}
        for suffix in ("cubin", "ptx", "json"):
            (entry / f"add.{suffix}").write_bytes(os.urandom(size))
            children[f"add.{suffix}"] = str(entry / f"add.{suffix}")
        (entry / "__grp__add.json").write_text(json.dumps({"child_paths": children}))
        (entry / "tmp.pid_1_2").mkdir()
        for path in (*entry.iterdir(), entry):
            os.utime(path, ns=(10**18 + number, 10**18 + 123456789 + number))
    return folder


def snapshot(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    return {
        str(path.relative_to(folder)): (
            found.st_mode,
            found.st_mtime_ns,
            found.st_atime_ns,
            path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
        )
        for path in sorted(folder.rglob("*"))
        for found in [path.lstat()]
    }


def test_what_a_small_quota_evicts_again_is_told(base: Path) -> None:
    source = make_triton(base / "cache", kernels=12, size=1 << 19)
    with Mount(base / "mount", base / "store", "direct", "--max-size", "8MiB") as mount:
        done = json.loads(kcachefs("adopt", source, "--mount", mount.mountpoint, "--json").stdout)
        assert done["adopted"] == 12
        assert 0 < done["evicted"] <= 12 - len(os.listdir(mount.mountpoint / "triton"))


def test_entries_come_whole_with_their_times_and_the_source_stays(mount: Mount, base: Path) -> None:
    source = make_triton(base / "cache")
    before = {name: facts[:2] for name, facts in snapshot(source).items()}
    done = kcachefs("adopt", source, "--mount", mount.mountpoint)
    assert "3 entries adopted" in done.stdout
    assert {name: facts[:2] for name, facts in snapshot(source).items()} == before
    target = mount.mountpoint / "triton"
    assert sorted(os.listdir(target)) == ["KEY0", "KEY1", "KEY2"]
    for entry in target.iterdir():
        assert sorted(os.listdir(entry)) == ["__grp__add.json", "add.cubin", "add.json", "add.ptx"]
        assert (entry / "add.cubin").read_bytes() == (source / entry.name / "add.cubin").read_bytes()
        for path in (entry, *entry.iterdir()):
            found, original = path.stat(), (source / path.relative_to(target)).stat()
            assert (found.st_mtime_ns, found.st_mode) == (original.st_mtime_ns, original.st_mode)
        paths = json.loads((entry / "__grp__add.json").read_text())["child_paths"]
        assert paths == {name: str(entry / name) for name in ("add.cubin", "add.ptx", "add.json")}


def test_again_copies_only_what_is_new(mount: Mount, base: Path) -> None:
    source = make_triton(base / "cache", 2)
    kcachefs("adopt", source, "--mount", mount.mountpoint)
    make_triton(base / "more", 3)
    os.rename(base / "more" / "KEY2", source / "KEY2")
    done = kcachefs("adopt", source, "--mount", mount.mountpoint)
    assert "1 entry adopted" in done.stdout
    assert "2 were there already" in done.stdout


def test_an_interruption_leaves_whole_entries_and_the_next_run_goes_on(mount: Mount, base: Path) -> None:
    source = make_triton(base / "cache", 600, 2000)
    with subprocess.Popen(
        [*KCACHEFS, "adopt", str(source), "--mount", str(mount.mountpoint)], stdout=subprocess.PIPE, text=True
    ) as process:
        target = mount.mountpoint / "triton"
        while process.poll() is None and not any(name.startswith("KEY") for name in os.listdir(target)):
            pass
        process.send_signal(signal.SIGINT)
        out = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 130
    assert "run it again" in out
    done = [name for name in os.listdir(target) if name.startswith("KEY")]
    assert 0 < len(done) < 600
    assert os.listdir(target) == done
    for name in done:
        assert len(os.listdir(target / name)) == 4
    kcachefs("adopt", source, "--mount", mount.mountpoint)
    assert len(os.listdir(target)) == 600


@pytest.mark.parametrize("namespace", ["triton", "cupy"], ids=["trees", "groups"])
def test_two_with_one_process_number_do_not_meet(mount: Mount, base: Path, namespace: str) -> None:
    """As in two containers that share a mount, in each of which the command is process 1."""
    content = {name: os.urandom(3 << 20) for name in ("A", "B")}
    found = {}
    for name, raw in content.items():
        file = base / name / name / "add.cubin" if namespace == "triton" else base / name / f"{name}.cubin"
        file.parent.mkdir(parents=True)
        file.write_bytes(raw)
        [found[name]] = adoption.find(base / name, namespace)
    others = iter(["B"])
    tally = adoption.Tally()

    def copied(count: int) -> None:
        for other in others:
            adoption.adopt(found[other], mount.mountpoint, tally)

    adoption.adopt(found["A"], mount.mountpoint, tally, copied)
    target = mount.mountpoint / namespace
    assert tally.adopted == len(list(target.iterdir())) == 2
    for name, raw in content.items():
        copy = target / name / "add.cubin" if namespace == "triton" else target / f"{name}.cubin"
        assert copy.read_bytes() == raw


def test_what_is_adopted_was_neither_compiled_nor_used(mount: Mount, base: Path) -> None:
    """No matter what else was compiled, and how often it is adopted."""
    make_triton(base / "cache")
    (base / "cupy").mkdir()
    (base / "cupy" / "kernel.cubin").write_bytes(bytes(100))
    compiled = mount.mountpoint / "triton" / "COMPILED"
    compiled.mkdir()
    (compiled / "add.cubin").write_bytes(bytes(100))
    for _ in range(2):
        kcachefs("adopt", base / "cache", "--mount", mount.mountpoint)
        kcachefs("adopt", base / "cupy", "--as", "cupy", "--mount", mount.mountpoint)
        account.read(mount.mountpoint)  # waits until all of it is sealed and counted
        told = json.loads(kcachefs("stats", "--mount", mount.mountpoint, "--json").stdout)["namespaces"]
        counted = {name: (row["entries"], row["hits"], row["misses"]) for name, row in told.items()}
        assert counted == {"triton": (4, 0, 1), "cupy": (1, 0, 0)}


def test_a_cache_of_inductor_is_spread_to_where_each_part_is_looked_for(mount: Mount, base: Path) -> None:
    source = base / "torchinductor_me"
    make_triton(source / "triton" / "0", 1)
    for path in (
        "fxgraph/kz/fkz1/pickle",
        "aotautograd/a1/pickle",
        "5u/c5u1.cpp",
        "5u/c5u1.so",
        "5u/.1.2.tmp",
        "locks/c5u1.lock",
        "precompiled_headers/cns.h",
        "precompiled_headers/cns.h.gch",
    ):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(path)
    done = kcachefs("adopt", source, "--mount", mount.mountpoint)
    assert "5 entries adopted" in done.stdout
    have = {
        str(path.relative_to(mount.mountpoint))
        for path in mount.mountpoint.rglob("*")
        if path.is_file() and ".kcachefs" not in path.parts
    }
    assert have == {
        "inductor/fxgraph/kz/fkz1/pickle",
        "inductor/aotautograd/a1/pickle",
        "inductor/5u/c5u1.cpp",
        "inductor/5u/c5u1.so",
        "precompiled_headers/cns.h",
        "precompiled_headers/cns.h.gch",
        *(f"triton/KEY0/{name}" for name in ("__grp__add.json", "add.cubin", "add.json", "add.ptx")),
    }


def test_links_and_modes_come_too(mount: Mount, base: Path) -> None:
    extension = base / "ext" / "my_ops"
    extension.mkdir(parents=True)
    (extension / "my_ops.so").write_text("library")
    (extension / "my_ops.so").chmod(0o755)
    (extension / "link.so").symlink_to("my_ops.so")
    kcachefs("adopt", base / "ext", "--as", "torch_extensions", "--mount", mount.mountpoint)
    target = mount.mountpoint / "torch_extensions" / "my_ops"
    assert os.readlink(target / "link.so") == "my_ops.so"
    assert (target / "my_ops.so").stat().st_mode & 0o777 == 0o755


def test_whose_cache_it_is_is_told_by_place_or_content(base: Path) -> None:
    assert adoption.namespace_of(make_triton(base / "t"), {}) == "triton"
    (base / "somewhere").mkdir()
    assert adoption.namespace_of(base / "somewhere", {"CUPY_CACHE_DIR": str(base / "somewhere")}) == "cupy"
    with pytest.raises(UsageError, match="--as"):
        adoption.namespace_of(base / "somewhere", {})
    place = headers.header_folder()
    place.mkdir(parents=True)
    assert adoption.namespace_of(place, {}) == "precompiled_headers"
    place.rmdir()


def test_what_makes_no_sense_is_refused(mount: Mount, base: Path) -> None:
    for arguments in (
        [base / "none"],
        [mount.mountpoint / "triton"],
        [make_triton(base / "t"), "--as", "trition"],
    ):
        done = kcachefs("adopt", *arguments, "--mount", mount.mountpoint, check=False)
        assert done.returncode == 2, done.stderr


def test_real_triton_finds_what_was_adopted_even_when_the_source_is_gone(mount: Mount, base: Path) -> None:
    from tests.frameworks.programs import TRITON, run_program

    cold = run_program(TRITON, {"TRITON_CACHE_DIR": str(base / "old")}, folder=base)
    assert cold["compiled"] == 4
    kcachefs("adopt", base / "old", "--mount", mount.mountpoint)
    os.rename(base / "old", base / "gone")
    warm = run_program(TRITON, {"TRITON_CACHE_DIR": str(mount.mountpoint / "triton")}, folder=base)
    assert warm == {**cold, "compiled": 0}


def test_a_bar_is_drawn_for_a_terminal(mount: Mount, base: Path) -> None:
    source = make_triton(base / "cache", 5)
    script = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
    done = subprocess.run(
        [sys.executable, "-c", script, *KCACHEFS, "adopt", str(source), "--mount", str(mount.mountpoint)],
        capture_output=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
        check=True,
        env={**os.environ, "TERM": "xterm"},
    )
    assert b"entry 5 of 5" in done.stdout
    assert b"5 entries adopted" in done.stdout
