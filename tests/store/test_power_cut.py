"""The power of a mount in use is cut: the next mount serves nothing wrong, no part of an entry, all that was synced."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disks import need_root
from tests.store import power_cut

ROUNDS = 5


@need_root
@pytest.mark.mount
def test_what_a_mount_finds_after_a_power_cut_is_right(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    for findings in power_cut.rounds(ROUNDS, seed, tmp_path):
        assert findings.are_good, findings
    assert findings.rounds == ROUNDS
    assert findings.must_be_there >= ROUNDS * power_cut.SYNCED_MIN
    assert findings.judged >= findings.must_be_there
