"""Reports and the page where the locale is plain ASCII: what the package holds is UTF-8 all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.scene import Scene, scene
from tests.waiting import PATIENCE

PLAIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.mount
def test_a_report_is_written() -> None:
    with scene() as place:
        place.mount()
        written = report(place)
        assert "·" in written, "the page has more than ASCII in it"
        place.environment |= PLAIN
        assert "·" in report(place)


def report(place: Scene) -> str:
    outcome = place.run("report", "-o", "page.html", env=place.environment)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    return (place.folder / "page.html").read_text(encoding="utf-8")


def test_the_page_is_served() -> None:
    code = "from kcachefs.live.web import assets\nassets.page(), assets.style()\nprint(len(assets.script().encode()))"
    environment = {**PLAIN, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=PATIENCE)
    assert int(done.stdout) > 1000, done.stderr
