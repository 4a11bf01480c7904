"""`kcachefs top` on a real mount with kernels that Triton compiled: in textual's pilot, and in a terminal by tmux."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.scene import KCACHEFS, Scene, scene
from tests.waiting import PATIENCE, until, until_async

pytest.importorskip("triton")
pytest.importorskip("textual")
pytestmark = pytest.mark.mount

SMALL, LARGE = (80, 24), (120, 40)


def is_a_place(place: Scene, folders: Path) -> None:
    """Mount, have one run make the kernels, another use them, and a third make one that differs."""
    place.mount("--max-size", "64MiB")
    copy(place, folders / "base")
    place.settle()
    until(lambda: hits_after_use(place) >= len(list((folders / "base").iterdir())), "every kernel is hit", pause=0.2)
    copy(place, folders / "bins")
    place.settle()


def hits_after_use(place: Scene) -> int:
    """What is counted after a new process has read every kernel."""
    read = "import glob, sys\nfor one in glob.glob(sys.argv[1] + '/triton/*/*.cubin'): open(one, 'rb').read()"
    subprocess.run([sys.executable, "-S", "-c", read, str(place.mountpoint)], check=True, timeout=PATIENCE)
    return int(stats(place)["total"]["hits"])


def copy(place: Scene, folder: Path) -> None:
    target = place.mountpoint / "triton"
    subprocess.run(["cp", "-r", *map(str, sorted(folder.iterdir())), str(target)], check=True, timeout=PATIENCE)


@pytest.fixture(scope="module")
def place(kernels: Path) -> Iterator[Scene]:
    with scene() as made:
        is_a_place(made, kernels)
        yield made


def stats(place: Scene) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.must("stats", "--json"))
    return found


class Screen:
    """The screen of a running `top`, as text, and its keyboard."""

    def __init__(self, app: Any, pilot: Any) -> None:
        self.app, self._pilot = app, pilot

    def text(self) -> str:
        """Every line as it is drawn, without the blanks at its end."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.replace("\xa0", " ").rstrip() for strip in strips)

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)
        await self._pilot.pause()

    async def resize(self, columns: int, lines: int) -> None:
        await self._pilot.resize_terminal(columns, lines)
        await self._pilot.pause()

    async def shows(self, *words: str, without: str = "") -> str:
        """Wait until the screen has these words; returns its text."""

        def shown() -> str:
            text = self.text()
            return text if all(word in text for word in words) and (not without or without not in text) else ""

        return await until_async(shown, lambda: f"{words} without {without!r} in\n{self.text()}", pause=0.15)


def on_screen(place: Scene, size: tuple[int, int], scenario: Callable[[Screen], Awaitable[None]]) -> None:
    """Play a scenario on `top`, which watches the mount of that place."""
    from kcachefs.live.top_app import TopApp

    async def play() -> None:
        app = TopApp(place.mountpoint)
        async with app.run_test(size=size, notifications=True) as pilot:
            await scenario(Screen(app, pilot))

    with pytest.MonkeyPatch.context() as patch:
        for name in ("KCACHEFS_RUNTIME_DIR", "XDG_CACHE_HOME"):
            patch.setenv(name, place.environment[name])
        asyncio.run(play())


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "120x40"])
def test_every_panel_shows_what_the_commands_show(place: Scene, size: tuple[int, int]) -> None:
    numbers = stats(place)
    runs = json.loads(place.must("runs", "--json"))
    names = {one["name"] for one in json.loads(place.must("kernels", "--json"))}

    async def scenario(screen: Screen) -> None:
        total, row = numbers["total"], numbers["namespaces"]["triton"]
        text = await screen.shows("triton", "64.0 MiB", "not repeated this week")
        assert f"{total['entries']} entries · hit rate {total['hit_rate']:.0%}" in text
        [line] = [line for line in text.splitlines() if line.strip().startswith("triton")]
        assert line.split()[1:2] == [str(row["entries"])]
        assert {str(row["hits"]), str(row["misses"])} <= set(line.split())
        assert f"hits {total['hits']}  in 1 h" in text
        keys = (
            "⏎ open",
            "/ search",
            "s sort",
            "u user",
            "n namespace",
            "e why",
            "p pin",
            "x evict",
            "? help",
            "q quit",
        )
        await screen.shows(*keys)
        await screen.press("2")
        await screen.shows("cp -r", *(f"{run['run']:>3} " for run in runs))
        await screen.press("3")
        await screen.shows("is 32, was 64")
        await screen.press("4")
        await screen.shows("sm_90", *names)
        await screen.press("5")
        await screen.shows("Nothing happened yet")
        await screen.press("6")
        await screen.shows(place.mountpoint.name, "served")
        assert all(len(line) <= size[0] for line in screen.text().splitlines())

    on_screen(place, size, scenario)


