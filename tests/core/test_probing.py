"""Probing: what the kernel is told, and when."""

from __future__ import annotations

import time
from pathlib import Path

from kcachefs.core.probing import PROBE_SECONDS, Probed, Prober
from tests.core.test_nodes import Told, missed
from tests.core.trees import find, opened, write


def test_each_name_is_told_however_long_the_first_look_takes(tmp_path: Path) -> None:
    """After a takeover the kernel is asked for each inode."""
    with opened(tmp_path / "store") as fs:
        write(fs, "triton/KEY/kernel.ptx", b"content")
        key, file, folder = (find(fs, path) for path in ("triton/KEY", "triton/KEY/kernel.ptx", "triton"))
        gone: list[tuple[int, bytes]] = []
        prober = Prober(fs.nodes, lambda parent, name: gone.append((parent, name)))

        def is_known(ino: int) -> bool:
            time.sleep(1.1 * PROBE_SECONDS)
            return (key, b"kernel.ptx") not in gone

        members = [(key, folder, b"KEY"), (file, key, b"kernel.ptx")]
        assert not prober.probe([Probed({key}, [(folder, b"KEY")], {file}, lambda: members)], is_known)
        assert gone == [(folder, b"KEY"), (key, b"kernel.ptx")]


def test_a_folder_is_told_in_a_later_probe_and_once_no_file_is_held(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        write(fs, "triton/KEY/below/file", b"content")
        paths = ("triton", "triton/KEY", "triton/KEY/below", "triton/KEY/below/file")
        top, key, below, file = (find(fs, path) for path in paths)
        gone: list[tuple[int, bytes]] = []
        prober = Prober(fs.nodes, lambda parent, name: gone.append((parent, name)))
        members = [(key, top, b"KEY"), (below, key, b"below"), (file, below, b"file")]

        def told(*held: int) -> list[tuple[int, bytes]]:
            gone.clear()
            thing = Probed({key}, [(top, b"KEY")], {key, below, file}, lambda: members)
            assert prober.probe([thing], lambda ino: ino in held)
            return gone[1:]

        assert told(key, below) == [], "somebody may work there"
        assert told(key, below, file) == [(below, b"file")]
        assert told(key, below) == [(top, b"KEY"), (key, b"below")]


def test_a_miss_is_not_remembered_in_a_temporary_folder_that_was_probed(tmp_path: Path) -> None:
    told = Told()
    with opened(tmp_path / "store", kernel=told) as fs:
        write(fs, "triton/KEY/tmp.pid_1_x/below/file", b"content")
        folders = [find(fs, f"triton/KEY/tmp.pid_1_x{path}") for path in ("", "/below")]
        for folder in folders:
            fs.hold(folder)
        fs.reaper.seconds = fs.reaper.unknown_seconds = -1.0
        assert fs.reaper.reap() == 0, "somebody works there"
        told.gone.clear()
        for folder in folders:
            missed(fs, folder)
        assert told.gone == [(folder, b"missing") for folder in folders]
        for folder in folders:
            fs.forget(folder, 1)
        assert fs.reaper.reap() == 1
