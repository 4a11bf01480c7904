"""Triton of two users on one mount: sharing, kept apart. test_inductor.py tries torch where nothing can be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.core.policies.mounts import ALICE, BOB, needs_root, settled
from tests.engines.callers import Child
from tests.engines.mounting import Mount, temporary_folder
from tests.frameworks.programs import PATIENCE, TRITON
from tests.frameworks.tenants import as_tenant, ran
from tests.frameworks.worlds import World

pytestmark = [pytest.mark.mount, needs_root]

KERNELS = 4


@contextmanager
def world(*options: str) -> Iterator[World]:
    with temporary_folder() as base, Mount(base / "mount", base / "store", "direct", *options) as mount:
        (base / "programs").mkdir()
        yield World(mount, base / "programs")


def test_what_one_user_published_another_finds() -> None:
    with world("--policy", "publish") as made:
        cold = ran(made, ALICE, TRITON)
        assert cold["compiled"] == KERNELS
        assert ran(made, BOB, TRITON) == {"compiled": 0, "cubins": cold["cubins"]}


def test_two_users_who_compile_the_same_at_once_both_succeed() -> None:
    with world("--policy", "publish") as made:
        with Child(as_tenant(made, ALICE, TRITON)) as one, Child(as_tenant(made, BOB, TRITON)) as two:
            assert one.result(PATIENCE)["cubins"] == two.result(PATIENCE)["cubins"]
        assert ran(made, BOB, TRITON)["compiled"] == 0
        left = [name for _, _, names in os.walk(made.folder("triton")) for name in names if name.startswith("tmp")]
        assert left == []


def test_private_users_compile_for_themselves_and_share_the_bytes() -> None:
    with world("--policy", "private") as made:
        cold = ran(made, ALICE, TRITON)
        assert ran(made, BOB, TRITON) == cold, "it has to compile them all again"
        assert ran(made, BOB, TRITON) == {"compiled": 0, "cubins": cold["cubins"]}
        stats = settled(made.mount)
        assert stats.total.entries == 2 * KERNELS
        assert stats.store.dedup_ratio == 2.0, "at the same path the same kernels are the same bytes"
