"""Bytes of files, seen by one thread while another moves them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.core.trees import find, folder, opened

CONTENT = b"content" * 20


@pytest.mark.usefixtures("hasty_threads")
def test_whoever_reads_sees_all_of_a_file_while_it_is_sealed_and_unsealed(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        parent = folder(fs, "triton/key")
        fs.create(parent, b"file", 0o644, 0, 0)
        ino = find(fs, "triton/key/file")
        fs.write(ino, 0, CONTENT)
        stop = threading.Event()
        seen: list[object] = []

        def read() -> None:
            while not stop.is_set():
                size, content = fs.attributes(ino).size, fs.read(ino, 0, 1000)
                if (size, content) != (len(CONTENT), CONTENT):
                    seen.append((size, content))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(200):
                fs.files.seal(ino)
                fs.write(ino, 0, CONTENT[:1])  # brings it back from the objects
        finally:
            stop.set()
            reader.join()
        assert seen == []
        fs.forget(ino, 1)
