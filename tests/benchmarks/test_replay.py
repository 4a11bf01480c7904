"""Recorded requests are turned back into calls, and calls are replayed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks import replay


def lookup(path: str, name: str, hit: bool = True) -> dict[str, Any]:
    return {"op": "lookup", "path": path, "name": name, "hit": hit, "pid": 7}


def getattr_(path: str) -> dict[str, Any]:
    return {"op": "getattr", "path": path}


def test_a_walk_that_nothing_follows_was_a_stat() -> None:
    requests = [lookup("", "triton"), getattr_("/triton"), lookup("/triton", "KEY"), lookup("", "triton")]
    assert replay.reduce(requests) == [["stat", "/triton/KEY"], ["stat", "/triton"]]


def test_a_walk_belongs_to_what_is_done_at_its_end() -> None:
    requests = [
        lookup("", "triton"),
        lookup("/triton", "tmp", hit=False),
        {"op": "mkdir", "path": "/triton/tmp", "pid": 7},
        lookup("", "triton"),
        lookup("/triton", "tmp"),
        lookup("/triton/tmp", "f", hit=False),
        {"op": "create", "path": "/triton/tmp/f", "flags": 33345, "pid": 7},
        {"op": "write", "path": "/triton/tmp/f", "off": 0, "size": 10},
        {"op": "release", "path": "/triton/tmp/f"},
        lookup("/triton/tmp", "f"),
        lookup("/triton", "f", hit=False),
        {"op": "rename", "path": "/triton/tmp/f", "to": "/triton/f", "flags": 0, "pid": 7},
    ]
    assert replay.reduce(requests) == [
        ["mkdir", "/triton/tmp"],
        ["create", "/triton/tmp/f"],
        ["write", "/triton/tmp/f", 10],
        ["close", "/triton/tmp/f"],
        ["rename", "/triton/tmp/f", "/triton/f"],
    ]


def test_what_was_opened_and_found_in_the_page_cache_is_read_whole() -> None:
    requests: list[dict[str, Any]] = [
        {"op": "open", "path": "/f", "flags": 32768, "pid": 7},
        {"op": "release", "path": "/f"},
        {"op": "open", "path": "/f", "flags": 32768, "pid": 7},
        {"op": "read", "path": "/f", "off": 0, "size": 5},
        {"op": "release", "path": "/f"},
    ]
    assert replay.reduce(requests) == [
        ["open", "/f"],
        ["read", "/f", replay.WHOLE],
        ["close", "/f"],
        ["open", "/f"],
        ["read", "/f", 5],
        ["close", "/f"],
    ]


def test_requests_far_apart_have_a_pause_between_them_that_is_not_counted(tmp_path: Path) -> None:
    requests = [
        {"op": "mkdir", "path": "/a", "pid": 7, "t": 1.0},
        {"op": "mkdir", "path": "/b", "pid": 7, "t": 1.0001},
        {"op": "mkdir", "path": "/c", "pid": 7, "t": 1.001},
    ]
    calls = replay.reduce(requests)
    assert calls == [["mkdir", "/a"], ["mkdir", "/b"], ["pause"], ["mkdir", "/c"]]
    begin = time.perf_counter()
    counted = replay.replay(calls * 20, str(tmp_path), bytes(1 << 21))
    assert counted <= time.perf_counter() - begin - 20 * replay.PAUSE_SECONDS


def test_a_cold_start_leaves_what_the_warm_one_reads(tmp_path: Path) -> None:
    starts, content = replay.recorded(), bytes(1 << 21)
    assert set(starts) == {replay.COLD, replay.WARM, replay.MODEL}
    replay.replay(starts[replay.COLD], str(tmp_path), content)
    left = {f"/{path.relative_to(tmp_path)}" for path in tmp_path.rglob("*") if path.is_file()}
    assert {call[1] for call in starts[replay.WARM] if call[0] == "open"} <= left
    written = {call[1] for call in starts[replay.COLD] if call[0] == "create"}
    assert len(left) == len(written) == 148
    replay.replay(starts[replay.WARM], str(tmp_path), content)
    replay.replay(starts[replay.MODEL], str(tmp_path), content)
