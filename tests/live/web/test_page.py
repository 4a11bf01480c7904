"""The page in a real browser: data of real misses, equal to what the commands say, and no code runs but its own."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kcachefs.live import web
from tests.cli.scene import Scene, kill_and_wait, scene
from tests.live.web.conftest import HOSTILE, Opener, stats
from tests.live.web.serving import Server, serving
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Dialog, Locator, Page

pytestmark = [pytest.mark.mount, pytest.mark.slow]
PAGE = Path(web.__file__).parent / "page"


def words(place: Locator) -> str:
    """What a person reads there, in one line."""
    return " ".join(place.inner_text().split())


def ready(page: Page) -> Page:
    """All panels are drawn."""
    for place in ("#chart svg", "#treemap .cell", "#causes .cause", "#runs table", "#kernels table", "#mounts table"):
        page.locator(place).first.wait_for()
    return page


def ready_report(page: Page) -> Page:
    """The same for a report, which knows of no other mounts."""
    for place in ("#chart svg", "#treemap .cell", "#causes .cause", "#runs table", "#kernels table"):
        page.locator(place).first.wait_for()
    return page


def cells(page: Page, place: str) -> list[list[str]]:
    """What a table shows, taken at one moment: it may be drawn anew at any time."""
    script = """place => [...document.querySelectorAll(`${place} tbody tr`)].map(
        row => [...row.cells].map(cell => cell.innerText.split(/\\s+/).join(' ').trim()))"""
    found: list[list[str]] = page.evaluate(script, place)
    return found


def size(count: float) -> str:
    from kcachefs.config import format_size

    return format_size(count)


def seconds(count: float) -> str:
    """As the page shows them, up to some hours."""
    if count < 10:
        return f"{count:.1f} s"
    return f"{count:.0f} s" if count < 120 else f"{count / 60:.0f} min"


def test_every_number_is_that_of_the_commands(server: Server, place: Scene, opened: Opener) -> None:
    page = ready(opened(server.link))
    assert page.url.endswith("/"), "the token does not stay in the address"
    told = stats(place)
    total, below = told["total"], told["store"]

    def tile(name: str) -> str:
        return words(page.locator(f"[data-tile={name}]"))

    until(lambda: f"{total['hits']} hits, {total['misses']} misses" in tile("rate"), pause=0.1)
    assert f"{100 * total['hit_rate']:.0f} %" in tile("rate")
    assert f"{size(total['bytes_served'])} served" in tile("rate")
    assert f"of {size(below['max_bytes'])}" in tile("size")
    assert f"Entries {total['entries']} in {len(told['namespaces'])} namespace" in tile("entries")
    until(lambda: f"On disk {size(stats(place)['store']['used_bytes'])} of" in tile("size"), pause=0.3)
    until(lambda: f"{size(stats(place)['store']['bytes_saved'])} saved" in tile("size"), pause=0.3)

    def shows_the_week() -> bool:  # the page asks for it every ten seconds
        past = json.loads(place.must("stats", "--json", "--since", "7d"))["total"]
        done = f"{seconds(past['seconds_compiled'])} of compiling done"
        return seconds(past["seconds_saved"]) in tile("saved") and done in tile("saved")

    until(shows_the_week, pause=0.3)
    [row] = cells(page, "#namespaces")
    numbers = told["namespaces"]["triton"]
    assert row[:9] == [
        "triton",
        str(numbers["entries"]),
        size(numbers["plain_bytes"]),
        size(numbers["stored_bytes"]),
        f"{numbers['compression_ratio']:.1f}×",
        str(numbers["hits"]),
        str(numbers["misses"]),
        size(numbers["bytes_served"]),
        str(numbers["evictions"]),
    ]


def test_runs_causes_and_kernels_are_those_of_the_commands(server: Server, place: Scene, opened: Opener) -> None:
    page = ready(opened(server.link))
    runs = json.loads(place.must("runs", "--json"))
    until(lambda: len(cells(page, "#runs")) == len(runs), pause=0.2)
    for row, run in zip(cells(page, "#runs"), reversed(runs), strict=True):
        assert f"run {run['run']} · user {run['uid']}" in row[0]
        assert row[1:3] == [str(run["hits"]), str(run["misses"])]
    changed = next(one for one in runs if "/odd_n/" in one["argv"])
    page.get_by_label(f"Why run {changed['run']} had 1 miss").click()
    told = json.loads(place.must("explain", "--json", "--run", str(changed["run"])))
    page.get_by_role("button", name=f"Run {changed['run']}", exact=True).wait_for()
    until(lambda: told["causes"][0]["words"] in words(page.locator("#causes")), pause=0.1)
    assert "argument n is not divisible by 16" in words(page.locator("#causes"))
    kernels = {one["path"]: one for one in json.loads(place.must("kernels", "--json"))}
    paths = page.locator("#kernels td button").evaluate_all("all => all.map(one => one.title)")
    assert set(paths) == set(kernels)
    for path, found in zip(paths, cells(page, "#kernels"), strict=True):
        one = kernels[path]
        assert found[0].startswith(one["name"])
        assert [found[3], found[7]] == [str(one["registers"]), str(one["hits"])]
    page.get_by_label("sort by Registers").click()
    registers = [int(row[3]) for row in cells(page, "#kernels")]
    assert registers == sorted((one["registers"] for one in kernels.values()), reverse=True)
    page.get_by_label("Search kernels by name").fill("tally")
    until(lambda: {row[0].split(" ")[0] for row in cells(page, "#kernels")} == {"tally"}, pause=0.1)


def test_what_fills_it_can_be_opened_down_to_an_entry(server: Server, place: Scene, opened: Opener) -> None:
    page = ready(opened(server.link))
    entries = json.loads(place.must("ls", "--json", "--sort", "size"))
    assert len(server.api("filling")["biggest"]) == len(entries)
    assert page.locator("#top li").count() == len(entries)
    page.locator("#treemap .cell", has_text="tally").click()
    page.get_by_role("button", name="All namespaces").wait_for()
    crumbs = words(page.locator("#crumbs"))
    assert crumbs == "All › triton › tally"
    tallies = [one for one in entries if one["name"].startswith("tally")]
    until(lambda: page.locator("#treemap .cell").count() == len(tallies), pause=0.1)
    page.locator("#treemap .cell").first.click()
    assert page.locator("h1").inner_text() == "tally"
    page.get_by_role("button", name="Back to the overview").click()
    page.get_by_role("button", name="All namespaces").click()
    assert page.locator("#treemap .cell").count() > len(tallies)


def test_a_kernel_has_its_source_and_ptx_side_by_side(
    server: Server, place: Scene, kernels: Path, opened: Opener
) -> None:
    page = ready(opened(server.link))
    path = next(f"triton/{one.name}" for one in (kernels / "bins").iterdir())
    page.evaluate("path => { location.hash = '#/entry/' + encodeURIComponent(path); }", path)
    page.locator("h1").wait_for()
    told = json.loads(place.must("show", "--json", path))
    facts = words(page.locator(".facts"))
    for name in ("registers", "compiled for", "arguments", "shared memory"):
        assert f"{name} {told[name]}" in facts
    assert "is 32, was 64 (tiles.py:" in words(page.get_by_label("Why it was compiled"))
    assert "is 32, was 64" in words(page.get_by_label("Others of this name"))
    source, ptx = page.locator(".code").all()
    assert "def tally(" in source.inner_text()
    assert "ld.global" in ptx.inner_text()
    line = ptx.locator("[data-place]", has_text="ld.global").first
    number = line.get_attribute("data-place")
    line.click()
    lit = source.locator(".on")
    assert lit.get_attribute("data-place") == number
    assert "tl.load" in lit.inner_text()
    assert ptx.locator(".on").count() == ptx.locator(f"[data-place='{number}']").count()


def test_a_name_that_looks_like_a_script_is_text(server: Server, opened: Opener) -> None:
    page = ready(opened(server.link))
    link = page.locator("#kernels").get_by_role("button", name=HOSTILE)
    link.first.wait_for()
    link.first.click()
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.title() == "kcachefs"
    assert page.evaluate("document.images.length + document.querySelectorAll('script').length") == 1


def test_history_has_its_ranges_marks_and_keys(server: Server, place: Scene, opened: Opener) -> None:
    page = ready(opened(server.link))
    total = stats(place)["total"]
    for name in ("6 h", "14 d", "2 y"):
        page.get_by_role("button", name=name, exact=True).click()
        page.locator(f"[aria-pressed=true]:text-is('{name}')").wait_for()
        until(lambda: f"Hits {total['hits']}" in words(page.locator("#legend")), pause=0.2)
        assert f"Misses {total['misses']}" in words(page.locator("#legend"))
    page.locator("#chart svg").focus()
    page.keyboard.press("End")
    tip = words(page.locator("#chart .tip"))
    assert f"Hits: {total['hits']} Misses: {total['misses']}" in tip
    page.keyboard.press("ArrowLeft")
    assert "Hits: 0" in words(page.locator("#chart .tip"))
    page.keyboard.press("Escape")
    assert page.locator("#chart .tip").is_hidden()


def test_the_axis_of_a_count_has_whole_numbers(server: Server, opened: Opener) -> None:
    page = ready(opened(server.link))
    script = "".join((PAGE / name).read_text() for name in ("format.js", "chart.js"))  # the page hides its functions
    for measure in ("uses", "served"):
        counts = "Array.from({ length: 1000 }, (_, at) => at + 1)"
        tops = page.evaluate(f"() => {{ {script} return {counts}.map((most) => niceTop(most, MEASURES.{measure})); }}")
        assert all(top >= most and top % 2 == 0 for most, top in enumerate(tops, 1)), "the half is on the axis, too"


def test_a_worker_that_is_replaced_and_a_daemon_that_is_gone_and_back_are_shown(
    server: Server, place: Scene, opened: Opener
) -> None:
    page = ready(opened(server.link, expected=("503",)))
    state = page.locator("#state")
    assert words(state) == "served"
    worker = place.status()[0]["worker_pid"]
    os.kill(worker, signal.SIGKILL)
    until(lambda: "replaced once after a failure" in words(page.locator("#concerns")), pause=0.2)
    until(lambda: "failover" in words(page.locator("#events")), pause=0.2)
    page.locator(".mark-failover").first.wait_for(state="attached")
    kept = words(page.locator("[data-tile=rate]"))
    for pid in place.daemons():
        if pid != server.process.pid:
            kill_and_wait(pid)
    until(lambda: words(state) == "daemon is gone", pause=0.2)
    assert "Mount it again: kcachefs mount" in words(page.locator("#concerns"))
    assert words(page.locator("[data-tile=rate]")) == kept, "the last numbers stay, dimmed"
    assert "stale" in str(page.locator("#overview").get_attribute("class"))
    place.must("mount", place.mountpoint, "--allow-other")
    until(lambda: words(state) == "served", pause=0.2)
    assert "stale" not in str(page.locator("#overview").get_attribute("class"))
    assert page.locator("#concerns .grave").count() == 0


def test_a_daemon_that_hangs_is_called_silent(server: Server, place: Scene, opened: Opener) -> None:
    page = ready(opened(server.link))
    worker = place.status()[0]["worker_pid"]
    os.kill(worker, signal.SIGSTOP)
    try:
        until(lambda: words(page.locator("#state")) == "does not answer", pause=0.2)
        assert "The daemon does not answer" in words(page.locator("#concerns"))
    finally:
        os.kill(worker, signal.SIGCONT)
    until(lambda: words(page.locator("#state")) == "served", pause=0.2)


def test_an_empty_mount_and_a_server_that_is_gone_say_what_to_do(opened: Opener) -> None:
    with scene() as empty:
        empty.mount()
        with serving(empty, empty.mountpoint) as server:
            page = opened(server.link, expected=("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET"))
            for place, text in (
                ("#treemap", "Nothing is stored yet"),
                ("#runs", "No run yet"),
                ("#kernels", "No kernel yet"),
                ("#causes", "Nothing had to be compiled"),
                ("#events", "Nothing happened yet"),
                ("#namespaces", "No namespace is in use yet"),
                ("#users", "Nobody used it"),
                ("#chart", "Nothing in these six hours"),
            ):
                page.locator(place, has_text=text).wait_for()
            assert "–" in words(page.locator("[data-tile=rate]"))
        page.locator("#banner", has_text="The page's server does not answer").wait_for()


def test_changes_are_asked_about_first(place: Scene, kernels: Path, opened: Opener) -> None:
    with scene() as own:
        own.mount()
        from tests.live.web.conftest import bring

        bring(own, kernels / "bins")
        with serving(own, own.mountpoint, "--allow-changes") as server:
            page = ready(opened(server.link))
            page.locator("#kernels .link").first.click()
            page.get_by_role("button", name="Pin").click()
            page.get_by_role("button", name="Unpin").click()
            page.get_by_role("button", name="Pin", exact=True).wait_for()
            asked: list[str] = []

            def refuse(dialog: Dialog) -> None:
                asked.append(dialog.message)
                dialog.dismiss()

            page.once("dialog", refuse)
            page.get_by_role("button", name="Evict").click()
            assert asked[0].startswith("Evict triton/")
            assert stats(own)["total"]["entries"] == 1
            page.once("dialog", lambda one: one.accept())
            page.get_by_role("button", name="Evict").click()
            page.locator("#treemap", has_text="Nothing is stored yet").wait_for()
            assert stats(own)["total"]["entries"] == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_a_phone_and_a_desk_in_both_colours(server: Server, opened: Opener, width: int, scheme: str) -> None:
    page = ready(opened(server.link, width=width, height=844, color_scheme=scheme))
    wide = "document.scrollingElement.scrollWidth"
    assert page.evaluate(wide) == width
    hidden = "one => one.getBoundingClientRect().right > one.parentElement.getBoundingClientRect().right"
    assert page.evaluate(f"[...document.querySelectorAll('.switch button')].filter({hidden}).length") == 0
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(244, 246, 249)"
    assert light == (scheme == "light")
    page.locator("#kernels .link").first.click()
    page.locator("h1").wait_for()
    assert page.evaluate(wide) == width
    folder = os.environ.get("KCACHEFS_SCREENSHOTS")
    if folder:
        page.screenshot(path=f"{folder}/entry-{scheme}-{width}.png")


def test_everything_can_be_reached_and_heard(server: Server, opened: Opener) -> None:
    page = ready(opened(server.link))
    nameless = """() => [...document.querySelectorAll('button, a, input, select, table, section.card, [role=img]')]
        .filter(one => !one.closest('[hidden]'))
        .filter(one => !(one.getAttribute('aria-label') || one.getAttribute('aria-labelledby') || one.textContent.trim()
            || one.labels?.length)).map(one => one.outerHTML.slice(0, 120))"""
    assert page.evaluate(nameless) == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the numbers"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.closest('section[aria-labelledby]')?.getAttribute('aria-labelledby')")
        )
    assert {"history-title", "filling-title", "top-title", "causes-title"} <= reached
    page.get_by_role("button", name="14 d").focus()
    page.keyboard.press("Enter")
    page.locator("[aria-pressed=true]:text-is('14 d')").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "14 d", "the focus stays where it was"
