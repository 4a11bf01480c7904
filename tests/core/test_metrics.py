"""`.kcachefs/metrics`: valid for Prometheus, whole for the owner and a group, and otherwise a user's own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kcachefs
from kcachefs.core.metrics import OTHERS, OTHERS_MAX, About, as_metrics
from kcachefs.core.report import Activity, FleetNumbers, Numbers, Statistics, StoreNumbers
from kcachefs.core.request_times import BOUNDS, RequestTimes
from tests.core.policies.mounts import (
    ALICE,
    BOB,
    as_user,
    asked,
    each_engine,
    mounted,
    needs_root,
    replace_worker,
    settled,
    triton_put,
)
from tests.engines.callers import Identity
from tests.waiting import until

SCRAPER = Identity(uid=42099, gid=42098, groups=(42077,))
"""A monitoring agent: in the group by its supplementary groups."""


@pytest.fixture
def promtool() -> str:
    beside = Path(sys.executable).parent / "promtool"
    found = shutil.which("promtool") or (str(beside) if beside.exists() else None)
    if found is None:
        pytest.skip("needs promtool, which is in Debian's package prometheus")
    return found


def check(promtool: str, metrics: bytes) -> None:
    """Promtool accepts the metrics and has no advice about them."""
    done = subprocess.run([promtool, "check", "metrics"], input=metrics, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), metrics.decode()


def values(metrics: bytes) -> dict[str, str]:
    """Every sample by its name with labels."""
    rows = (line.rpartition(" ") for line in metrics.decode().splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in rows}


def test_promtool_has_nothing_to_say_about_odd_names_and_numbers(promtool: str) -> None:
    numbers = Numbers(1, 2, 3, 4, 0.75, 5, 6, 0.5, 1 << 62, 8, 9, 1e9)
    store = StoreNumbers(1, 2, 3, 1.5, 4, 5, 6, 7, 8, 9)
    odd = {"a\\b": numbers, 'say "hi"': numbers, "two\nlines": numbers, "日本": numbers, "/": numbers}
    about = About(version="1.0", engine="direct", policy="shared", started=0.0)
    check(promtool, as_metrics(Statistics(numbers, store, odd, {"lookup": 3}), about))
    check(promtool, as_metrics(Statistics(numbers, store, {}, {})))


@pytest.mark.mount
def test_promtool_has_nothing_to_say_about_a_real_mount(promtool: str) -> None:
    with mounted("direct") as mount:
        triton_put(mount.mountpoint / "triton" / "KEY", "add.cubin", b"kernel" * 99)
        settled(mount)
        check(promtool, (mount.mountpoint / ".kcachefs" / "metrics").read_bytes())


@needs_root
@each_engine
def test_a_group_reads_the_metrics_of_the_whole_mount(engine: str) -> None:
    with mounted(engine, "--policy", "private", "--metrics-gid", "42077") as mount:
        place = mount.mountpoint / ".kcachefs" / "metrics"
        for who in (ALICE, BOB):
            as_user(who, lambda: triton_put(mount.mountpoint / "triton" / "KEY", "add.cubin", b"kernel" * 99))
        settled(mount)
        entries = 'kcachefs_entries{namespace="triton"}'
        expected: list[tuple[Identity | None, str]] = [(None, "2"), (SCRAPER, "2"), (ALICE, "1"), (BOB, "1")]
        for reader, count in expected:
            assert values(as_user(reader, place.read_bytes))[entries] == count, reader
        assert entries not in values(as_user(Identity(42055, 42055), place.read_bytes))
        # The group sees numbers, not names: neither entries nor the users who made them.
        listed = as_user(SCRAPER, (mount.mountpoint / ".kcachefs" / "entries.json").read_bytes)
        assert listed == b"[]\n"


@pytest.mark.mount
def test_it_says_what_runs_for_how_long_and_how_often_it_was_replaced() -> None:
    with mounted("direct") as mount:
        place = mount.mountpoint / ".kcachefs" / "metrics"
        first = values(place.read_bytes())
        labels = f'version="{kcachefs.__version__}",engine="direct",policy="shared"'
        assert first[f"kcachefs_build_info{{{labels}}}"] == "1"
        assert first["kcachefs_restarts_total"] == "0"
        replace_worker(mount)
        until(lambda: values(place.read_bytes())["kcachefs_restarts_total"] == "1", "the restart is counted")
        again = values(place.read_bytes())
        assert float(again["kcachefs_uptime_seconds"]) > float(first["kcachefs_uptime_seconds"]) >= 0


def test_every_metric_has_help_and_a_type() -> None:
    store = StoreNumbers(1, 2, 3, 1.5, 4, 5, 6, 7, 8, 9)
    numbers = Numbers(1, 2, 3, 4, 0.75, 5, 6, 0.5, 7, 8, 9, 1e9)
    about = About(version="1.0", engine="direct", policy="shared", started=0.0)
    activity = Activity(
        latencies={"lookup": RequestTimes().as_latency()},
        evictions={"quota": 1},
        remade=2,
        seconds_compiled=3.5,
        seconds_saved=4.5,
        store_bytes={"objects": 5},
        frames_cached=6,
        frames_cached_bytes=7,
        waiting_for_sealing=8,
    )
    everything = Statistics(numbers, store, {"triton": numbers}, {"lookup": 3}, FleetNumbers(), activity=activity)
    text = as_metrics(everything, about).decode()
    named = [re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")]
    named = list(dict.fromkeys(re.sub("_(bucket|sum|count)$", "", name) for name in named))
    for word in ("HELP", "TYPE"):
        assert re.findall(rf"^# {word} (\S+) \S", text, re.MULTILINE) == named


def test_a_request_is_counted_in_the_bucket_of_its_duration() -> None:
    times = RequestTimes()
    for nanoseconds in (0, 1, 8191, 8192, 1 << 20, (1 << 32) - 1, 1 << 32, 3600 * 10**9):
        times.note(nanoseconds)
    latency = times.as_latency()
    counted = dict(zip((*BOUNDS, "more"), latency.counts, strict=True))
    assert {bound: count for bound, count in counted.items() if count} == {13: 3, 14: 1, 22: 1, 32: 1, "more": 2}
    assert latency.seconds == pytest.approx(3600 + (2**33 + 2**20 + 2 * 2**13 - 1) / 1e9)


def test_folders_that_anybody_makes_do_not_each_get_a_label() -> None:
    numbers = Numbers(1, 2, 30, 10, 3.0, 5, 5, 0.5, 7, 8, 9, 1e9)
    store = StoreNumbers(1, 2, 3, 1.5, 4, 5, 6, 7, 8, 9)
    many = {f"folder {number}": numbers for number in range(OTHERS_MAX + 100)}
    found = values(as_metrics(Statistics(numbers, store, {**many, "triton": numbers, "/": numbers}, {})))
    labels = [name for name in found if name.startswith("kcachefs_entries{")]
    assert len(labels) == OTHERS_MAX + 3
    others = f'{{namespace="{OTHERS}"}}'
    assert found[f"kcachefs_entries{others}"] == "100"
    assert found[f"kcachefs_hits_total{others}"] == "500"
    assert (found[f"kcachefs_hit_ratio{others}"], found[f"kcachefs_compression_ratio{others}"]) == ("0.5", "3.0")
    assert found['kcachefs_entries{namespace="triton"}'] == found['kcachefs_entries{namespace="folder 31"}'] == "1"


@each_engine
def test_the_durations_of_requests_add_up_to_the_requests(engine: str) -> None:
    with mounted(engine) as mount:
        folder = mount.mountpoint / "triton" / "KEY"
        triton_put(folder, "large.cubin", os.urandom(4 << 20))
        settled(mount)
        if engine == "direct":
            mount.remount()  # nothing is cached, and reading a large sealed file is left to another thread
        (folder / "large.cubin").read_bytes()
        place = mount.mountpoint / ".kcachefs" / "metrics"
        for name in ("lookup", "read"):
            label = f'{{request="{name}"}}'

            def is_complete(label: str = label) -> dict[str, str]:
                """A request that another thread carries out is counted after its reply, and the one at hand too."""
                found = values(place.read_bytes())
                timed = int(found[f"kcachefs_request_duration_seconds_count{label}"])
                return found if 0 < int(found[f"kcachefs_requests_total{label}"]) - 1 <= timed else {}

            found = until(is_complete, f"all but the {name} at hand are timed")
            count = int(found[f"kcachefs_request_duration_seconds_count{label}"])
            assert found[f'kcachefs_request_duration_seconds_bucket{{request="{name}",le="+Inf"}}'] == str(count)
            assert float(found[f"kcachefs_request_duration_seconds_sum{label}"]) > 0


@pytest.mark.mount
def test_what_went_is_counted_by_its_reason() -> None:
    with mounted("direct") as mount:
        place = mount.mountpoint / ".kcachefs" / "metrics"
        for name in ("ONE", "TWO"):
            triton_put(mount.mountpoint / "triton" / name, "add.cubin", b"kernel" * 99)
        settled(mount)
        asked(mount, "evict", patterns=["triton/ONE"])
        asked(mount, "prune", unused=True)
        until(lambda: values(place.read_bytes())['kcachefs_gone_entries_total{reason="pruned"}'] == "1", "it went")
        found = values(place.read_bytes())
        assert found['kcachefs_gone_entries_total{reason="evicted"}'] == "1"
        assert found['kcachefs_gone_entries_total{reason="quota"}'] == "0"
        kinds = [int(value) for name, value in found.items() if name.startswith("kcachefs_store_bytes{")]
        assert sum(kinds) == int(found["kcachefs_store_used_bytes"])
