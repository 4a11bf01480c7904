"""`kcachefs env`: shells and programs read back exactly what it prints, whatever the path contains."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs.frameworks import bytecode, environment
from kcachefs.frameworks.environment import select
from kcachefs.frameworks.formats import FORMATS, render
from tests.engines.mounting import Mount
from tests.frameworks.commands import PATIENCE, kcachefs

pytestmark = pytest.mark.mount

HOSTILE = """it's "a" $HOME `id` $(id) \\ ünï ​ * ?;&|<>(){}[]!#~=%-- -x"""
LONG = "/".join(["d" * 200] * 8)


@pytest.fixture(
    scope="module", params=["plain", HOSTILE, LONG, HOSTILE + "\nline"], ids=["plain", "hostile", "long", "newline"]
)
def hostile(request: pytest.FixtureRequest, surroundings: Path) -> Iterator[Mount]:
    folder = surroundings / f"m{len(request.param)}"
    with Mount(folder / request.param, folder / "store", "direct") as mount:
        yield mount
    shutil.rmtree(folder)


def in_shell(program: list[str], script: str, *arguments: str) -> dict[str, str]:
    """The environment of a program that the shell starts after the script."""
    clean = {name: value for name, value in os.environ.items() if not name.endswith(("_DIR", "_PATH"))}
    clean |= {name: os.environ[name] for name in os.environ if name.startswith("KCACHEFS_") or name == "PYTHONPATH"}
    done = subprocess.run([*program, script, *arguments], capture_output=True, timeout=PATIENCE, check=True, env=clean)
    assert done.stderr == b""
    pairs = (line.partition(b"=") for line in done.stdout.split(b"\0") if line)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_that_evaluates_it_has_every_variable(hostile: Mount, shell: str) -> None:
    script = 'eval "$("$1" -m kcachefs env --mount "$2")" && env -0'
    seen = in_shell([shell, "-c"], script, shell, sys.executable, str(hostile.mountpoint))
    wanted = environment(hostile.mountpoint)
    assert {name: seen.get(name) for name in wanted} == wanted
    unasked = bytecode.NAMESPACE  # only where it helps, as its own tests show
    assert all(Path(wanted[name]).is_dir() for one in select() if one.namespace != unasked for name in one.variables)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_that_sources_it_has_every_variable(hostile: Mount) -> None:
    script = "$argv[1] -m kcachefs env --format fish --mount $argv[2] | source; env -0"
    seen = in_shell(["fish", "--no-config", "-c"], script, sys.executable, str(hostile.mountpoint))
    wanted = environment(hostile.mountpoint)
    assert {name: seen.get(name) for name in wanted} == wanted


def test_json_and_the_pod_hold_the_same_strings(hostile: Mount) -> None:
    wanted = environment(hostile.mountpoint)
    assert json.loads(kcachefs("env", "--mount", hostile.mountpoint, "--format", "json").stdout) == wanted
    wanted = environment(hostile.mountpoint, of_this_python=False)
    pod = kcachefs("env", "--mount", hostile.mountpoint, "--format", "k8s").stdout.splitlines()
    names = [line.removeprefix("  - name: ") for line in pod if line.startswith("  - name: ")]
    values = [json.loads(line.removeprefix("    value: ")) for line in pod if line.startswith("    value: ")]
    assert dict(zip(names, values, strict=False)) == {k: v.replace("$(", "$$(") for k, v in wanted.items()}


def test_a_pods_volume_is_the_mount_and_nothing_beside_it(hostile: Mount) -> None:
    pod = kcachefs("env", "--mount", hostile.mountpoint, "--format", "k8s").stdout.splitlines()
    assert volume_of(pod) == (str(hostile.mountpoint), "Directory")
    assert any("/srv/kcachefs/cache" in line for line in pod if line.startswith("# "))


def test_a_pods_volume_is_the_folder_above_the_mount_where_that_was_made_for_it(base: Path) -> None:
    """One that is the mount itself would not show the next daemon's."""
    mount = base / "kcachefs" / "cache"
    mount.mkdir(parents=True)

    def shown() -> tuple[str, str]:
        return volume_of(render({}, "k8s", mount).decode().splitlines())

    assert shown() == (str(mount.parent), "DirectoryOrCreate")
    assert b"goes stale" not in render({}, "k8s", mount)
    (mount.parent / "private").touch()
    assert shown() == (str(mount), "Directory")


