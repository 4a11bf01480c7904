"""Four users with quotas, one of whom does everything at once to use up what is not theirs."""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests import forked_daemons
from tests.core.policies.mounts import (
    ALICE,
    BOB,
    as_user,
    asked,
    each_engine,
    mounted,
    needs_root,
    publish,
    replace_worker,
    settled,
)
from tests.engines.callers import Child, Identity
from tests.engines.mounting import Mount
from tests.waiting import until

CAROL, MALLORY = Identity(uid=42062, gid=42062), Identity(uid=42072, gid=42072)
MODEST = {ALICE: b"alice", BOB: b"bob", CAROL: b"carol"}
MIB = 1 << 20
pytestmark = needs_root

Attack = Callable[[Path, int], None]
kept: list[int] = []


def _write(path: Path, size: int = 60_000) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, os.urandom(size))
    finally:
        os.close(descriptor)


def _lock(folder: Path, number: int) -> None:
    _write(folder / f"m{number}.lock")


def _temporary(folder: Path, number: int) -> None:
    _write(folder / f".{number}.1.tmp")


def _unlinked(folder: Path, number: int) -> None:
    path = folder / f"m{number}.py"
    kept.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o666))
    path.unlink()
    os.write(kept[-1], os.urandom(60_000))
    if len(kept) > 500:
        os.close(kept.pop(0))


def _hole(folder: Path, number: int) -> None:
    path = folder / f"m{number}.hole.lock"
    path.touch()
    os.truncate(path, 300_000 if number % 2 else 2 * MIB)


def _allocation(folder: Path, number: int) -> None:
    with open(folder / f"m{number}.large.lock", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 300_000 if number % 2 else 2 * MIB)


def _symlink(folder: Path, number: int) -> None:
    os.symlink("x" * 4000, folder / f"link{number}")


def _empty(folder: Path, number: int) -> None:
    (folder / f"m{number}.empty").touch(exist_ok=False)


def _folder(folder: Path, number: int) -> None:
    (folder / f"folder{number}").mkdir()


def _link(folder: Path, number: int) -> None:
    (folder / "mine.lock").touch()
    os.link(folder / "mine.lock", folder / f"name{number}.lock")


def _entry(folder: Path, number: int) -> None:
    publish(folder / f"m{number}" / "kernel.cubin", os.urandom(60_000))


ATTACKS: list[Attack] = [
    _lock,
    _temporary,
    _unlinked,
    _hole,
    _allocation,
    _symlink,
    _empty,
    _folder,
    _link,
    _entry,
]
ROUNDS = 20_000
"""Tries of each attack at most; the quota ends them all much earlier."""
TRIES_WHEN_FULL = 20
"""How often each attack on a store is tried after that was full, unless it is refused before."""
HASTY = {"kcachefs.core.eviction.CERTAIN_SECONDS": 1.0}
"""The evictor is sure sooner that nothing can be evicted: refusals wait for that."""
REFUSALS = (errno.EDQUOT, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSPC)


def _shared() -> memoryview:
    """Numbers that all processes see: whether it is enough, and how often each attack was tried."""
    return memoryview(mmap.mmap(-1, 8 * (1 + len(ATTACKS)))).cast("Q")


def _until_refused(
    attack: Attack, folder: Path, enough: memoryview | None = None, place: int = 1, rounds: int = ROUNDS
) -> int:
    """How often it went well, until it was refused, or the first number of `enough` was set where it never is."""
    for number in range(rounds):
        if enough is not None:
            enough[place] = number
            if enough[0]:
                return number
        try:
            attack(folder, number + os.getpid() * ROUNDS)
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            return number
    return rounds


def _hold_open(mountpoint: Path) -> None:
    """Open whatever others have, and keep it; and write into their locks."""
    for number in itertools.count():
        for path in [*mountpoint.glob("triton/*/*"), *mountpoint.glob("inductor/*.lock")]:
            with contextlib.suppress(OSError):
                kept.append(os.open(path, os.O_RDONLY))
                if path.suffix == ".lock":
                    _write(path, 200_000)
        while len(kept) > 300:
            os.close(kept.pop(0))
        (mountpoint / f"inductor/.{number}.tmp").touch()


@contextlib.contextmanager
def _everything_at_once(mount: Mount, engine: str, enough: memoryview) -> Iterator[list[Child[int]]]:
    folder = mount.mountpoint / "inductor"
    attacks = [attack for attack in ATTACKS if engine == "direct" or attack is not _allocation]
    with contextlib.ExitStack() as running:
        running.enter_context(Child(lambda: _hold_open(mount.mountpoint), MALLORY))
        yield [
            running.enter_context(Child(partial(_until_refused, attack, folder, enough, place), MALLORY))
            for place, attack in enumerate(attacks, 1)
        ]


def _put(mount: Mount, name: bytes, numbers: range, size: int) -> None:
    for number in numbers:
        publish(mount.mountpoint / "triton" / f"{name.decode()}{number}" / "kernel.cubin", _content(name, number, size))