def test_a_resize_is_drawn_without_anything_new_to_tell(place: Scene) -> None:
    from rich.cells import cell_len

    def is_drawn(app: Any, size: tuple[int, int]) -> bool:
        box, headline = app.query_one("#newest-runs"), app.query_one("#headline")
        width = box.content_size.width
        is_wide = cell_len(str(headline.content)) == size[0] - 2
        is_high = bool(width) and all(cell_len(line) == width for line in str(box.content).splitlines())
        return is_wide and is_high == (size != SMALL)

    async def scenario(screen: Screen) -> None:
        await screen.shows("cp -r", "newest runs", "not repeated this week")
        screen.app.asking.stop()
        for size in ((150, 45), SMALL, LARGE):
            await screen.resize(*size)
            await until_async(partial(is_drawn, screen.app, size), screen.text, pause=0.05)

    on_screen(place, LARGE, scenario)


def test_new_numbers_are_drawn_without_a_new_layout(place: Scene) -> None:
    """It would take several times as long, each second and on every screen that somebody leaves open."""
    from kcachefs.live.top_parts import Words

    asked: list[tuple[str | None, bool]] = []
    refresh = Words.refresh

    def noted(self: Words, *regions: Any, layout: bool = False, **others: Any) -> Words:
        asked.append((self.id, layout))
        return refresh(self, *regions, layout=layout, **others)

    async def scenario(screen: Screen) -> None:
        hits = stats(place)["total"]["hits"]
        await screen.shows("newest runs", "not repeated this week", f"· {hits} hits ·")
        asked.clear()
        until(lambda: hits_after_use(place) > hits, "another hit", pause=0.2)
        await screen.shows(f"· {stats(place)['total']['hits']} hits ·")
        assert ("status", False) in asked
        assert [name for name, layout in asked if layout] == []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Words, "refresh", noted)
        on_screen(place, LARGE, scenario)


def test_rows_are_sorted_searched_and_filtered(place: Scene) -> None:
    hits = {one["path"]: one["hits"] for one in json.loads(place.must("kernels", "--json"))}

    async def scenario(screen: Screen) -> None:
        await screen.press("4")
        await screen.shows("tally", "layer_norm", "used↓")
        await screen.press("s")
        await screen.shows("kernel↑")
        await screen.press(*"sssssss")
        await screen.shows("hits↓")
        shown = [row.values[7] for row in screen.app.choices.rows(screen.app.choices.panel(screen.app.asking.known))]
        assert shown == sorted(hits.values(), reverse=True)
        await screen.press("S")
        await screen.shows("hits↑")
        await screen.press("slash", *"tally", "enter")
        text = await screen.shows("tally", without="layer_norm")
        assert f"2 of {len(hits)} for “tally”" in text
        await screen.press("escape")
        await screen.shows("layer_norm")
        await screen.press("slash", *"nonsense", "enter")
        await screen.shows("Nothing here for “nonsense”. Esc shows everything.")
        await screen.press("escape", "n")
        await screen.shows("all for namespace triton", "tally")
        await screen.press("n", "u")
        await screen.shows("all for user root", "tally")
        await screen.press("1", "t")
        await screen.shows("in 6 h")

    on_screen(place, LARGE, scenario)


