"""What one thread sees while another is in the middle of something. Each interleaving is forced, not waited for.

A test stops a thread at the call between two steps, lets another thread act there, and goes on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kcachefs.core import Filesystem
from kcachefs.store.records import Content
from tests.core.trees import ROOT, find, folder, opened, rename, write
from tests.waiting import PATIENCE

LARGE = 2 << 20
"""More than fits into a slot: such a file is in the spool."""


def beside(action: Callable[[], object]) -> None:
    """Have another thread do it, and continue when it is done."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for this thread"
    assert failed == []


def owns_lock(fs: Filesystem) -> bool:
    """Whether this thread holds the catalog's lock."""
    owned: bool = fs.store.catalog.lock._is_owned()  # type: ignore[attr-defined]
    return owned


class Once:
    """Wraps a function of a module: its first call in this thread lets another thread act before or after it."""

    def __init__(self, function: Callable[..., object], action: Callable[[], object], *, first: bool) -> None:
        self._function = function
        self._action: Callable[[], object] | None = action
        self._first = first
        self._thread = threading.get_ident()

    def __call__(self, *arguments: object) -> object:
        action = None
        if threading.get_ident() == self._thread:
            action, self._action = self._action, None
        if action is not None and self._first:
            beside(action)
        result = self._function(*arguments)
        if action is not None and not self._first:
            beside(action)
        return result


def test_the_last_file_that_waits_may_be_sealed_while_somebody_asks_how_long_it_has_waited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as fs:
        write(fs, "triton/key/file", b"content")
        clock = Once(time.monotonic, lambda: fs.sealer.seal_next(0), first=True)
        with monkeypatch.context() as patch:
            patch.setattr("kcachefs.core.seal_queue.time.monotonic", clock)
            assert not fs.sealer.is_pressing()
        assert fs.sealer.waiting() == 0
        assert not fs.sealer.is_pressing()


def test_a_file_that_grows_and_is_sealed_while_its_size_is_asked_for_keeps_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as fs:
        ino = write(fs, "triton/key/file", bytes(LARGE))

        def grow() -> None:
            fs.write(ino, LARGE, b"more")
            assert fs.sealer.seal(ino)

        with monkeypatch.context() as patch:
            patch.setattr("kcachefs.core.unsealed.os.fstat", Once(os.fstat, grow, first=False))
            fs.attributes(ino)
        assert fs.nodes.get(ino).content == Content.OBJECT
        assert fs.attributes(ino).size == LARGE + len(b"more")


def test_whoever_is_about_to_read_a_spool_file_gets_its_bytes_though_it_is_sealed_and_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as fs:
        content = os.urandom(LARGE)
        ino = write(fs, "triton/key/file", content)

        def seal() -> None:
            assert fs.sealer.seal(ino)
            fs.store.fold()  # which empties the spool file for the next one

        with monkeypatch.context() as patch:
            patch.setattr("kcachefs.core.files.os.pread", Once(os.pread, seal, first=True))
            assert fs.read(ino, 0, 4096) == content[:4096]


def test_a_file_that_joins_an_entry_is_not_evicted_with_it_before_the_kernel_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as fs:
        old = write(fs, "helion/kernel.old", b"content")
        fs.settle()
        entry, folder_ino, hold = fs.nodes.get(old).entry, find(fs, "helion"), fs.nodes.hold
        evict = threading.Thread(target=lambda: fs.evictor.evict(entry), daemon=True)

        def hold_late(ino: int) -> int:
            evict.start()
            if not owns_lock(fs):  # otherwise it would have to wait for us
                evict.join(PATIENCE)
            return hold(ino)

        with monkeypatch.context() as patch:
            patch.setattr(fs.nodes, "hold", hold_late)
            ino, _ = fs.create(ROOT, folder_ino, b"kernel.new", 0o644)
        evict.join(PATIENCE)
        fs.write(ino, 0, b"content")
        assert find(fs, "helion/kernel.new") == ino
        fs.forget(ino, 1)


def test_a_path_is_not_remembered_when_a_folder_in_it_moves_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as fs:
        ino, above = folder(fs, "inductor/ab"), find(fs, "inductor")
        write(fs, "inductor/ab/code.py", b"code")
        fs.namespaces.folder_moved()  # forget everything
        move = threading.Thread(target=lambda: rename(fs, "inductor/ab", "inductor/cd"), daemon=True)
        get = fs.nodes.get

        def get_and_move(wanted: int) -> object:
            node = get(wanted)
            if wanted == above and threading.current_thread() is not move and move.ident is None:
                move.start()
                if not owns_lock(fs):  # otherwise it would have to wait for us
                    move.join(PATIENCE)
            return node

        with monkeypatch.context() as patch:
            patch.setattr(fs.nodes, "get", get_and_move)
            fs.namespaces.path(ino, fs.nodes.get(ino))
        move.join(PATIENCE)
        assert fs.namespaces.path(ino, fs.nodes.get(ino)) == (above, (b"cd",))
