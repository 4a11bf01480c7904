"""A recorded warm start: made from a trace, its files written, its calls replayed with their pauses."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks import warm_start

TRACE = [
    {"t": 1.0, "pi": 0, "op": "mkdir", "p": "ind", "e": "EEXIST"},
    {"t": 1.000118, "pi": 0, "op": "open", "p": "tri/KEY", "f": "RDONLY|DIRECTORY"},
    {"t": 1.00013, "pi": 0, "op": "fstat", "p": "tri/KEY"},
    {"t": 1.00014, "pi": 0, "op": "getdents", "p": "tri/KEY", "n": 1},
    {"t": 1.00015, "pi": 0, "op": "close", "p": "tri/KEY"},
    {"t": 1.00016, "pi": 1, "op": "stat", "p": "tri/of-another-process"},
    {"t": 1.1, "pi": 0, "op": "open", "p": "tri/KEY/none", "e": "ENOENT"},
    {"t": 1.100018, "pi": 0, "op": "open", "p": "tri/KEY/file"},
    {"t": 1.100036, "pi": 0, "op": "ioctl", "p": "tri/KEY/file", "e": "ENOTTY"},
    {"t": 1.100054, "pi": 0, "op": "lseek", "p": "tri/KEY/file"},
    {"t": 1.100072, "pi": 0, "op": "read", "p": "tri/KEY/file", "n": 4096},
    {"t": 1.100090, "pi": 0, "op": "read", "p": "tri/KEY/file", "n": 905, "r": 904},
    {"t": 1.100108, "pi": 0, "op": "read", "p": "tri/KEY/file", "n": 1, "r": 0},
    {"t": 1.100126, "pi": 0, "op": "close", "p": "tri/KEY/file"},
    {"t": 1.100144, "pi": 0, "op": "read", "p": "tri/opened-before", "n": 10},
]
CALLS = [
    (0, "mkdir", "inductor", 0),
    (100, "list", "triton/KEY", 0),
    (20_000, "stat", "triton/KEY/none", 0),
    (0, "open", "triton/KEY/file", 0),
    (0, "terminal", "triton/KEY/file", 0),
    (0, "seek", "triton/KEY/file", 0),
    (0, "read", "triton/KEY/file", 4096),
    (0, "read", "triton/KEY/file", 904),
    (0, "end", "triton/KEY/file", 0),
    (0, "close", "triton/KEY/file", 0),
]


def test_a_trace_becomes_the_calls_of_its_first_process() -> None:
    assert warm_start.reduce(TRACE) == CALLS


def test_what_is_laid_is_what_the_calls_find(tmp_path: Path) -> None:
    warm_start.write_files(CALLS, tmp_path, bytes(range(256)) * 256)
    found = {str(path.relative_to(tmp_path)): path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"triton/KEY/file": 5000}
    assert (tmp_path / "inductor").is_dir()
    begin = time.perf_counter()
    counted = warm_start.replay(CALLS, tmp_path)
    assert 0 < counted <= time.perf_counter() - begin - 0.0201


def test_the_recorded_one_is_whole(tmp_path: Path) -> None:
    calls = warm_start.recorded()
    assert {what for _, what, _, _ in calls} == {what for _, what, _, _ in CALLS} | {"fstat"}
    assert max(pause for pause, *_ in calls) == warm_start.PAUSE_MAX_US
    warm_start.write_files(calls, tmp_path, bytes(16 << 20))
    opened = {path for _, what, path, _ in calls if what == "open"}
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == opened
    assert len(opened) > 800
