"""`kcachefs.init()`: pointing a running process at a mount."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.mounting import Mount
from tests.frameworks.commands import PATIENCE, kcachefs

pytestmark = pytest.mark.mount


def python(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_variables_are_set_here_and_in_what_is_started_from_here(mount: Mount) -> None:
    script = f"""
import kcachefs, os, subprocess
where = kcachefs.init({str(mount.mountpoint)!r})
assert os.environ["TRITON_CACHE_DIR"] == str(where / "triton")
import triton
from triton import knobs
assert knobs.cache.dir == str(where / "triton")
assert os.path.isdir(os.environ["PYTORCH_KERNEL_CACHE_PATH"])
subprocess.run(["sh", "-c", 'echo "$JAX_COMPILATION_CACHE_DIR"'], check=True)
"""
    assert python(script).strip() == str(mount.mountpoint / "jax")


def test_triton_and_inductor_notice_even_after_import(mount: Mount) -> None:
    """They read their variables at each use, so there must be no warning (-W error would turn it into an error)."""
    script = f"""
import torch, triton, kcachefs
from torch._inductor.runtime.runtime_utils import cache_dir
where = kcachefs.init({str(mount.mountpoint)!r})
from triton import knobs
assert knobs.cache.dir == str(where / "triton")
assert cache_dir() == str(where / "inductor")
"""
    python(script)


def test_a_framework_that_was_imported_too_early_is_named(mount: Mount, base: Path) -> None:
    (base / "flashinfer.py").write_text("")
    (base / "numba.py").write_text("")
    script = f"""
import warnings, kcachefs, flashinfer, numba, os
os.environ["NUMBA_CACHE_DIR"] = {str(mount.mountpoint / "numba")!r}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    kcachefs.init({str(mount.mountpoint)!r})
[warning] = caught
assert warning.category is kcachefs.TooLate
assert "FlashInfer was imported before" in str(warning.message)
assert warning.filename == "<string>", warning.filename
"""
    python(script, PYTHONPATH=f"{base}:{os.environ.get('PYTHONPATH', '')}")


def test_a_mount_is_made_when_asked_for_and_goes_with_the_process(base: Path) -> None:
    script = f"""
import kcachefs, os
where = kcachefs.init(mount=True, store={str(base / "store")!r})
assert os.path.ismount(where)
(where / "triton" / "K").mkdir()
print(where)
"""
    where = python(script).strip()
    assert not os.path.ismount(where)
    assert python(script.replace(".mkdir()", ".rmdir()")).strip() == where


def test_a_fork_that_ends_leaves_the_mount_to_its_parent(base: Path) -> None:
    script = f"""
import kcachefs, os
where = kcachefs.init(mount=True, store={str(base / "store")!r})
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    assert os.path.ismount(where)
    print(where)
"""
    assert not os.path.ismount(python(script).strip())


@pytest.mark.parametrize("busy", [True, False])
def test_a_fork_that_outlives_its_parent_keeps_nobody_waiting(base: Path, busy: bool) -> None:
    script = f"""
import kcachefs, os, sys
where = kcachefs.init(mount=True, store={str(base / "store")!r})
held = open(where / "triton" / "held", "w") if {busy} else None
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print(where, flush=True)
"""
    run = ("run", "--store", base / "store", "--", "true")
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        where = process.stdout.readline().strip()
        assert process.wait(PATIENCE) == 0
        assert os.path.ismount(where) is busy
        kcachefs(*run)
        process.stdin.close()
        assert process.stdout.read() == ""  # the fork has ended
    kcachefs(*run)
    assert not os.path.ismount(where)


def test_without_a_mount_it_says_so(base: Path) -> None:
    script = """
import kcachefs
from kcachefs.errors import MountError
try:
    kcachefs.init()
except MountError as error:
    print(error)
"""
    assert "kcachefs mount" in python(script)


def folders(folder: Path, how: dict[str, Any], **environment: str) -> list[str]:
    """Where `init(dir=...)` leads the library and two frameworks, and which mount it leaves in the environment."""
    script = f"""
import kcachefs, os, json
where = kcachefs.init(dir={str(folder)!r}, **{how!r})
cache = kcachefs.Cache(name="mine")
cache["key"] = b"value"
told = [os.environ[name] for name in ("TRITON_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")]
assert all(map(os.path.isdir, told))
print(json.dumps([str(where), str(cache.path), *told, os.environ["KCACHEFS_MOUNT"]]))
"""
    told: list[str] = json.loads(python(script, KCACHEFS_CACHE_DIR="", **environment))
    return told


@pytest.mark.parametrize("how", [{}, {"only": ["triton", "jax"]}], ids=["all", "some"])
def test_without_a_mount_plain_folders_are_used(base: Path, how: dict[str, Any]) -> None:
    plain = base / "plain"
    told = folders(plain, how, KCACHEFS_RUNTIME_DIR=str(base / "runtime"), KCACHEFS_MOUNT="")
    assert told == [*(str(plain / name) for name in ("", "library/mine", "triton", "jax")), ""]


def test_so_they_are_where_the_wanted_mount_is_missing(base: Path) -> None:
    (base / "wanted").mkdir()
    told = folders(base / "plain", {}, KCACHEFS_MOUNT=str(base / "wanted"))
    assert told[0] == str(base / "plain")
    assert list((base / "wanted").iterdir()) == []
    how = {"directory": str(base / "wanted")}
    assert folders(base / "plain", how, KCACHEFS_MOUNT="")[0] == str(base / "plain")


def test_so_they_are_where_no_mount_can_be_made(base: Path) -> None:
    (base / "in the way").write_text("")
    how = {"mount": True, "directory": str(base / "in the way")}
    assert folders(base / "plain", how, KCACHEFS_MOUNT="")[0] == str(base / "plain")


def test_a_mount_comes_before_plain_folders(mount: Mount, base: Path) -> None:
    told = folders(base / "plain", {}, KCACHEFS_MOUNT=str(mount.mountpoint))
    assert told == [str(mount.mountpoint / name) for name in ("", "library/mine", "triton", "jax", "")]
    assert not (base / "plain").exists()
