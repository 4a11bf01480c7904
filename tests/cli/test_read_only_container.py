"""A container that can write nowhere but to the mount that is bound into it, by a user whom nobody knows there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cli.scene import KCACHEFS, Outcome, Scene
from tests.waiting import PATIENCE

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make namespaces here"),
]

NOBODY = 12345
PLACE = "/mnt"
CONTAINER = """
mount --bind "$1" /mnt && shift
for folder in /tmp /var/tmp /run; do mount --rbind $folder $folder && mount -o remount,ro,bind $folder || exit 99; done
mount -o remount,ro,bind / || exit 99
user=$1 && shift
exec setpriv --reuid "$user" --regid "$user" --clear-groups --bounding-set -all --inh-caps -all \\
    env -i PATH=/usr/bin:/bin PYTHONPATH="$PYTHONPATH" KCACHEFS_MOUNT=/mnt "$@"
"""


def contained(scene: Scene, user: int, *command: str) -> Outcome:
    outer = ["unshare", "--mount", "--propagation", "private", "sh", "-c", CONTAINER, "sh", str(scene.mountpoint)]
    done = subprocess.run(
        [*outer, str(user), *command],
        env=scene.environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("user", [0, NOBODY])
def test_everything_that_needs_only_the_mount_works(scene: Scene, user: int) -> None:
    scene.mount()
    for words in ("status", "stats --json", "ls", "explain --since 1h", "env", "run -q -- true"):
        done = contained(scene, user, *KCACHEFS, *words.split())
        assert (done.code, done.err) == (0, ""), (words, done)
    program = "import kcachefs; print(kcachefs.init())"
    assert contained(scene, user, sys.executable, "-c", program).out == f"{PLACE}\n"


def test_the_doctor_finds_a_missing_home(scene: Scene) -> None:
    scene.mount()
    done = contained(scene, NOBODY, *KCACHEFS, "doctor", "--json")
    assert done.code in (0, 1), done
    found = [one for one in json.loads(done.out)["findings"] if one["subject"] == "store"]
    assert [(one["level"], "no home directory" in one["message"]) for one in found] == [("note", True)]
