"""The file that a run writes: its contents, and that it can be read again."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import pytest

from benchmarks import results
from benchmarks.results import Figure


def test_a_figure_has_its_median_its_spread_and_its_ratio() -> None:
    made = results.new("a machine", quick=False)
    made.add("files", "unpack", "files/s", {"ext4": [100.0, 200.0, 300.0], "direct": [50.0, 50.0, 50.0]}, better="more")
    ours = made.find("files", "unpack", "direct")
    assert ours is not None
    assert (ours.median, ours.low, ours.high, ours.better) == (50, 50, 50, "more")
    assert ours.against == "ext4"
    assert ours.ratio == pytest.approx(0.25)  # the median of the rounds' ratios 1/2, 1/4, 1/6
    theirs = made.find("files", "unpack", "ext4")
    assert theirs is not None
    assert theirs.ratio is None


def test_a_figure_can_stand_beside_one_of_another_row() -> None:
    made = results.new("a machine", quick=False)
    made.add("load", "during eviction", "µs", {"direct": [30.0]}, against="bindfs", reference=[10.0, 15.0])
    assert made.figures[0].ratio == pytest.approx(3.0)


def test_a_result_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    made = results.new(None, quick=True)
    made.add("disk", "one copy", "MB", {"ext4": [4.0], "direct": [0.5]})
    made.absent["rclone"] = "not installed"
    results.save(made, tmp_path / "found.json")
    assert results.load(tmp_path / "found.json") == made


def test_the_machine_is_described_and_not_named(tmp_path: Path) -> None:
    made = results.new(None, quick=True)
    assert {"cores", "memory", "kernel", "disk", "processor"} <= made.machine.keys()
    assert {"kcachefs", "python"} <= made.versions.keys()
    assert made.commit
    results.save(made, tmp_path / "found.json")
    assert socket.gethostname() not in (tmp_path / "found.json").read_text()


def test_a_result_of_another_schema_is_refused(tmp_path: Path) -> None:
    made = results.new("a machine", quick=True)
    made.schema = results.SCHEMA + 1
    results.save(made, tmp_path / "found.json")
    with pytest.raises(SystemExit, match="schema"):
        results.load(tmp_path / "found.json")


def test_every_committed_result_can_be_read() -> None:
    for path in (Path(results.__file__).parent / "results").glob("*-cores-*.json"):
        found = results.load(path)
        assert all(isinstance(one, Figure) and one.values for one in found.figures)
        assert msgspec.json.encode(found)
