"""Bytes saved: one number wherever it is shown, to which a file that is not sealed yet adds nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from kcachefs.core.report import saved
from kcachefs.session import account
from tests.core.policies.mounts import ALICE, as_user, mounted, needs_root, settled, triton_put
from tests.core.trees import opened, write
from tests.frameworks.commands import kcachefs
from tests.waiting import until


def test_a_file_counts_with_what_it_takes_until_it_is_sealed(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        write(fs, "triton/KEY/add.cubin", b"kernel" * 100_000)
        fs.settle()
        before = fs.statistics().store
        assert before.bytes_saved > 500_000
        write(fs, "triton/NEW/add.cubin", os.urandom(2_000_000))
        during = fs.statistics().store
        assert during.unsealed_bytes >= before.unsealed_bytes + 2_000_000
        assert during.used_bytes >= before.used_bytes + 2_000_000
        # The journal grows by a few records, which is all that is lost.
        assert before.bytes_saved - 50_000 < during.bytes_saved <= before.bytes_saved


def test_nothing_is_saved_by_less_than_nothing() -> None:
    assert (saved(10, 4), saved(4, 10)) == (6, 0)


@pytest.mark.mount
def test_stats_status_run_and_metrics_show_the_same_number() -> None:
    with mounted("direct") as mount:
        for name in ("ONE", "TWO"):
            triton_put(mount.mountpoint / "triton" / name, "add.cubin", b"kernel" * 500_000)
        assert settled(mount).store.bytes_saved > 5_900_000, "both are compressed, and they are stored once"
        place = str(mount.mountpoint)

        def shown() -> list[int]:
            metrics = (mount.mountpoint / ".kcachefs" / "metrics").read_text()
            rows = json.loads(kcachefs("status", "--json").stdout)["mounts"]
            return [
                json.loads(kcachefs("stats", "--mount", place, "--json").stdout)["store"]["bytes_saved"],
                *[row["bytes_saved"] for row in rows if row["mountpoint"] == place],
                *map(int, re.findall(r"^kcachefs_store_saved_bytes (\d+)$", metrics, re.MULTILINE)),
                account.read(mount.mountpoint).bytes_saved,
            ]

        # The catalog may grow by a page between two looks.
        until(lambda: len(shown()) == 4 and len(set(shown())) == 1, "all show the same")
        assert re.search(r"holds .* saved", kcachefs("status").stdout)


@needs_root
@pytest.mark.mount
def test_a_users_own_number_leaves_out_what_is_not_sealed() -> None:
    with mounted("direct") as mount:

        def look() -> tuple[int, int, int]:
            mine = json.loads((mount.mountpoint / ".kcachefs" / "settled.json").read_bytes())["store"]
            return mine["bytes_saved"], mine["used_bytes"], mine["referenced_bytes"]

        def write_and_look() -> tuple[int, int, int]:
            triton_put(mount.mountpoint / "triton" / "KEY", "add.cubin", b"kernel" * 100_000)
            return look()

        assert as_user(ALICE, look) == (0, 0, 0)
        number, used, plain = as_user(ALICE, write_and_look)
        assert plain == 600_000
        assert number == plain - used > 500_000
