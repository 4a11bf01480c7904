"""What a job compiled while nothing was mounted: mounting offers a way to keep it, and that way works."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.scene import KCACHEFS, Scene, scene

pytestmark = pytest.mark.mount


def test_caches_under_a_bare_mountpoint_are_adopted_as_the_refusal_says() -> None:
    with scene() as place:
        for key in ("KEY0", "KEY1"):
            (place.mountpoint / "triton" / key).mkdir(parents=True)
            (place.mountpoint / "triton" / key / "kernel.cubin").write_text(key)
        (place.mountpoint / "inductor").mkdir()
        refused = place.run("mount", place.mountpoint)
        aside = f"{place.mountpoint}.before"
        refused.refused_with(4, "a job ran while nothing was mounted there", f"kcachefs adopt {aside}")
        commands = refused.err.partition("keep what it compiled with: ")[2].strip()
        done = run_as_told(place, commands)
        assert "2 entries adopted" in done
        assert sorted(one.name for one in (place.mountpoint / "triton").iterdir()) == ["KEY0", "KEY1"]
        assert Path(aside, "triton", "KEY0").is_dir(), "the source is left as it is"


def run_as_told(place: Scene, commands: str) -> str:
    """Run a line of shell in which `kcachefs` is the one that is tested."""
    function = f'kcachefs() {{ {" ".join(map(shlex.quote, KCACHEFS))} "$@"; }}; {commands}'
    done = subprocess.run(["sh", "-c", function], env=place.environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_something_else_in_the_way_is_no_cache() -> None:
    with scene() as place:
        place.mountpoint.mkdir()
        (place.mountpoint / "thesis.tex").write_text("precious")
        place.run("mount", place.mountpoint).refused_with(4, "is not empty", "choose an empty directory")