def test_a_kernel_is_opened_with_the_lines_matched_and_explained(place: Scene) -> None:
    async def scenario(screen: Screen) -> None:
        await screen.press("4", "slash", *"tally", "enter")
        await screen.shows("tally", without="layer_norm")
        await screen.press("e")
        await screen.shows("is 32, was 64")
        await screen.press("escape", "enter")
        await screen.shows("def tally(", ".visible .entry tally")
        page = screen.app.screen.page
        loads = next(number for number, line in enumerate(page.source.lines) if "tl.load" in line)
        await screen.press(*["down"] * loads)
        line = page.source.places[loads]
        matching = [number for number, one in enumerate(page.code.places) if one == line]
        assert matching
        code = screen.app.screen.query_one("#code")
        assert code.cursor_row == matching[0]
        assert all("reverse" in str(code.get_cell_at((number, 1)).style) for number in matching)
        await screen.press("escape")
        await screen.shows("4 kernels")

    on_screen(place, LARGE, scenario)


def test_on_a_small_screen_source_and_ptx_take_turns(place: Scene) -> None:
    async def scenario(screen: Screen) -> None:
        await screen.press("4", "slash", *"tally", "enter")
        await screen.shows("tally", without="layer_norm")
        await screen.press("enter")
        await screen.shows("def tally(", without=".visible")
        await screen.press("tab")
        await screen.shows(".visible .entry tally", without="def tally(")

    on_screen(place, SMALL, scenario)


def test_a_run_leads_to_its_misses(place: Scene) -> None:
    async def scenario(screen: Screen) -> None:
        await screen.press("2")
        await screen.shows("cp -r", "run↓")
        await screen.press("S", *["up"] * 5, "enter")
        await screen.shows("run 1: cp -r")

    on_screen(place, LARGE, scenario)


def test_nothing_is_pinned_or_evicted_without_a_yes(kernels: Path) -> None:
    def entries(place: Scene) -> dict[str, bool]:
        return {one["path"]: one["pinned"] for one in json.loads(place.must("ls", "--json"))}

    with scene() as place:
        place.mount()
        copy(place, kernels / "bins")
        place.settle()
        [path] = entries(place)

        async def scenario(screen: Screen) -> None:
            await screen.press("4")
            await screen.shows("tally")
            await screen.press("p")
            await screen.shows("Pin tally?", "It will not be evicted")
            await screen.press("n")
            await screen.shows("tally", without="Pin tally?")
            assert entries(place) == {path: False}
            await screen.press("p", "y")
            await screen.shows("tally (pinned)")
            assert entries(place) == {path: True}
            await screen.press("x", "y")
            await screen.shows("tally: in use or pinned, so it stays")
            await screen.press("p")
            await screen.shows("Unpin tally?")
            await screen.press("y")
            await screen.shows("no longer pinned")
            await screen.press("x")
            await screen.shows("Evict tally?", "compiled again")
            await screen.press("escape")
            assert entries(place) == {path: False}
            await screen.press("x", "y")
            await screen.shows("No compiled kernel of Triton's here yet.")
            assert entries(place) == {}
            await screen.press("5")
            await screen.shows("evicted", path)

        on_screen(place, LARGE, scenario)


def test_a_new_mount_a_silent_one_and_one_that_is_back_say_so() -> None:
    with scene() as place:
        place.mount()

        async def scenario(screen: Screen) -> None:
            await screen.shows("Nothing cached yet.", "0 entries", "kcachefs run")
            for key, words in (
                ("2", "No program has used it yet."),
                ("4", "No compiled kernel"),
                ("5", "Nothing happened yet"),
            ):
                await screen.press(key)
                await screen.shows(words)
            state = next(one for one in place.status() if one["mountpoint"] == str(place.mountpoint))
            os.kill(state["worker_pid"], signal.SIGSTOP)
            try:
                await screen.shows("does not answer, last heard", "! The daemon does not answer")
            finally:
                os.kill(state["worker_pid"], signal.SIGCONT)
            await screen.shows("served", without="does not answer")
            for pid in (state["supervisor_pid"], state["worker_pid"]):
                os.kill(pid, signal.SIGKILL)
            await screen.shows("dead, last heard", "! The daemon is gone. Mount it again: kcachefs")
            place.mount()
            await screen.shows("served", without="dead")

        on_screen(place, SMALL, scenario)