def _content(name: bytes, number: int, size: int) -> bytes:
    """Bytes that do not shrink, and are the same at each call."""
    return random.Random(name + b"%d" % number).randbytes(size)


def _left(mount: Mount, name: bytes, numbers: range, size: int) -> list[int]:
    """Which of these entries are there, whole."""
    folder = mount.mountpoint / "triton"
    found = []
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):
            data = (folder / f"{name.decode()}{number}" / "kernel.cubin").read_bytes()
            assert data == _content(name, number, size)
            found.append(number)
    return found


def _held(mount: Mount, who: Identity) -> int:
    def ask() -> int:
        state = os.statvfs(mount.mountpoint)
        return (state.f_blocks - state.f_bfree) * state.f_frsize

    return as_user(who, ask)


@each_engine
def test_one_who_does_everything_at_once_stays_within_the_quota_and_the_others_keep_theirs(engine: str) -> None:
    options = ("--max-size", "96MiB", "--max-size-per-uid", "8MiB", "--grace", "0")
    enough = _shared()
    # Alice waits for probes of what the attacker has open.
    hasty = {**HASTY, "kcachefs.core.probing.PROBE_SECONDS": 0.1}
    with forked_daemons.constants(hasty), mounted(engine, *options) as mount:
        for who, name in MODEST.items():
            as_user(who, partial(_put, mount, name, range(3), MIB))
            as_user(who, lambda: (mount.mountpoint / "inductor" / f"{os.getuid()}.lock").touch(), umask=0)
        with _everything_at_once(mount, engine, enough) as attackers:
            # Alice goes on, to far above her quota, and must lose only her own; the attacker has all of it open.
            as_user(ALICE, lambda: _put(mount, b"alice", range(3, 16), MIB))
            enough[0] = 1
            went = [attacker.result() for attacker in attackers]
            assert sum(went) > 50, "nobody attacked"
            assert _held(mount, MALLORY) <= 8 * MIB
            assert _held(mount, ALICE) <= 8 * MIB
            for who, name in {BOB: b"bob", CAROL: b"carol"}.items():
                assert _left(mount, name, range(3), MIB) == [0, 1, 2]
                as_user(who, partial(_put, mount, name, range(3, 6), MIB))
                assert _left(mount, name, range(6), MIB) == list(range(6))
        left = _left(mount, b"alice", range(16), MIB)
        assert 15 in left, "what she wrote last"
        assert settled(mount).store.used_bytes < 96 * MIB
        until(lambda: _held(mount, ALICE) <= 8 * MIB, "she is within her quota")


@each_engine
def test_in_a_full_store_only_those_above_an_equal_part_lose_entries(engine: str) -> None:
    options = ("--max-size", "28MiB", "--max-size-per-uid", "20MiB", "--grace", "0")
    # A write that finds no room waits for seconds, not for half a minute: only those of the attacker find none.
    impatient = {**HASTY, "kcachefs.core.room.WAIT_WHEN_FULL_SECONDS": 5.0}
    enough = _shared()
    with forked_daemons.constants(impatient), mounted(engine, *options) as mount:
        for who, name in MODEST.items():
            as_user(who, partial(_put, mount, name, range(4), MIB))
        settled(mount)
        with _everything_at_once(mount, engine, enough) as attackers:
            until(lambda: asked(mount, "stats")["store"]["used_bytes"] > 0.95 * 28 * MIB, "the store is full")
            before = enough.tolist()

            def each_has_gone_on() -> bool:
                tries = zip(attackers, before[1:], enough.tolist()[1:], strict=False)
                return all(one.is_ready(0) or now >= then + TRIES_WHEN_FULL for one, then, now in tries)

            until(each_has_gone_on, "each attack was refused, or went on in a full store")
            enough[0] = 1
            for attacker in attackers:
                attacker.result()
            for name in MODEST.values():
                assert _left(mount, name, range(4), MIB) == list(range(4))
        assert settled(mount).store.used_bytes < 28 * MIB * 1.25
        # Now that nobody has theirs open, only whose they are keeps them.
        as_user(MALLORY, lambda: _until_refused(_entry, mount.mountpoint / "inductor", rounds=100))
        for name in MODEST.values():
            assert _left(mount, name, range(4), MIB) == list(range(4))


@pytest.mark.mount
def test_the_accounts_are_the_same_after_a_worker_died() -> None:
    with forked_daemons.constants(HASTY), mounted("direct", "--max-size-per-uid", "8MiB") as mount:
        for who, name in MODEST.items():
            as_user(who, partial(_put, mount, name, range(2), MIB))
        as_user(MALLORY, lambda: _until_refused(_lock, mount.mountpoint / "inductor"))
        settled(mount)
        before = [_held(mount, who) for who in (*MODEST, MALLORY)]
        replace_worker(mount)
        assert [_held(mount, who) for who in (*MODEST, MALLORY)] == before
