"""Commands of a user on a mount of root: their own numbers and entries, counted when they ask, and nobody else's."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.scene import Outcome
from tests.cli.test_unprivileged import NOBODY, Visitor, among_own_mounts
from tests.cli.test_unprivileged import visitor as visitor
from tests.engines.callers import Identity, in_child

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]

ALICE = Identity(uid=42042, gid=42042)
WRITE = 'mkdir -p "$KCACHEFS_MOUNT/triton/$1" && head -c 5000 /dev/zero > "$KCACHEFS_MOUNT/triton/$1/add.cubin"'
READ = 'cat "$KCACHEFS_MOUNT/triton/$1/add.cubin" > /dev/null'


def on_a_mount_of_root(*options: str) -> Callable[[Callable[[Visitor], None]], Callable[[Visitor], None]]:
    """Mount as root, then run the test among mounts of its own, in which the visitor has the packages."""

    def decorate(test: Callable[[Visitor], None]) -> Callable[[Visitor], None]:
        @functools.wraps(test)
        def run(visitor: Visitor) -> None:
            os.chown(visitor.scene.runtime, 0, 0)
            visitor.environment["KCACHEFS_RUNTIME_DIR"] = str(visitor.home / "runtime")
            visitor.scene.mount(*options)
            among_own_mounts(test)(visitor)

        return run

    return decorate


def run_in(visitor: Visitor, script: str, *arguments: str) -> Outcome:
    """`kcachefs run --assert-warm` of a shell script, as the visitor."""
    place = str(visitor.scene.mountpoint)
    return visitor.run("run", "--assert-warm", "--mount", place, "--", "sh", "-c", script, "sh", *arguments)


def write_as(who: Identity | None, mount: Path, name: str) -> None:
    def write() -> None:
        folder = mount / "triton" / name
        folder.mkdir()
        (folder / "add.cubin").write_bytes(b"kernel" * 999)

    in_child(write, who)


def stats(visitor: Visitor, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(visitor.must("stats", "--json", *options))
    return found


def paths(visitor: Visitor, *options: str) -> list[str]:
    return [one["path"] for one in json.loads(visitor.must("ls", "--json", *options))]


@on_a_mount_of_root()
def test_a_user_gets_their_own_numbers_and_entries(visitor: Visitor) -> None:
    mount = visitor.scene.mountpoint
    place = ("--mount", str(mount))
    write_as(None, mount, "ROOTS")
    write_as(ALICE, mount, "ALICES")
    assert run_in(visitor, WRITE, "MINE").code == 1
    mine = stats(visitor, *place)
    assert (mine["total"]["entries"], mine["total"]["misses"], mine["total"]["hits"]) == (1, 1, 0)
    assert mine["total"]["plain_bytes"] == 5000
    assert mine["requests"] == {}
    assert paths(visitor, *place) == ["triton/MINE"]
    assert paths(visitor, *place, "triton", "--sort", "size") == ["triton/MINE"]
    assert paths(visitor, *place, "inductor") == []
    # Without --mount: the visitor has no mount and no store, and there is one mount for everybody, or several.
    visitor.environment["KCACHEFS_MOUNT"] = str(mount)
    assert paths(visitor) == ["triton/MINE"]
    visitor.run("evict", "triton/MINE").refused_with(6, str(mount), "somebody else's mount")
    visitor.scene.must("stats", "--json")
    everything = json.loads(visitor.scene.must("ls", "--json"))
    assert {one["path"] for one in everything} >= {"triton/MINE"}


@on_a_mount_of_root("--policy", "private")
def test_under_private_nothing_of_others_is_shown(visitor: Visitor) -> None:
    mount = visitor.scene.mountpoint
    place = ("--mount", str(mount))
    write_as(None, mount, "ROOTS")
    write_as(ALICE, mount, "ALICES")
    assert run_in(visitor, WRITE, "MINE").code == 1
    raw = visitor.must("ls", "--json", *place) + visitor.must("stats", "--json", *place)
    assert "MINE" in raw
    assert "ALICES" not in raw
    assert "ROOTS" not in raw
    assert str(ALICE.uid) not in raw
    assert {one["uid"] for one in json.loads(visitor.must("ls", "--json", *place))} == {NOBODY.uid}
    before = stats(visitor, *place)["store"]
    write_as(ALICE, mount, "ANOTHER")
    assert stats(visitor, *place)["store"] == before, "what others do changes nothing"


@on_a_mount_of_root()
def test_a_cold_start_is_not_warm_a_hit_on_anothers_entry_is_and_nothing_is_not(visitor: Visitor) -> None:
    mount = visitor.scene.mountpoint
    write_as(None, mount, "ROOTS")
    visitor.scene.must("stats", "--json")
    cold = run_in(visitor, WRITE, "MINE")
    assert cold.code == 1, cold
    assert "0 hits, 1 miss (0.0 % hits)" in cold.err
    assert "not warm: 1 entry had to be compiled" in cold.err
    own = run_in(visitor, READ, "MINE")
    assert own.code == 0, own
    assert "1 hit, 0 misses (100.0 % hits), 4.9 KiB served" in own.err
    others = run_in(visitor, READ, "ROOTS")
    assert others.code == 0, others
    assert "1 hit, 0 misses" in others.err
    nothing = run_in(visitor, "true")
    assert nothing.code == 1, nothing
    assert "0 hits, 0 misses" in nothing.err
    assert "nothing was counted; another user's mount" in nothing.err
    assert "use your own mount" in nothing.err


@on_a_mount_of_root()
def test_a_hit_on_what_another_user_has_just_written_counts(visitor: Visitor) -> None:
    """Its hits are written down with its first sealed file, so that file is sealed when the user asks."""
    mount = visitor.scene.mountpoint
    write_as(ALICE, mount, "FRESH")
    done = run_in(visitor, READ, "FRESH")
    assert done.code == 0, done
    assert "1 hit, 0 misses" in done.err


@on_a_mount_of_root()
def test_top_shows_a_user_their_own_and_says_so(visitor: Visitor) -> None:
    mount = visitor.scene.mountpoint
    write_as(ALICE, mount, "HERS")
    write_as(NOBODY, mount, "THEIRS")
    stats(visitor, "--mount", str(mount))
    text = visitor.must("top", "--once", mount)
    assert text.startswith(f"{mount}  served: your own entries only")
    assert "holds     1 entry · hit rate 0%" in text
    assert "HERS" not in text
