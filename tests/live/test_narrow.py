"""`kcachefs top` where there is hardly any room: every text is cut to what fits, and every key still works."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kcachefs.core.insight_info import Event
from kcachefs.core.report import Numbers
from kcachefs.live.view import Glance, Headline, MountRow
from tests.cli.scene import Scene, scene
from tests.cli.test_ending import read_until
from tests.command_server import Process
from tests.waiting import PATIENCE, ending_soon

pytest.importorskip("textual")

TEXTS = ("", "a", "…", "……", "/mnt/cache", "/srv/日本語のカーネル/キャッシュ", "x" * 300, "e\u0301" * 40)

NUMBERS = Numbers(12345, 9, 1 << 40, 1 << 39, 2.0, 10**6, 10**6, 0.5, 1 << 50, 10**6, 1 << 40, 0.0)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_cut_to_any_width(text: str) -> None:
    from rich.cells import cell_len

    from kcachefs.live.top_rows import cut, cut_front

    for width in range(-3, 81):
        with ending_soon():
            both = (cut(text, width), cut_front(text, width))
        for shown in both:
            assert cell_len(shown) <= max(0, width), (width, shown)
            assert (shown == text) == (cell_len(text) <= max(0, width)), (width, shown)
            assert shown.strip("…").strip() in text
    assert cut_front("/mnt/cache", 6) == "…cache"


def test_every_panel_and_line_fits_any_width() -> None:
    from rich.cells import cell_len

    from kcachefs.live import top_rows as rows_of

    headline = Headline(mountpoint=TEXTS[5], state="served", total=NUMBERS)
    event = Event(number=1, when=0.0, kind="evicted", uid=0, path="triton/" + TEXTS[6], detail=TEXTS[7])
    glance = Glance(now=0.0, revision=0, headline=headline, namespaces={TEXTS[5]: NUMBERS}, events=[event])
    mount = MountRow(mountpoint=TEXTS[6], state="served", own=True)
    for width in range(81):
        assert len(rows_of.sparkline([0.0, 1.0, 5.0] * 20, width)) == min(60, width)
        assert rows_of.total_words(headline, width)
        for panel in (rows_of.namespaces(glance), rows_of.events(glance), rows_of.mounts([mount])):
            sizes = rows_of.widths(panel, range(len(panel.columns)), panel.rows, width)
            for row in panel.rows:
                for cell, size in zip(row.cells, sizes, strict=True):
                    assert cell_len(rows_of.cut(cell, size)) <= size


@contextmanager
def top(place: Scene, lines: int, columns: int) -> Iterator[tuple[Process, int]]:
    """The command in a terminal of that size."""
    controller, terminal = os.openpty()
    resize(terminal, lines, columns)
    process = Process(
        "top",
        place.mountpoint,
        env={**place.environment, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        imports=["kcachefs.live.top_app"],
    )
    os.close(terminal)
    try:
        yield process, controller
    finally:
        process.kill()
        process.wait(PATIENCE)
        os.close(controller)


def resize(terminal: int, lines: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@pytest.fixture(name="place", scope="module")
def a_place() -> Iterator[Scene]:
    with scene() as made:
        made.mount()
        (made.mountpoint / "triton" / "KEY").mkdir()
        (made.mountpoint / "triton" / "KEY" / "a.cubin").write_bytes(b"code")
        made.settle()
        yield made


@pytest.mark.mount
@pytest.mark.parametrize("key", [b"q", b"\x03", b"/\x03", b"?\x03"], ids=["q", "ctrl-c", "in a search", "in the help"])
@pytest.mark.parametrize(("lines", "columns"), [(24, 20), (24, 45)])
def test_a_key_ends_it_on_a_narrow_screen(place: Scene, lines: int, columns: int, key: bytes) -> None:
    with top(place, lines, columns) as (process, controller):
        seen = read_until(controller, b"served")
        for one in key:
            os.write(controller, bytes([one]))
        seen += read_until(controller, b"\x1b[?1049l")
        assert process.wait(PATIENCE) == 0
        assert b"Traceback" not in seen


@pytest.mark.mount
@pytest.mark.parametrize(("lines", "columns"), [(3, 10), (1, 1)])
def test_a_screen_that_shrinks_takes_no_key_away(place: Scene, lines: int, columns: int) -> None:
    with top(place, 24, 80) as (process, controller):
        read_until(controller, b"served")
        resize(controller, lines, columns)
        process.send_signal(signal.SIGWINCH)
        read_until(controller, b"\x1b[")
        os.write(controller, b"q")
        seen = read_until(controller, b"\x1b[?1049l")
        assert process.wait(PATIENCE) == 0
        assert b"Traceback" not in seen


@pytest.mark.mount
def test_it_ends_with_its_terminal_though_no_signal_says_so(place: Scene) -> None:
    """It is in another session than the terminal; where the signal is ignored, as under nohup, it is the same."""
    with top(place, 24, 80) as (process, controller), open(os.devnull) as nothing:
        read_until(controller, b"served")
        os.dup2(nothing.fileno(), controller)  # the terminal is closed
        assert process.wait(PATIENCE) == 128 + signal.SIGHUP
