"""The page of a mount whose daemon hangs: every question gets an answer, and nothing is asked over and over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from kcachefs.live.web import answers
from kcachefs.live.web.access import Access
from kcachefs.live.web.answers import Answers
from kcachefs.live.web.http import Request, Response
from kcachefs.mounts.insight_reports import _FILES
from kcachefs.reports import STATISTICS
from tests.waiting import ending_soon, until_async

TOKEN = "t" * 20


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Path]:
    """A folder with the reports of a mount: whoever reads one waits until somebody writes it."""
    folder = tmp_path / ".kcachefs"
    folder.mkdir()
    for name in (STATISTICS, *_FILES.values()):
        os.mkfifo(folder / name)
    yield tmp_path
    let_go(tmp_path)


def let_go(mount: Path) -> None:
    """From now on there is nothing new."""
    for name in (STATISTICS, *_FILES.values()):
        path = mount / ".kcachefs" / name
        if not path.is_fifo():
            continue
        kept = path.rename(path.with_suffix(".waiting"))
        path.write_bytes(b"[]")
        try:
            os.close(os.open(kept, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody waits for it
            continue


async def asked(page: Answers, name: str, **query: str) -> Response:
    return await page.answer(Request("GET", f"/api/{name}", {"token": TOKEN, **query}, {b"host": b"localhost"}, b""))


def test_a_mount_that_hangs_while_its_history_is_read_is_called_silent(
    hung: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_SILENT_SECONDS", 0.2)
    page = Answers(Access(TOKEN), [hung])
    (mounted,) = page._mounts.values()

    async def ask() -> None:
        replies: list[Response] = []

        async def read_history() -> None:
            replies.append(await asked(page, "series", range="6h"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_history)
            await until_async(lambda: mounted.turn.locked())
            glance = await asked(page, "glance")
        assert glance.status == 200
        assert msgspec.json.decode(glance.body)["headline"]["why"] == f"{hung}: the mount has been silent for a while"
        replies.append(await asked(page, "series", range="2y"))
        for reply in replies:
            assert (reply.status, b"the mount has been silent for a while" in reply.body) == (503, True)
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 1, "one thread waits for it"
        let_go(hung)
        await until_async(lambda: not mounted._is_asking)
        assert (await asked(page, "series", range="6h")).status == 200

    with ending_soon():
        trio.run(ask)
