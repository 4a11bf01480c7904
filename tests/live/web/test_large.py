"""A store with 20,000 entries and two years of history: the page stays small, and is drawn before all is known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.cli.scene import Scene, scene
from tests.live.past import namespaces_of, write_entries, write_history
from tests.live.web.conftest import Opener
from tests.live.web.serving import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Response

pytestmark = [pytest.mark.mount, pytest.mark.slow]

ENTRIES = 20_000
"""A hundred times what any list shows, and more than the page could hold at fifteen bytes each."""
PAGE_MAX = 300_000
"""Bytes of the page with everything it asks for to be drawn whole."""
UPDATE_MAX = 60_000
"""Bytes of one update at the most, where everything changed."""


@pytest.fixture(scope="module")
def large() -> Iterator[Server]:
    with scene() as place:
        fill(place)
        with serving(place, place.mountpoint) as server:
            yield server


def fill(place: Scene) -> None:
    place.mount()
    place.umount()
    namespaces = namespaces_of(place.store)
    write_history(place.store, {name: namespaces[name] for name in ("triton", "inductor", "cuda")}, os.getuid())
    write_entries(place.store, namespaces["triton"], ENTRIES, os.getuid())
    place.mount()


def test_the_page_is_small_and_painted_at_once(
    large: Server, opened: Opener, capsys: pytest.CaptureFixture[str]
) -> None:
    received: dict[str, int] = {}
    page = opened(large.link)

    def note(one: Response) -> None:
        received.setdefault(one.url, len(one.body()))

    page.on("response", note)
    page.reload()
    for place in (
        "#chart svg",
        "#treemap .cell",
        "#kernels .nothing, #kernels table",
        "#causes .cause, #causes .nothing",
    ):
        page.locator(place).first.wait_for()
    assert f"{ENTRIES:,}" in page.locator("[data-tile=entries]").inner_text()
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    size = sum(received.values())
    with capsys.disabled():
        print(f"\n{ENTRIES:,} entries: first paint after {paint:.0f} ms, {size:,} bytes in {len(received)} answers")
    assert size < PAGE_MAX, received
    # What is painted first asks nobody but the server for three small files: no entry is listed for it.
    assert paint < 30_000
    for name in ("14 d", "2 y"):
        page.get_by_role("button", name=name, exact=True).click()
        page.locator(f"[aria-label*='{ {'14 d': 'two weeks', '2 y': 'two years'}[name] }']").wait_for()
    assert page.locator("#legend", has_text="Failovers").count() == 1


def test_an_update_is_small_whatever_the_store_holds(large: Server) -> None:
    found = large.get("/api/glance")
    assert found.json["headline"]["total"]["entries"] == ENTRIES
    assert len(found.body) < UPDATE_MAX
    revision = found.json["revision"]
    again = large.get(f"/api/glance?revision={revision}")
    assert again.json["revision"] != revision or len(again.body) < 100
    for name in ("6h", "14d", "2y"):
        series = large.get(f"/api/series?range={name}")
        assert 300 < len(series.json["hits"]) < 400
        assert len(series.body) < 30_000
        assert sum(series.json["hits"]) > 0
    assert len(large.get("/api/filling").body) < 60_000
    kernels = large.api("kernels")
    assert kernels["total"] == ENTRIES
    assert len(kernels["rows"]) <= 200
