"""Tables, charts and the marked blocks that show a result."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import report, results
from benchmarks.drawing import Log
from benchmarks.results import Results
from benchmarks.subjects import ROOT


@pytest.fixture
def found() -> Results:
    made = results.new("a machine", quick=False)
    for state in report.STATES:
        for column in report.OPERATIONS:
            made.add("operations", f"{column}, {state}", "µs", {"ext4": [2.0, 3.0], "bindfs": [9.0], "direct": [4.0]})
    for what in ("lookup", "put", "mount"):
        made.add("scale", what, "µs", {"10,000": [10.0], "100,000": [11.0], "1,000,000": [12.0]}, against="10,000")
    for count in ("1 process", "8 processes"):
        for column in ("rate", "p50", "p99", "worst"):
            made.add("load", f"{count}: {column}", "µs", {"bindfs": [9.0], "direct": [7.0]}, against="bindfs")
            made.add("load", f"{count}, during eviction: {column}", "µs", {"direct": [8.0]}, against="bindfs")
    return made


def test_the_table_has_every_figure_with_its_ratio(found: Results) -> None:
    told = report.markdown(found)
    assert "| stat | 2.50 | 9.00 (4.50) | 4.00 (2.00) |" in told
    assert "8 processes, during eviction, kcachefs" in told
    assert "| lookup | 10.0 | 11.0 (1.10) | 12.0 (1.20) |" in told


def test_what_is_absent_is_named(found: Results) -> None:
    found.absent["rclone"] = "it is not installed"
    assert "Absent: rclone (it is not installed)." in report.markdown(found)


def test_the_charts_are_whole_pictures_for_light_and_dark(found: Results, tmp_path: Path) -> None:
    drawn = report.draw(found, tmp_path)
    assert [path.name for path in drawn] == ["operations.svg", "scale.svg", "load.svg"]
    for path in drawn:
        picture = ET.parse(path).getroot()
        assert "prefers-color-scheme: dark" in path.read_text()
        width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
        for shape in picture.iter():
            for name, limit in (("x", width), ("cx", width), ("y", height), ("cy", height)):
                assert 0 <= float(shape.attrib.get(name, 0)) <= limit, (path.name, shape.attrib)


def test_a_marked_block_is_replaced_and_the_rest_kept(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    for _ in range(2):
        report.replace_block(page, "new\n")
        assert page.read_text() == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("no marks\n")
    with pytest.raises(SystemExit, match="no <!-- benchmarks"):
        report.replace_block(page, "new")
    assert page.read_text() == "no marks\n"


@pytest.mark.parametrize("page", ["README.md", "benchmarks/README.md"])
def test_both_readmes_have_their_marks(page: str) -> None:
    assert (ROOT / page).read_text().count(report.BEGIN) == 1
    assert (ROOT / page).read_text().count(report.END) == 1


def test_an_axis_has_at_least_two_ticks() -> None:
    assert Log(1, 1000, 0, 1).ticks() == [1, 10, 100, 1000]
    assert Log(3, 30, 0, 1).ticks() == [5, 10, 20]
