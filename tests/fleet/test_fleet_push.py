"""`kcachefs fleet push` beside other publishers: dead ones, slow ones, and itself when it fails."""

from __future__ import annotations

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kcachefs.fleet import finding
from kcachefs.fleet.bucket_layout import Layout, day_of
from kcachefs.fleet.object_storage import Storage, Stored, open_storage
from kcachefs.fleet.publishing import Publisher
from kcachefs.fleet.renewing import _copy
from kcachefs.fleet.views import FolderView
from kcachefs.store import Options, Store
from tests.fleet.caches import ENTRIES, fill, key, packed
from tests.fleet.nodes import SCOPE, Node, bucket_folder
from tests.fleet.test_bucket_publishing import Counting, objects, publish_and_die
from tests.frameworks.commands import KCACHEFS, kcachefs
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


def test_the_next_command_removes_what_a_killed_push_left_and_nothing_else(pusher: Pusher, tmp_path: Path) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    environment = {**os.environ, "TMPDIR": str(place)}
    unlocked, file, link, store = strangers = [place / f"kcachefs-scratch-stranger{number}" for number in range(4)]
    unlocked.mkdir(0o700)
    file.write_bytes(b"")
    link.symlink_to(pusher.root)
    with Store(store, Options(background=False)):
        pass
    pusher.claim(age=-3600)
    waiting = [*KCACHEFS, *map(str, pusher.arguments), "--wait", "600"]
    with subprocess.Popen(waiting, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"waiting for it" in process.stderr.readline()
        (left,) = set(place.iterdir()) - set(strangers)
        (left / "folder").mkdir()
        (left / "folder" / "file").write_bytes(b"")
        kcachefs("fleet", "ls", pusher.url, "--trust", pusher.public, env=environment)
        assert (left / "folder" / "file").exists(), "the push still works there"
        process.kill()
    assert left.exists()
    kcachefs("fleet", "ls", pusher.url, "--trust", pusher.public, env=environment)
    assert sorted(place.iterdir()) == strangers
    assert (store / "lock").exists()
    assert pusher.root.exists()


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


def test_what_was_in_a_pack_that_is_gone_is_published_again(pusher: Pusher) -> None:
    assert pusher.push().returncode == 0
    (name,) = objects(pusher.root, "packs")
    (pusher.root / LAYOUT.packs / name).unlink()
    lost = json.loads(kcachefs("fleet", "status", pusher.url, "--trust", pusher.public, "--json").stdout)
    assert [one["lost_packs"] for one in lost["scopes"]] == [1]
    for claim in objects(pusher.root, "claims"):
        os.utime(pusher.root / LAYOUT.claim(claim), (time.time() - 61,) * 2)
    told = json.loads(pusher.push("--wait", "0", "--json").stdout)
    assert (len(told["packs"]), told["present"], told["lost"]) == (1, 0, 1)
    assert objects(pusher.root, "packs") == [name]
    reader = Node(pusher.base / "reader", pusher.url, pusher.secret)
    reader.bucket.fetch_pack(reader.index.packs[0]).unlink()
    again = pusher.push("--wait", "0")
    assert (again.returncode, again.stdout) == (0, f"0 entries published (0 B), {ENTRIES} were there already\n")


def test_a_push_asks_once_for_each_pack_and_finds_entries_that_an_older_one_holds(base: Path) -> None:
    url, secret = bucket_folder(base), key(base)[0]
    fill(base / "caches", size=100)
    past: Any = Counting(open_storage(url), -5 * 86400.0)
    Node(base / "past", past, secret).publish(base / "caches")
    counted: Any = Counted(open_storage(url))
    node = Node(base / "node", counted, secret)
    (old,), today = node.index.packs, day_of(time.time())
    _copy(node.bucket, old, today)
    (base / "bucket" / LAYOUT.pack(today, old.pack)).unlink()
    counted.heads.clear()
    publisher, view = Publisher(node.bucket, node.signer, node.claims), FolderView(base / "caches")
    quiet: Any = {"waits": print, "level": 3, "say": print, "progress": lambda count: None}
    done = publisher.publish_patiently(view, finding.find(view, [], print), wait=0, **quiet)
    assert (done.packs, done.present, done.lost) == ([], ENTRIES, 1)
    assert counted.heads == [LAYOUT.pack(day, old.pack) for day in (today, old.day)]


class Counted:
    """A storage that notes which objects it is asked about."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.heads: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def head(self, key: str) -> Stored:
        self.heads.append(key)
        return self._storage.head(key)
