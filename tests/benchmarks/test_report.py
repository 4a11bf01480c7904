"""Tables, charts and the marked blocks that show a result.

What needs matplotlib is imported by the tests themselves: every process of a run collects this file.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import report, results
from benchmarks.results import Results
from benchmarks.subjects import ROOT


@pytest.fixture
def found() -> Results:
    return figures()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every chart of the figures."""
    return report.draw(figures(), tmp_path_factory.mktemp("charts"))


def figures() -> Results:
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


def test_the_charts_are_whole_pictures_for_light_and_dark(drawn: list[Path]) -> None:
    from benchmarks.drawing import ON_DARK

    assert [path.name for path in drawn] == ["operations.svg", "scale.svg", "load.svg"]
    for path in drawn:
        picture = ET.parse(path).getroot()
        width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
        texts = [shape for shape in picture.iter() if shape.tag.endswith("}text")]
        assert texts[0].text
        for text in texts:
            x, y = place_of(text)
            assert 0 <= x <= width, (path.name, text.text)
            assert 0 <= y <= height, (path.name, text.text)
    # Text, lines and paper have another colour on a dark page.
    for light, dark in ON_DARK.items():
        sheets, drawings = zip(*(path.read_text().split("</style>", 1) for path in drawn), strict=True)
        assert all("@media (prefers-color-scheme: dark)" in sheet and dark in sheet for sheet in sheets)
        assert any(f"fill: {light}" in drawing or f"stroke: {light}" in drawing for drawing in drawings), light


def place_of(text: ET.Element) -> tuple[float, float]:
    if "x" in text.attrib:
        return float(text.attrib["x"]), float(text.attrib["y"])
    moved = re.fullmatch(r"translate\((\S+) (\S+)\)", text.attrib["transform"])
    assert moved is not None, text.attrib
    return float(moved[1]), float(moved[2])


def test_the_same_figures_give_the_same_bytes(drawn: list[Path], tmp_path: Path) -> None:
    again = report.draw(figures(), tmp_path)
    assert [path.read_bytes() for path in drawn] == [path.read_bytes() for path in again]


def test_every_label_of_a_chart_is_in_it(found: Results) -> None:
    from benchmarks import chart

    picture = chart.operations(found)
    for label in (*chart.ROWS.values(), "ext4", "bindfs", "kcachefs", "warm", "5 µs", "10 µs"):
        assert f">{label}</text>" in picture, label
    assert ">rclone mount</text>" not in picture


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


@pytest.mark.parametrize("page", ["docs/performance.md", "benchmarks/README.md"])
def test_both_pages_have_their_marks(page: str) -> None:
    assert (ROOT / page).read_text().count(report.BEGIN) == 1
    assert (ROOT / page).read_text().count(report.END) == 1


def test_an_axis_has_at_least_two_ticks() -> None:
    from benchmarks.drawing import log_ticks

    assert log_ticks(1, 1000) == [1, 10, 100, 1000]
    assert log_ticks(3, 30) == [5, 10, 20]
