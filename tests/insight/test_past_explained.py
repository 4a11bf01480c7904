"""Entries that were here before: evicted by the quota, damaged; and what a tenant's explanation never tells."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from kcachefs.insight.artefacts import tree_of
from kcachefs.insight.explaining import Explainer
from kcachefs.insight.index import Index
from kcachefs.insight.mounted import MountedCache
from kcachefs.insight.telling import in_full
from kcachefs.mounts.insight_reports import InsightReports, asking_folder
from kcachefs.store.records import TENANTS
from tests.cli.scene import Scene, scene
from tests.core.policies.mounts import ALICE, BOB, as_user, mounted, needs_root
from tests.engines.callers import Identity
from tests.engines.mounting import Mount
from tests.engines.test_damage import flip_a_bit
from tests.insight.test_explain_command import bring, explained, key_of
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.mount


@pytest.fixture(name="tally")
def a_kernel(triton_changes: Path, tmp_path: Path) -> Path:
    """A folder with one real kernel in it, and a file that does not compress."""
    key = key_of(triton_changes / "base", "tally")
    shutil.copytree(triton_changes / "base" / key, tmp_path / "only" / key)
    (tmp_path / "only" / key / "noise.bin").write_bytes(os.urandom(2 << 20))
    return tmp_path / "only"


def listed(place: Scene) -> list[str]:
    place.settle()
    return [one["path"] for one in json.loads(place.must("ls", "--json"))]


def only_cause(place: Scene) -> dict[str, Any]:
    (one,) = explained(place)["entries"]
    cause: dict[str, Any] = one["causes"][0]
    return cause


def test_what_the_quota_evicted_is_called_that(tally: Path) -> None:
    with scene() as place:
        place.mount("--grace", "0")
        bring(place, tally)
        assert len(listed(place)) == 1
        place.must("set", place.mountpoint, "--max-size", "1M")
        until(lambda: not listed(place), "the quota evicted it")
        place.must("set", place.mountpoint, "--max-size", "1G")
        bring(place, tally)
        cause = only_cause(place)
        assert cause["kind"] == "evicted"
        assert cause["words"].endswith("it was evicted: to make room (quota)")
        assert cause["certain"]


def test_what_was_damaged_is_called_that(tally: Path) -> None:
    with scene() as place:
        place.mount()
        bring(place, tally)
        (path,) = listed(place)
        place.umount()
        flip_a_bit(place.store, next(tally.rglob("noise.bin")).read_bytes())
        place.mount()
        file = place.mountpoint / path / "noise.bin"
        # In processes of their own: what is below one that uses the mount is part of its run.
        read = subprocess.run(["cat", str(file)], capture_output=True, timeout=PATIENCE)
        assert b"Input/output error" in read.stderr
        until(lambda: subprocess.run(["test", "-e", str(file)]).returncode == 1, "it is gone")
        bring(place, tally)
        cause = only_cause(place)
        assert cause["kind"] == "damaged"
        assert "its bytes were found damaged" in cause["words"]
        assert cause["certain"]


@needs_root
@pytest.mark.parametrize("policy", ["publish", "private"])
def test_an_explanation_never_mentions_what_another_user_made(
    policy: str, triton_changes: Path, tmp_path: Path
) -> None:
    base, changed = (sorted((triton_changes / name).iterdir()) for name in ("base", "bins"))
    copied = {who.uid: tmp_path / str(who.uid) for who in (ALICE, BOB)}
    for folder in copied.values():
        folder.mkdir()
        folder.chmod(0o777)
    with mounted("direct", "--allow-other", "--policy", policy) as mount:
        copy(mount, ALICE, base)
        copy(mount, BOB, changed)
        for who, own, others in ((BOB, changed, base), (ALICE, base, changed)):
            said = as_user(who, lambda who=who: explanation(mount, copied[who.uid]))  # type: ignore[misc]
            assert {one.name for one in own} <= set(said.replace("/", " ").split())
            for one in others:
                assert one.name not in said
            assert f"{ALICE.uid if who is BOB else BOB.uid}" not in said
        assert "new: no kernel of that name was here before" in as_user(
            BOB, lambda: explanation(mount, copied[BOB.uid])
        )


def test_a_users_own_tree_is_where_the_store_has_it() -> None:
    assert tree_of(f"{TENANTS.decode()}/1000/triton/KEY") == f"{TENANTS.decode()}/1000/"


def copy(mount: Mount, who: Identity, folders: list[Path]) -> None:
    """A run of a user that makes these entries, as Triton does."""
    files = {one: {file.name: file.read_bytes() for file in one.iterdir()} for one in folders}

    def make() -> None:
        for folder, contents in files.items():
            target = mount.mountpoint / "triton" / folder.name
            target.mkdir()
            for name, content in contents.items():
                (target / name).write_bytes(content)

    as_user(who, make)


def explanation(mount: Mount, folder: Path) -> str:
    """All that `explain --since 1h --all` tells the user who asks."""
    cache = MountedCache(InsightReports(asking_folder(mount.mountpoint)), str(mount.mountpoint))
    explainer = Explainer(cache, Index(cache.place, folder))
    told = [line for one in explainer.explain(explainer.made_since(0.0)) for line in in_full(one)]
    return "\n".join(told)
