"""A lookup of a small sealed file, and of nothing else, lets the direct engine fetch what the next read asks for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kcachefs.core.files import QUICK_READ
from kcachefs.engines.protocol import Op
from tests.engines.test_protocol import Line


@pytest.fixture
def line(disk_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Line]:
    with closing(Line(disk_path / "store", caplog)) as made:
        yield made


def test_only_small_sealed_files_are_expected_to_be_read(line: Line) -> None:
    small, large = b"a kernel " * 1000, os.urandom(QUICK_READ + 1)
    nodes = {name: line.write_file(name, content) for name, content in {b"small": small, b"large": large}.items()}
    line.write_file(b"empty", b"")
    line.fs.settle()
    line.write_file(b"unsealed", b"just written")
    objects = line.store.objects
    objects.cache.clear()
    assert line.read_file(nodes[b"large"]) == large  # opens the volumes
    found = {}
    for name in (b"large", b"empty", b"unsealed", b"absent", b"small"):
        objects.cache.clear()
        line.ask(Op.LOOKUP, line.folder, name + b"\0")
        line.fs.prepare_read()
        found[name] = objects.next_read._ready is not None
    assert [name for name, was_fetched in found.items() if was_fetched] == [b"small"]
    fetched = objects.next_read._ready
    assert line.read_file(nodes[b"small"]) == small
    assert fetched is not None
    assert objects.next_read._ready is None


def test_a_hang_between_two_requests_is_one_of_the_last_request(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = line.engine
    seen: list[object] = []
    polling = engine._polling
    monkeypatch.setattr(polling, "_meanwhile", lambda: seen.append(engine.request_at_hand()))
    monkeypatch.setattr(polling, "_successes", 32)
    polling.allowed = 1
    line.ask(Op.GETATTR, line.folder, bytes(16))
    polling.poll()
    assert seen == [engine.header]
    assert engine.request_at_hand() is None
