"""Entries that were here before: evicted by the quota, damaged; and what a tenant's explanation never tells."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
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
from tests.pythons import needs_torch
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


WRITES = """
import os, shutil, sys
sys.stdin.read()
source, target, copy = sys.argv[1:]
for folder, _, names in os.walk(source):
    to = os.path.join(target, os.path.relpath(folder, source))
    os.makedirs(to, exist_ok=True)
    for name in names:
        getattr(shutil, copy)(os.path.join(folder, name), os.path.join(to, "tmp.pid_1"))
        os.replace(os.path.join(to, "tmp.pid_1"), os.path.join(to, name))
"""


@needs_torch
def test_what_several_runs_compile_at_once_was_not_there_before(
    triton_changes: Path, inductor_changes: Path, tmp_path: Path
) -> None:
    """As the ranks of a training do that begin with a new model. One that compiles it much later did not take it."""
    both = tmp_path / "both"
    shutil.copytree(triton_changes / "base", both / "triton")
    shutil.copytree(inductor_changes / "base", both / "inductor")
    late = shutil.copytree(both, tmp_path / "late")
    for file in late.rglob("*"):
        os.utime(file, (time.time() + 3600,) * 2)

    def rank(place: Scene, folder: Path, copy: str = "copy2") -> subprocess.Popen[str]:
        """A process that has begun, and writes when it is told to: files as old as those there, or as of now."""
        command = [sys.executable, "-c", WRITES, str(folder), str(place.mountpoint), copy]
        return subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    with scene() as place:
        place.mount()
        told = []
        # The other two have begun before the first has finished anything.
        ranks = [rank(place, late), rank(place, both), rank(place, both, "copyfile")]
        for one in reversed(ranks):
            one.communicate(timeout=PATIENCE)
            assert one.returncode == 0
            told.append([(e["kind"], e["causes"][0]["kind"], len(e["causes"])) for e in explained(place)["entries"]])
            if one is ranks[1]:
                assert "several processes compiled it at once" in place.must("explain", "--all")
        first, at_once, later = told
        assert {kind for kind, _, _ in first} == {"graph", "kernel"}
        assert {cause for _, cause, _ in first} == {"new"}
        assert at_once == [(kind, cause, causes + 1) for kind, cause, causes in first]
        assert {cause for _, cause, _ in later} <= {"damaged", "type"}
        assert [kind for kind, _, _ in later] == [kind for kind, _, _ in first]


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
