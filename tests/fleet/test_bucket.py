"""A bucket between nodes: what one publishes, another finds, fetches and checks."""

from __future__ import annotations

import os
from pathlib import Path

from kcachefs.fleet import packfile
from kcachefs.fleet.key_index import FOLDER, key_of_entry, keys_of_name
from tests.fleet.caches import ENTRIES, TIME, fill
from tests.fleet.nodes import Node, bucket_folder, secret_in


def test_what_one_node_publishes_another_finds_and_fetches(tmp_path: Path) -> None:
    url, secret = bucket_folder(tmp_path), secret_in(tmp_path)
    fill(tmp_path / "caches")
    published = Node(tmp_path / "one", url, secret).publish(tmp_path / "caches", compile_ms=5000)
    assert (len(published.packs), published.present, published.waiting) == (1, 0, [])
    two = Node(tmp_path / "two", url, secret)
    index = two.index
    (found,) = index.find_all(key_of_entry(b"triton", (b"KEY0",)))
    assert found.compile_ms == 5000
    path = two.bucket.fetch_pack(found)
    with packfile.opened(path, two.bucket.trusted) as pack:
        assert len(pack.manifest.entries) == ENTRIES
    path.unlink()
    assert sorted(os.listdir(tmp_path / "two")) == ["index"], "nothing else is left behind"
    again = two.publish(tmp_path / "caches")
    assert (again.packs, again.present) == ([], ENTRIES)


def test_a_missed_name_is_found_by_the_keys_of_its_entry_and_of_the_folders_above(tmp_path: Path) -> None:
    fill(tmp_path / "caches")
    node = Node(tmp_path / "one", bucket_folder(tmp_path), secret_in(tmp_path))
    node.publish(tmp_path / "caches")
    index = node.index

    def found(namespace: bytes, *path: bytes) -> set[int | None]:
        return {index.find(key) for key in keys_of_name(namespace, path)}

    assert found(b"triton", b"KEY1") == {0, None}
    assert found(b"inductor", b"ab") == {FOLDER, None}
    assert found(b"inductor", b"ab", b"cabc.py") == found(b"inductor", b"ab", b"cabc.so") == {0, None}
    assert found(b"inductor", b"ab", b"unknown.py") == found(b"triton", b"OTHER") == {None}
    assert found(b"triton", b"KEY1.lock") == found(b"triton", b"tmp.pid_1_2") == set(), "nobody shares those"


def test_how_long_compiling_took_is_read_off_the_files_if_nobody_says(tmp_path: Path) -> None:
    fill(tmp_path / "caches")
    for number in range(3):
        (file,) = (tmp_path / "caches" / "triton" / f"KEY{number}").glob("*.cubin")
        os.utime(file, ns=(TIME, TIME + number * 4 * 10**9))
    node = Node(tmp_path / "one", bucket_folder(tmp_path), secret_in(tmp_path))
    (reference,) = node.publish(tmp_path / "caches").packs
    assert reference.compile_ms == 8000
