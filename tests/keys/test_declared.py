"""Dependencies that are declared count by what they are when the key is made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kcachefs.errors import UsageError
from kcachefs.keys import env, file, hash_depends, hash_value, version


def test_a_variable_counts_by_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for value in ("1", "2", "", None):
        if value is None:
            monkeypatch.delenv("KCACHEFS_TEST")
        else:
            monkeypatch.setenv("KCACHEFS_TEST", value)
        seen.append((hash_depends([env("KCACHEFS_TEST")]), hash_value(env("KCACHEFS_TEST"))))
    assert len(set(seen)) == 4
    assert len({one for one, _ in seen}) == len({two for _, two in seen}) == 4


def test_a_file_counts_by_its_content_and_its_name_and_not_by_where_it_lies(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "table.csv").write_text("1")
    one, two = (hash_depends([file(tmp_path / folder / "table.csv")]) for folder in ("one", "two"))
    assert one == two
    (tmp_path / "two" / "table.csv").write_text("2")
    assert hash_depends([file(tmp_path / "two" / "table.csv")]) != one
    (tmp_path / "one" / "table.csv").rename(tmp_path / "one" / "other.csv")
    assert hash_depends([file(tmp_path / "one" / "other.csv")]) != one
    assert hash_depends([file(tmp_path / "one" / "table.csv")]) != one


def test_a_file_rewritten_with_its_old_times_counts(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("1")
    os.utime(path, ns=(0, 0))
    before = hash_depends([file(path)])
    assert hash_depends([file(path)]) == before
    path.write_text("2")
    os.utime(path, ns=(0, 0))
    assert hash_depends([file(path)]) != before


def test_a_folder_counts_by_all_that_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "data" / "inner").mkdir(parents=True)
    before = hash_depends([file(tmp_path / "data")])
    assert hash_depends([file(f"{tmp_path / 'data'}/")]) == before
    (tmp_path / "data" / "inner" / "a").write_text("1")
    assert hash_depends([file(tmp_path / "data")]) != before


def test_a_distribution_counts_by_its_version() -> None:
    keys = [hash_depends([version(name)]) for name in ("blake3", "pytest", "is-not-installed")]
    assert len(set(keys)) == 3
    assert hash_depends([version("blake3")]) == keys[0]


def test_the_order_and_other_values_count() -> None:
    assert hash_depends([env("A"), env("B")]) != hash_depends([env("B"), env("A")])
    assert hash_depends([env("A"), 1]) != hash_depends([env("A"), 2])
    assert hash_depends([]) == hash_depends(())


@pytest.mark.parametrize("wrong", [lambda: env(""), lambda: env("A=B"), lambda: version(""), lambda: hash_depends("A")])
def test_what_declares_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError):
        wrong()