def test_another_mount_is_watched_when_it_is_chosen(place: Scene) -> None:
    second = place.folder / "second"
    place.must("mount", second, "--store", place.folder / "second-store", "--max-size", "5MiB")
    try:

        async def scenario(screen: Screen) -> None:
            await screen.press("6")
            await screen.shows("64.0 MiB", "5.0 MiB", str(second)[:30])  # a longer path is cut off
            row = screen.app.query_one("#table")._keys.index(str(second))
            screen.app.query_one("#table").move_cursor(row=row)
            await screen.press("enter")
            await screen.shows("Nothing cached yet.", "of 5.0 MiB")

        on_screen(place, LARGE, scenario)
    finally:
        place.must("umount", second)


def test_hostile_names_stay_on_their_line() -> None:
    with scene() as place:
        place.mount()
        folder = place.mountpoint / "inductor" / "evil\x1b[2J[red]x\n"
        folder.mkdir()
        (folder / "code").write_bytes(b"x")
        place.settle()
        place.must("evict", "inductor/evil*")

        async def scenario(screen: Screen) -> None:
            await screen.press("5")
            await screen.shows(r"evil\x1b[2J[red]x\n")

        on_screen(place, LARGE, scenario)


def test_one_frame_is_printed_without_a_terminal_and_without_textual(place: Scene) -> None:
    without = (sys.executable, "-c", "import sys; sys.modules['textual'] = None; from kcachefs.cli import main; main()")
    text = place.must("top", "--once", place.mountpoint, command=without)
    numbers = stats(place)
    assert text.startswith(f"{place.mountpoint}  served · up ")
    for word in ("not repeated this week", "64.0 MiB", "is 32, was 64", "sm_90", "cp -r", "last 6 h  hits ▁"):
        assert word in text
    assert f"{numbers['total']['hits']} hits" in text
    assert "\x1b" not in text
    told = json.loads(place.must("top", "--json", place.mountpoint, command=without))
    assert told["glance"]["headline"]["mountpoint"] == str(place.mountpoint)
    assert {one["name"] for one in told["kernels"]["rows"]}
    plain = place.must("top", "--once", env={**place.environment, "LC_ALL": "C"})
    assert plain.isascii()
    assert "?" not in plain
    place.run("top", command=without).refused_with(2, "textual", "pip install 'kcachefs[live]'", "--once")
    place.run("top").refused_with(2, "terminal", "--once")
    place.run("top", "--once", place.folder).refused_with(4, "no kcachefs is mounted there")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
@pytest.mark.parametrize("colours", [True, False], ids=["colours", "NO_COLOR"])
def test_it_works_in_a_real_terminal(place: Scene, colours: bool) -> None:
    tmux = ["tmux", "-L", f"kcachefs-{os.getpid()}-{colours}", "-f", "/dev/null"]
    environment = {**place.environment, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    if not colours:
        environment["NO_COLOR"] = "1"
    ended = place.folder / f"ended-{colours}"
    command = f"{' '.join(KCACHEFS)} top {place.mountpoint}; echo $? > {ended}; exec sleep 600"

    def screen(*options: str) -> str:
        return subprocess.check_output([*tmux, "capture-pane", "-p", *options], text=True, timeout=PATIENCE)

    def press(*keys: str) -> None:
        subprocess.run([*tmux, "send-keys", *keys], check=True, timeout=PATIENCE)

    subprocess.run(
        [*tmux, "new-session", "-d", "-x", "80", "-y", "24", command], check=True, env=environment, timeout=PATIENCE
    )
    try:
        until(lambda: "triton" in screen() and "q quit" in screen(), "it is drawn")
        if not colours:
            rgb = re.findall(r"\x1b\[[\d;]*[34]8;2;(\d+);(\d+);(\d+)", screen("-e"))
            assert all(red == green == blue for red, green, blue in rgb), "greys only"
        press("4")
        # The footer says when the table takes keys.
        until(lambda: "layer_norm" in (seen := screen()) and "⏎ open" in seen, "the kernels are listed")
        press("Enter")
        until(lambda: "def " in screen() and "source / PTX" in screen(), "a kernel is open")
        press("Escape")
        until(lambda: "4 kernels" in (seen := screen()) and "⏎ open" in seen, "it is closed")
        press("q")
        until(lambda: ended.exists() and ended.read_text().endswith("\n"), "it ended")
        assert ended.read_text().strip() == "0"
        assert "layer_norm" not in screen(), "the screen is as it was before"
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, timeout=PATIENCE)