@pytest.mark.parametrize("mount", ["/mnt/kcache", "/run/kcachefs", "/kcachefs"])
def test_a_pod_never_gets_a_folder_of_the_host(mount: str) -> None:
    assert volume_of(render({}, "k8s", Path(mount)).decode().splitlines()) == (mount, "Directory")


def volume_of(pod: list[str]) -> tuple[str, str]:
    """What a pod's volume shows, at the same path, and of which type that has to be."""
    at = pod.index("    hostPath:")
    [path] = {json.loads(line.partition(": ")[2]) for line in pod if re.match(" *(path|mountPath): ", line)}
    assert "    mountPropagation: HostToContainer" in pod
    return path, pod[at + 2].removeprefix("      type: ")


@pytest.mark.parametrize("format", ["docker", "k8s"])
def test_nothing_for_a_container_depends_on_what_is_installed_here(base: Path, format: str) -> None:
    """Images with other versions would overwrite each other's extensions in a folder that names ours."""
    out = render(environment(base, of_this_python=False), format, base).decode()
    assert "TRITON_CACHE_DIR" in out
    assert "TORCH_EXTENSIONS_DIR" not in out
    assert "TORCH_EXTENSIONS_DIR" in environment(base)


def test_the_pods_hook_puts_torchs_header_where_that_containers_torch_looks(hostile: Mount, base: Path) -> None:
    pod = kcachefs("env", "--mount", hostile.mountpoint, "--format", "k8s").stdout.splitlines()
    hook = json.loads(next(line for line in pod if "command:" in line).partition(": ")[2])
    container = {"PATH": os.environ["PATH"], "TMPDIR": str(base), "USER": "some one"}
    place = base / "torchinductor_some one" / "precompiled_headers"
    place.parent.mkdir()
    place.symlink_to(base / "gone")  # left by an earlier start, to a mount that is gone
    for _ in range(2):
        subprocess.run(hook, env=container, check=True, timeout=PATIENCE)
        assert place.resolve() == hostile.mountpoint / "precompiled_headers"
    place.unlink()
    (place / "locks").mkdir(parents=True)
    subprocess.run(hook, env=container, check=True, timeout=PATIENCE)
    assert os.listdir(place) == ["locks"], "a folder of its own is left alone"


def test_a_file_of_variables_holds_them_or_says_that_it_cannot(hostile: Mount) -> None:
    wanted = environment(hostile.mountpoint)
    of_others = environment(hostile.mountpoint, of_this_python=False)
    done = kcachefs("env", "--mount", hostile.mountpoint, "--format", "docker", check=False)
    if "\n" in str(hostile.mountpoint):
        assert done.returncode == 2
        assert "cannot express" in done.stderr
    else:
        lines = done.stdout.splitlines()
        assert lines[0].startswith("# Nothing guards these variables")
        assert dict(line.split("=", 1) for line in lines if not line.startswith("#")) == of_others
    done = kcachefs("env", "--mount", hostile.mountpoint, "--format", "dotenv", check=False)
    if "'" in str(hostile.mountpoint):
        assert done.returncode == 2
        assert "use sh or json" in done.stderr
    else:
        seen = in_shell(["sh", "-c"], 'set -a; eval "$1"; env -0', "sh", done.stdout)
        assert {name: seen.get(name) for name in wanted} == wanted


def test_a_path_that_is_no_text_survives_a_shell(base: Path) -> None:
    (base / ".kcachefs").mkdir()
    value = os.fsdecode(b"/m/\xff\xfe x")
    out = render({"A": value}, "sh", base)
    done = subprocess.run(["sh", "-c", os.fsdecode(out) + 'printf %s "$A"'], capture_output=True, check=True)
    assert done.stdout == b"/m/\xff\xfe x"


def test_every_format_is_told_in_the_error() -> None:
    done = kcachefs("env", "--format", "toml", "--mount", "/", check=False)
    assert done.returncode != 0
    assert set(FORMATS) == {"sh", "fish", "dotenv", "docker", "json", "k8s"}
