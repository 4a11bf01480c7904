"""Scopes: nodes with other GPUs get another part of the bucket. The drivers are imitated: no test host has them all."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kcachefs.errors import UsageError
from kcachefs.fleet import scopes

NVML = """
    struct device { int major, minor; };
    static struct device devices[] = {%s};
    int nvmlInit_v2(void) { return %d; }
    int nvmlShutdown(void) { return 0; }
    int nvmlDeviceGetCount_v2(unsigned *count) { *count = sizeof devices / sizeof *devices; return 0; }
    int nvmlDeviceGetHandleByIndex_v2(unsigned number, struct device **device) { *device = devices + number; return 0; }
    int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
        *major = device->major; *minor = device->minor; return 0;
    }
"""


def scope_beside(folder: Path) -> str:
    """The default scope of a process that finds libraries in this folder first."""
    command = [sys.executable, "-c", "from kcachefs.fleet import scopes; print(scopes.default_scope())"]
    root = str(Path(__file__).parents[2])
    environment = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": root, "PATH": "/usr/bin"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("devices", "result", "expected"),
    [("{9, 0}, {9, 0}", 0, "cuda90"), ("{10, 0}, {8, 9}", 0, "cuda100-cuda89"), ("{9, 0}", 1, "cpu")],
    ids=["two of a kind", "two kinds", "a driver that fails"],
)
def test_nvidias_gpus_are_part_of_the_scope(tmp_path: Path, devices: str, result: int, expected: str) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    (tmp_path / "nvml.c").write_text(NVML % (devices, result))
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True)
    assert scope_beside(tmp_path) == f"{platform.machine()}-{expected}"


def test_amds_gpus_are_part_of_the_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scopes, "_KFD", tmp_path)
    monkeypatch.setattr(scopes, "_cuda", set)
    assert scopes.default_scope() == f"{platform.machine()}-cpu"
    for number, version in enumerate((0, 90402, 90010, 110000)):  # the first is the processor
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\n")
    assert scopes.default_scope() == f"{platform.machine()}-gfx1100-gfx90a-gfx942"


def test_a_scope_is_one_name() -> None:
    assert scopes.checked("x86_64-cuda90+team.1") == "x86_64-cuda90+team.1"
    assert scopes.checked(scopes.default_scope())
    for scope in ("", ".", "..", "a/b", "-a", "a b", "ä", "a\n", "x" * 65):
        with pytest.raises(UsageError, match="is not a scope"):
            scopes.checked(scope)
