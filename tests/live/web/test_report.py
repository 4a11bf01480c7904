"""The page as one file: it holds what it shows, asks nobody, and names in it stay text."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.cli.scene import Scene
from tests.live.web.conftest import HOSTILE, Opener, stats
from tests.live.web.test_page import ready_report, words

pytestmark = [pytest.mark.mount, pytest.mark.slow]


def test_a_report_is_the_page_in_one_file(place: Scene, opened: Opener) -> None:
    path = place.folder / "report.html"
    said = place.must("report", "--since", "7d", "-o", path, "--mount", place.mountpoint)
    assert said.startswith(f"{path}: ")
    text = path.read_text()
    assert "unsafe" not in text.partition("<style>")[0]
    assert "</script>" not in re.findall(r'id="data">(.*?)</script>', text, re.S)[0]
    page = ready_report(opened(path.as_uri()))
    total = stats(place)["total"]
    assert f"{total['hits']} hits, {total['misses']} misses" in words(page.locator("[data-tile=rate]"))
    assert "Compiling not repeated in the last 7 d" in words(page.locator("[data-tile=saved]"))
    assert page.locator("#runs tbody tr").count() == len(json.loads(place.must("runs", "--json")))
    page.get_by_role("button", name="2 y", exact=True).click()
    page.locator("#chart svg").wait_for()
    page.locator("#treemap .cell", has_text="tally").click()
    page.locator("#crumbs", has_text="tally").wait_for()
    page.locator("#kernels").get_by_role("button", name=HOSTILE).first.click()
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.locator(".code").count() == 2
    assert page.title().startswith("kcachefs report ")


def test_a_store_at_rest_has_a_report_too(place: Scene, tmp_path: Path, opened: Opener) -> None:
    with_store = Scene(tmp_path)
    with_store.must("mount", with_store.mountpoint)
    (with_store.mountpoint / "triton" / "KEY").mkdir()
    (with_store.mountpoint / "triton" / "KEY" / "kernel.json").write_text("{}")
    with_store.settle()
    with_store.umount()
    path = tmp_path / "report.html"
    told = json.loads(with_store.must("report", "-o", path, "--json"))
    assert told == {"path": str(path), "bytes": path.stat().st_size}
    page = opened(path.as_uri())
    page.locator("#treemap .cell").first.wait_for()
    assert words(page.locator("#state")) == "at rest"
    assert "Entries 1 in 1 namespace" in words(page.locator("[data-tile=entries]"))


def test_a_run_has_a_report_of_its_own(other_place: Scene, kernels: Path, opened: Opener) -> None:
    place = other_place
    path = place.folder / "run.html"
    extra = place.folder / "extra"
    extra.mkdir()
    new = sorted((kernels / "odd_n").iterdir())[0]
    script = f"import shutil; shutil.copytree({str(new)!r}, {str(place.mountpoint / 'triton' / 'RAGAIN')!r})"
    done = place.run("run", "--report", path, "--mount", place.mountpoint, "--", sys.executable, "-c", script)
    assert done.code == 0, done
    assert f"kcachefs: {path}: " in done.err
    page = ready_report(opened(path.as_uri()))
    assert "Run: " in words(page.locator(".bar"))
    assert page.locator("#causes .cause").count() == 1
    assert "during the run" in words(page.locator("[data-tile=saved]"))
    assert page.locator("#runs tbody tr").count() >= 1
    place.must("evict", "triton/RAGAIN")


def test_a_report_that_cannot_be_written_leaves_the_command_alone(place: Scene) -> None:
    wanted = place.folder / "no" / "where" / "run.html"
    done = place.run("run", "--report", wanted, "--mount", place.mountpoint, "--", "true")
    assert done.code == 0
    assert "no report was written" in done.err
    place.run("report", "-o", wanted, "--mount", place.mountpoint).refused_with(3, "No such file")


@pytest.mark.parametrize("output", ["-", "/dev/stdout"])
def test_a_report_can_be_printed(place: Scene, output: str) -> None:
    text = place.must("report", "-o", output, "--mount", place.mountpoint)
    assert text.startswith("<!doctype html>")
    assert text.rstrip().endswith("</html>")
    place.run("report", "-o", output, "--json").refused_with(2, "--json: would be mixed with the page")
