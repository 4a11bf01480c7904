"""`kcachefs fleet push` beside other publishers: dead ones, slow ones, and itself when it fails."""

from __future__ import annotations

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kcachefs.fleet.bucket_layout import Layout
from kcachefs.store import Options, Store
from tests.fleet.caches import ENTRIES, fill, key, packed
from tests.fleet.nodes import SCOPE, Node, bucket_folder
from tests.fleet.test_bucket_publishing import objects, publish_and_die
from tests.frameworks.commands import kcachefs
from tests.waiting import PATIENCE, until

LAYOUT = Layout(SCOPE)


class Pusher:
    """A store that is not mounted, and a bucket that is a folder."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.secret, self.public = key(base)
        self.url, self.root = bucket_folder(base), base / "bucket"
        fill(base / "caches", size=100)
        packed(base / "caches", base / "warm.kcp", self.secret)
        Store(base / "store", Options(create=True, background=False)).close()
        kcachefs("unpack", base / "warm.kcp", "--trust", self.public, "--store", base / "store")
        options = ("--key", self.secret, "--scope", SCOPE, "--level", "3", "--store", base / "store")
        self.arguments = ("fleet", "push", self.url, *options)

    def push(self, *options: str) -> subprocess.CompletedProcess[str]:
        return kcachefs(*self.arguments, *options, check=False)

    def claim(self, age: float) -> None:
        """Leave the claim of a node that was killed so many seconds ago."""
        publish_and_die(self.url, self.base / "dead", self.secret, self.base / "caches", 1)
        for name in objects(self.root, "claims"):
            os.utime(self.root / LAYOUT.claim(name), (time.time() - age,) * 2)


@pytest.fixture
def pusher(base: Path) -> Pusher:
    return Pusher(base)


def test_a_push_takes_over_the_claim_of_one_that_was_killed(pusher: Pusher) -> None:
    pusher.claim(age=61)
    done = pusher.push("--wait", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{ENTRIES} entries published")
    assert len(objects(pusher.root, "packs")) == 1


def test_a_push_that_leaves_entries_to_another_node_says_so_and_fails(pusher: Pusher) -> None:
    pusher.claim(age=-3600)
    told = pusher.push("--wait", "0", "--json")
    assert (told.returncode, len(json.loads(told.stdout)["waiting"])) == (1, ENTRIES)
    said = pusher.push("--wait", "0")
    assert (said.returncode, said.stderr.count("\n")) == (1, 1)
    assert f"{ENTRIES} entries not published: another node has claimed them" in said.stderr
    assert objects(pusher.root, "packs") == []


def test_a_push_waits_for_a_node_that_publishes_the_same(pusher: Pusher) -> None:
    pusher.claim(age=-3600)
    with ThreadPoolExecutor(1) as pool:
        pushing = pool.submit(pusher.push, "--wait", "600")
        until(lambda: any(name.startswith("clock-") for name in objects(pusher.root, "claims")), "it saw the claim")
        other = Node(pusher.base / "other", pusher.url, pusher.secret, patience=0.0)
        assert len(other.publish(pusher.base / "caches").packs) == 1
        done = pushing.result(PATIENCE)
    assert (done.returncode, "waiting for it" in done.stderr) == (0, True)
    assert done.stdout == f"0 entries published (0 B), {ENTRIES} were there already\n"


def test_a_push_that_fails_gives_its_claim_back(pusher: Pusher) -> None:
    (pusher.root / LAYOUT.root).mkdir(parents=True)
    in_the_way = pusher.root / LAYOUT.packs.rstrip("/")
    in_the_way.write_bytes(b"")
    failed = pusher.push("--wait", "0")
    assert (failed.returncode, failed.stderr.count("\n")) == (3, 1)
    in_the_way.unlink()
    assert objects(pusher.root, "claims") == []
    assert pusher.push("--wait", "0").returncode == 0


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit], ids=["Ctrl-C", "SIGTERM"])
def test_a_publisher_that_is_ended_gives_its_claim_back(base: Path, ending: type[BaseException]) -> None:
    fill(base / "caches", size=100)
    node = Node(base / "node", bucket_folder(base), key(base)[0])

    def end(seconds: float) -> None:
        assert len(objects(base / "bucket", "claims")) == 1
        raise ending

    node.claims._sleep = end
    with pytest.raises(ending):
        node.publish(base / "caches")
    assert objects(base / "bucket", "claims") == []


def test_a_publisher_that_fails_leaves_the_claim_of_another_alone(base: Path) -> None:
    fill(base / "caches", size=100)
    node = Node(base / "node", bucket_folder(base), key(base)[0])

    def lose(seconds: float) -> None:
        """As where the store ignores conditions: another node writes the same claim at the same moment."""
        (name,) = objects(base / "bucket", "claims")
        (base / "bucket" / LAYOUT.claim(name)).write_bytes(b"another")
        raise KeyboardInterrupt

    node.claims._sleep = lose
    with pytest.raises(KeyboardInterrupt):
        node.publish(base / "caches")
    assert len(objects(base / "bucket", "claims")) == 1
