"""The records behind every live view: the same sums as the commands', cheap to keep fresh, and each user's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kcachefs.core.report import Statistics
from kcachefs.daemon import control, registry
from kcachefs.live.looking import Look
from kcachefs.live.watching import Watch
from kcachefs.mounts.insight_reports import InsightReports
from tests.cli.scene import Scene
from tests.engines.callers import OTHER, in_child
from tests.live.web.conftest import stats

pytestmark = [pytest.mark.mount, pytest.mark.slow]


class Asked:
    """A mount that counts what it is asked."""

    def __init__(self, place: Scene) -> None:
        self.verbs: list[str] = []
        self._socket = place.runtime / f"{registry.name_of(str(place.mountpoint))}.sock"

    def ask(self, verb: str, arguments: dict[str, Any]) -> bytes:
        self.verbs.append(verb)
        return control.ask(self._socket, verb, arguments)

    def statistics(self) -> Statistics:
        import msgspec

        return msgspec.json.decode(self.ask("stats", {}), type=Statistics)


def watch_of(place: Scene) -> tuple[Watch, Asked]:
    asked = Asked(place)
    return Watch(str(place.mountpoint), InsightReports(asked.ask), asked.statistics), asked


def test_an_idle_mount_is_asked_for_its_statistics_and_nothing_else(place: Scene) -> None:
    stats(place)
    watch, asked = watch_of(place)
    first = watch.glance()
    assert sorted(asked.verbs) == ["events", "history", "runs", "stats"]
    asked.verbs.clear()
    for _ in range(5):
        again = watch.glance()
    assert asked.verbs == ["stats"] * 5
    assert again.revision - first.revision <= 1


def test_sums_are_those_of_stats_since(place: Scene) -> None:
    past = json.loads(place.must("stats", "--json", "--since", "7d"))["total"]
    watch, _ = watch_of(place)
    week = watch.glance().headline.week
    for name in ("hits", "misses", "bytes_served", "evictions", "remade"):
        assert getattr(week, name) == past[name], name
    assert week.seconds_saved == pytest.approx(past["seconds_saved"])
    for name in ("6h", "14d", "2y"):
        series = watch.series(name)
        assert (sum(series.hits), sum(series.misses)) == (past["hits"], past["misses"])
        assert series.start + series.step * len(series.hits) >= watch.glance().now
    assert sum(user.hits for user in week.users) == past["hits"]


def test_looking_counts_no_hit(place: Scene, kernels: Path) -> None:
    before = {one["path"]: (one["hits"], one["used"]) for one in json.loads(place.must("ls", "--json"))}
    watch, _ = watch_of(place)
    watch.glance()
    with Look(watch) as look:
        look.filling()
        look.causes()
        for row in look.kernels().rows:
            look.entry(row.path)
    after = {one["path"]: (one["hits"], one["used"]) for one in json.loads(place.must("ls", "--json"))}
    assert after == before
    assert any(path.endswith(one.name) for path in before for one in (kernels / "base").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_sees_their_own_things_only(other_place: Scene) -> None:
    place = other_place
    home = place.folder / "other"
    home.mkdir()
    os.chown(home, OTHER.uid, OTHER.gid)

    def look() -> tuple[Any, ...]:
        for name in ("KCACHEFS_RUNTIME_DIR", "XDG_CACHE_HOME", "KCACHEFS_LOG_DIR", "KCACHEFS_STORE"):
            os.environ[name] = str(home / name.lower())
        watch = Watch.of(place.mountpoint)
        before = watch.glance()
        folder = place.mountpoint / "triton" / "OTHERS"
        folder.mkdir()
        (folder / "kernel.json").write_text("{}")
        with Look(watch) as at:
            found = at.filling()
        head = before.headline
        assert head.total is not None
        seen = [part.name for part in found.namespaces], [row.path for row in found.biggest]
        return head.state, head.whole, head.total.entries, [one.uid for one in before.runs], *seen

    try:
        assert in_child(look, OTHER) == ("served", False, 0, [], ["triton"], ["triton/OTHERS"])
    finally:
        place.must("evict", "triton/OTHERS")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_entry_of_another_user_does_not_bring_a_file_of_mine_onto_the_page(
    other_place: Scene, kernels: Path, tmp_path: Path
) -> None:
    """A kernel names the file that it was compiled from, and anybody can write a kernel that names any file."""
    place = other_place
    secret = tmp_path / "secret.py"
    made = next((kernels / "bins").iterdir())
    files = {file.name: file.read_bytes() for file in made.iterdir()}
    files["tally.source"] = files["tally.source"].replace(f"{kernels}/src/tiles.py".encode(), str(secret).encode())
    lines = ["PASSWORD = 'hunter2'"] * 60
    lines[50:54] = ["def tally(x):", "    PASSWORD = 'hunter2'", "    return PASSWORD", "    # end"]
    secret.write_text("\n".join(lines))
    secret.chmod(0o600)

    def write() -> None:
        folder = place.mountpoint / "triton" / "NAMES"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)

    def shown() -> str:
        watch, _ = watch_of(place)
        watch.glance()
        with Look(watch) as look:
            source = look.entry("triton/NAMES").source
        return "\n".join(source.lines) if source is not None else ""

    in_child(write, OTHER)
    place.settle()
    try:
        assert "tt.func" in shown(), "its IR instead"
        assert "hunter2" not in shown()
        os.chown(secret, OTHER.uid, OTHER.gid)
        assert "hunter2" in shown()
    finally:
        place.must("evict", "triton/NAMES")
