"""Which mount or store an administrator's command goes to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.scene import Scene

pytestmark = pytest.mark.mount


def mount_with_an_entry(scene: Scene, name: str) -> Path:
    """A mount and a store of that name, with one entry of the same name."""
    mountpoint = scene.folder / name
    scene.must("mount", mountpoint, "--store", f"{name}-store")
    (mountpoint / "triton" / name).mkdir()
    (mountpoint / "triton" / name / "kernel.cubin").write_bytes(b"cubin")
    scene.must("stats", "--mount", name, "--json")  # it is listed once it is sealed
    return mountpoint


def entries(scene: Scene, *options: str) -> list[str]:
    return [one["path"] for one in json.loads(scene.must("ls", "--json", *options))]


def test_the_mount_that_the_environment_names_is_meant_unless_another_or_a_store_is_named(scene: Scene) -> None:
    mount_with_an_entry(scene, "a")
    scene.environment["KCACHEFS_MOUNT"] = str(mount_with_an_entry(scene, "b"))
    assert entries(scene) == ["triton/b"]
    assert entries(scene, "--mount", "a") == ["triton/a"]
    assert entries(scene, "--store", "a-store") == ["triton/a"]


def test_nothing_is_done_elsewhere_when_the_mount_that_the_environment_names_does_not_run(scene: Scene) -> None:
    mount_with_an_entry(scene, "a")
    scene.environment["KCACHEFS_MOUNT"] = str(scene.folder / "b")
    for verb in (["stats"], ["ls"], ["pin", "*"], ["evict", "*"], ["prune", "--unused"], ["gc"], ["reload"]):
        scene.run(*verb).refused_with(
            4,
            f"{scene.folder}/b (named by KCACHEFS_MOUNT)",
            f"kcachefs mount {scene.folder}/b,",
            "unset KCACHEFS_MOUNT",
        )
    assert entries(scene, "--mount", "a") == ["triton/a"]


def test_a_variable_that_outlives_its_mount_shows_the_options_of_the_next_one(scene: Scene) -> None:
    scene.mount()
    scene.environment["KCACHEFS_MOUNT"] = str(scene.mountpoint)
    scene.must("set", scene.mountpoint, "--max-size", "3GiB")
    scene.umount()
    told = json.loads(scene.must("config", "--json"))
    assert (told["store"], told["options"]["max_size"]["value"]) == (str(scene.store), 3 << 30)


def test_a_mount_that_the_variable_does_not_name_is_named_in_what_to_do_next(scene: Scene) -> None:
    scene.environment["KCACHEFS_MOUNT"] = str(scene.folder / "named")
    other = scene.folder / "other"
    said = scene.must("mount", other, "--store", scene.folder / "b")
    assert f'eval "$(kcachefs env --mount {other})"' in said
    assert f"KCACHEFS_MOUNT={other}" in scene.must("env", "--mount", other)
    assert 'eval "$(kcachefs env)"' in scene.must("mount")


def test_a_command_opens_a_store_at_rest_once_however_much_it_asks(scene: Scene) -> None:
    mountpoint = mount_with_an_entry(scene, "a")
    scene.must("umount", mountpoint)
    scene.in_every_python(
        "import os\n"
        "os.register_at_fork(after_in_parent=lambda: open(os.path.join(os.path.dirname(__file__), 'forks'), 'a')"
        ".write('1'))\n"
    )
    scene.must("report", "--store", "a-store", "-o", "a.html", env=scene.environment)
    assert (scene.folder / "forks").read_text() == "1"
    scene.must("mount", mountpoint, "--store", "a-store")  # it is closed when the command has ended


def test_what_a_store_at_rest_refuses_does_not_end_its_process(scene: Scene) -> None:
    mountpoint = mount_with_an_entry(scene, "a")
    scene.must("umount", mountpoint)
    scene.run("pin", "--store", "a-store", "nothing").refused_with(2, "nothing: no entry is called that")
    scene.run("ls", "--store", "a-store", "--sort", "x").refused_with(2, "--sort x: unknown")
    assert entries(scene, "--store", "a-store") == ["triton/a"]
