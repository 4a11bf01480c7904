"""Random requests of several users under every policy, with every bit that the kernel may set: what is promised holds.

A model of the kernel stands between the users and the engine: it walks paths, keeps the names that it was told for all
users alike, and checks modes as `default_permissions` does. So no request comes that a real user could not cause, and
whatever such requests can do to others, they do.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import select
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kcachefs.core import Filesystem, FsOptions, probing, room
from kcachefs.core.kernel import Kernel as CoreKernel
from kcachefs.core.limits import Limits
from kcachefs.core.sharing import Sharing
from kcachefs.engines import protocol as p
from kcachefs.engines.direct import DirectEngine
from kcachefs.engines.protocol import Op
from kcachefs.store import Store, fsck
from kcachefs.store.inode_numbers import LOCK_BASE, LOCK_END, ROOT_INO
from tests.engines.test_protocol import HEADER, Line

STEPS = 3000
USERS = (1000, 2000, 3000)
WRITER = 4000
"""Who writes the base, or into a read-only mount."""
FOLDERS = (b"triton", b"inductor", b"K1", b"K2", b"tmp.d", b"locks")
NAMES = (b"k.cubin", b"a.py", b".1.1.tmp", b".2.1.tmp", b"x.lock", b"tmp.f", b"K3", b"locks", b"ccache.conf")
PRYING = (b".tenants", b".shared", b".kcachefs", b"1000", b"2000", b"4000", b"..", b"stats.json")
KILL_SUIDGID = 1 << 2
"""In the flags of a WRITE; the same for a SETATTR is bit 11, and bit 0 of the flags of a CREATE or OPEN."""
SETATTR_KILL_SUIDGID = 1 << 11
RENAME_FLAGS = (0, 0, 0, 1, 2)

SHARINGS = {
    "shared": Sharing(),
    "publish": Sharing(policy="publish"),
    "private": Sharing(policy="private"),
    "base": Sharing(policy="private", base=True, writer_uids=(WRITER,)),
    "read-only": Sharing(policy="read-only", writer_uids=(WRITER,)),
}


@dataclass
class Seen:
    """What the kernel was told of an inode."""

    ino: int
    mode: int
    uid: int
    gid: int

    def allows(self, uid: int, want: int) -> bool:
        bits = self.mode >> 6 if uid == self.uid else self.mode >> 3 if uid == self.gid else self.mode
        return bits & want == want

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)


@dataclass
class Kernel:
    """The kernel's caches, and the users who walk through them."""

    line: Line
    seen: dict[int, Seen] = field(default_factory=dict)
    names: dict[tuple[int, bytes], int] = field(default_factory=dict)
    lookups: dict[int, int] = field(default_factory=dict)
    resends: int = 0
    errors: dict[int, int] = field(default_factory=dict)

    def ask(self, uid: int, opcode: int, node: int, body: bytes = b"") -> bytes | None:
        """Send a request, and some of them again, as to another worker; None when it was refused."""
        self.line.caller = (uid, uid, 0)
        number, said = self.line.ask(opcode, node, body)
        if number:
            self.errors[number] = self.errors.get(number, 0) + 1
            assert number != errno.EIO, (Op(opcode).name, node)
            return None
        return said

    def ask_again(self, uid: int, opcode: int, node: int, body: bytes) -> bytes:
        """The last request, with the bit that says that it is sent again: its effect must not double."""
        unique = self.line._unique | p.RESENT
        header = p.IN_HEADER.pack(HEADER + len(body), opcode, unique, node, uid, uid, 0, 0, 0)
        self.line.engine.feed(header + body)
        assert select.select([self.line.kernel], [], [], 60)[0]
        number, answered, said = self.line._receive()
        assert (number, answered) == (0, unique), Op(opcode).name
        self.resends += 1
        return said

    def note(self, said: bytes) -> Seen | None:
        """Take in the answer to a lookup or a creation."""
        fields = p.ENTRY.unpack_from(said)
        if fields[0] == 0:
            return None
        found = Seen(fields[0], fields[15], fields[17], fields[18])
        self.seen[found.ino] = found
        self.lookups[found.ino] = self.lookups.get(found.ino, 0) + 1
        return found

    def walk(self, uid: int, path: tuple[bytes, ...], depth: int = 0) -> Seen | None:
        """Where a path leads a user, through the names that anybody looked up before."""
        at = self.root()
        for name in path:
            if not at.is_dir or not at.allows(uid, 1):
                return None
            known = self.names.get((at.ino, name))
            above = at
            if known is not None and known in self.seen:
                at = self.seen[known]
            else:
                said = self.ask(uid, Op.LOOKUP, at.ino, name + b"\0")
                found = self.note(said) if said is not None else None
                if found is None:
                    return None
                at = found
                if p.ENTRY.unpack_from(said or b"")[2]:
                    self.names[above.ino, name] = at.ino
            if stat.S_ISLNK(at.mode) and above.ino == ROOT_INO and depth == 0:
                target = self.ask(uid, Op.READLINK, at.ino)
                if target is None or target.startswith(b"/"):
                    return None
                led = self.walk(uid, tuple(target.split(b"/")), depth + 1)
                if led is None:
                    return None
                at = led
        return at

    def root(self) -> Seen:
        said = self.ask(0, Op.GETATTR, ROOT_INO, bytes(16))
        assert said is not None
        fields = p.ATTR_OUT.unpack(said)
        return Seen(ROOT_INO, fields[12], fields[14], fields[15])

    def refresh(self, ino: int) -> None:
        """Ask for the attributes again, as after a change."""
        said = self.ask(0, Op.GETATTR, ino, bytes(16))
        if said is not None:
            fields = p.ATTR_OUT.unpack(said)
            self.seen[ino] = Seen(ino, fields[12], fields[14], fields[15])

    def forget_all(self) -> None:
        """Memory is short: all that nobody uses goes."""
        for ino, count in self.lookups.items():
            self.line.feed(Op.FORGET, ino, p.FORGET_IN.pack(count))
        self.lookups.clear()
        self.seen.clear()
        self.names.clear()


class Users:
    """Users who do anything at random, and what they may rely on."""

    def __init__(self, line: Line, policy: str, chance: random.Random) -> None:
        self.kernel = Kernel(line)
        self.line = line
        self.policy = policy
        self.chance = chance
        self.content: dict[int, tuple[int, bytes]] = {}
        """Under `publish`, by inode: whose it is, and what they have written into it."""
        self.reads = 0
        self.uids = (*USERS, WRITER) if policy in ("base", "read-only") else USERS

    def step(self) -> None:
        uid = self.chance.choice(self.uids)
        act = self.chance.choice(
            (
                *[self.create] * 6,
                *[self.write] * 8,
                *[self.read] * 4,
                *[self.rename] * 5,
                *[self.make_folder] * 3,
                self.symlink,
                self.special,
                self.link,
                self.unlink,
                self.rmdir,
                self.truncate,
                self.chmod,
                self.allocate,
                self.listing,
                self.pry,
                self.sync,
            )
        )
        act(uid)
        if self.policy == "publish":
            self.check_published(uid)

    # --- where --------------------------------------------------------------------------------------------------------

    def folder(self, uid: int) -> tuple[Seen | None, tuple[bytes, ...]]:
        depth = self.chance.choice((0, 0, 0, 1, 1, 1, 2))
        path = (self.chance.choice(FOLDERS[:2]), *self.chance.choices(FOLDERS[2:], k=depth))
        return self.kernel.walk(uid, path), path

    def place(self, uid: int, *, writable: bool = True) -> tuple[Seen, bytes, tuple[bytes, ...]] | None:
        above, path = self.folder(uid)
        if above is None or not above.is_dir or not above.allows(uid, 3 if writable else 1):
            return None
        return above, self.chance.choice((*NAMES, *FOLDERS)), path

    def file(self, uid: int) -> Seen | None:
        spot = self.place(uid, writable=False)
        found = self.kernel.walk(uid, (*spot[2], spot[1])) if spot is not None else None
        return found if found is not None and stat.S_ISREG(found.mode) else None

    def may_take(self, uid: int, above: Seen, found: Seen | None) -> bool:
        """What the kernel asks of the sticky bit."""
        return found is None or not above.mode & stat.S_ISVTX or uid in (above.uid, found.uid)

    # --- names --------------------------------------------------------------------------------------------------------

    def change(self, uid: int, opcode: Op, node: int, body: bytes) -> bytes | None:
        said = self.kernel.ask(uid, opcode, node, body)
        if said is not None and (not self.kernel.resends or self.chance.random() < 0.08):
            self.next_worker()
            again = self.kernel.ask_again(uid, opcode, node, body)
            is_in_memory = again[7:8] >= b"\x30"  # a lock of a read-only mount, which the next worker makes again
            assert opcode == Op.SETATTR or is_in_memory or again[:8] == said[:8], "it came to what it came to before"
        return said

    def create(self, uid: int) -> None:
        if (spot := self.place(uid)) is None:
            return
        above, name, _ = spot
        mode = self.chance.choice((0o100644, 0o100666, 0o104777, 0o102775, 0o100600))
        body = p.CREATE_IN.pack(os.O_RDWR | os.O_CREAT | os.O_EXCL, mode, 0o22, self.chance.randrange(2)) + name + b"\0"
        said = self.change(uid, Op.CREATE, above.ino, body)
        if said is not None:
            found = self.kernel.note(said)
            assert found is not None
            assert found.uid == uid
            self.kernel.names[above.ino, name] = found.ino
            if self.chance.random() < 0.8:
                self.write_into(uid, found)

    def make_folder(self, uid: int) -> None:
        if (spot := self.place(uid)) is not None:
            mode = self.chance.choice((0o755, 0o777, 0o2777, 0o700))
            self.made(uid, Op.MKDIR, spot[0], spot[1], p.MKDIR_IN.pack(mode, 0o22) + spot[1] + b"\0")

    def symlink(self, uid: int) -> None:
        if (spot := self.place(uid)) is not None:
            self.made(uid, Op.SYMLINK, spot[0], spot[1], spot[1] + b"\0../K1/k.cubin\0")

    def special(self, uid: int) -> None:
        if (spot := self.place(uid)) is not None:
            body = p.MKNOD_IN.pack(self.chance.choice((0o010666, 0o140666, 0o100644)), 0, 0o22, 0) + spot[1] + b"\0"
            self.made(uid, Op.MKNOD, spot[0], spot[1], body)

    def made(self, uid: int, opcode: Op, above: Seen, name: bytes, body: bytes) -> None:
        said = self.change(uid, opcode, above.ino, body)
        found = self.kernel.note(said) if said is not None else None
        if found is not None:
            self.kernel.names[above.ino, name] = found.ino

    def link(self, uid: int) -> None:
        found, spot = self.file(uid), self.place(uid)
        if found is not None and spot is not None and (found.uid == uid or found.allows(uid, 6)):
            self.made(uid, Op.LINK, spot[0], spot[1], p.LINK_IN.pack(found.ino) + spot[1] + b"\0")

    def unlink(self, uid: int) -> None:
        self.remove(uid, Op.UNLINK)

    def rmdir(self, uid: int) -> None:
        self.remove(uid, Op.RMDIR)

    def remove(self, uid: int, opcode: Op) -> None:
        if (spot := self.place(uid)) is None:
            return
        above, name, path = spot
        found = self.kernel.walk(uid, (*path, name))
        if found is None or found.is_dir != (opcode is Op.RMDIR) or not self.may_take(uid, above, found):
            return
        if self.change(uid, opcode, above.ino, name + b"\0") is not None:
            self.kernel.names.pop((above.ino, name), None)

    def rename(self, uid: int) -> None:
        old, new = self.place(uid), self.place(uid)
        if old is None or new is None:
            return
        found, other = self.kernel.walk(uid, (*old[2], old[1])), self.kernel.walk(uid, (*new[2], new[1]))
        if found is None or not self.may_take(uid, old[0], found) or not self.may_take(uid, new[0], other):
            return
        flags = self.chance.choice(RENAME_FLAGS)
        body = p.RENAME2_IN.pack(new[0].ino, flags, 0) + old[1] + b"\0" + new[1] + b"\0"
        if self.change(uid, Op.RENAME2, old[0].ino, body) is not None:
            self.kernel.names.pop((old[0].ino, old[1]), None)
            self.kernel.names.pop((new[0].ino, new[1]), None)
            if found.ino in self.kernel.seen:
                self.kernel.refresh(found.ino)

    # --- bytes --------------------------------------------------------------------------------------------------------

    def write(self, uid: int) -> None:
        if (found := self.file(uid)) is not None and found.allows(uid, 2):
            self.write_into(uid, found)

    def write_into(self, uid: int, found: Seen) -> None:
        data = (b"<%d>" % uid) * self.chance.choice((1, 5, 100, 3000))
        offset = self.chance.choice((0, 0, 0, 6, 5000, 1 << 20))
        through_map = self.chance.random() < 0.2
        if through_map:  # within the file, and in nobody's name; whoever has the map opened the file for writing
            offset, data = 0, data[: self.size(found.ino)]
            if not data or not self.opened(uid, found, os.O_RDWR):
                return
        elif not self.opened(uid, found, os.O_WRONLY):
            return
        flags = (p.WRITE_CACHE if through_map else 0) | self.chance.choice((0, KILL_SUIDGID))
        tail = struct.pack("<IQII", flags, 0, 0, 0)
        asking = 0 if through_map else uid
        body = p.WRITE_IN.pack(0, offset, len(data)) + tail + data
        if self.kernel.ask(asking, Op.WRITE, found.ino, body) is not None:
            self.wrote(uid, found.ino, offset, data)

    def opened(self, uid: int, found: Seen, flags: int) -> bool:
        if not self.line.fs.judges_opens:
            return True
        body = p.OPEN_IN.pack(flags, self.chance.randrange(2))
        return self.kernel.ask(uid, Op.OPEN, found.ino, body) is not None

    def size(self, ino: int) -> int:
        said = self.kernel.ask(0, Op.GETATTR, ino, bytes(16))
        return int(p.ATTR_OUT.unpack(said)[4]) if said is not None else 0

    def read(self, uid: int) -> None:
        found = self.file(uid)
        if found is None or not found.allows(uid, 4) or not self.opened(uid, found, os.O_RDONLY):
            return
        said = self.kernel.ask(uid, Op.READ, found.ino, p.READ_IN.pack(0, 0, 1 << 20) + bytes(20))
        if said and self.policy in ("private", "base"):
            self.reads += 1
            own = (uid, WRITER) if self.policy == "base" else (uid,)
            strangers = [other for other in (*USERS, WRITER) if other not in own]
            assert not any(b"<%d>" % other in said for other in strangers), f"user {uid} reads what is another's"

    def truncate(self, uid: int) -> None:
        if (found := self.file(uid)) is not None and found.allows(uid, 2) and self.opened(uid, found, os.O_WRONLY):
            size = self.chance.choice((0, 3, 1000, 1 << 20, 3 << 20))
            valid = p.Fattr.SIZE | self.chance.choice((0, SETATTR_KILL_SUIDGID))
            body = p.SETATTR_IN.pack(valid, 0, 0, size, *[0] * 12)
            if self.change(uid, Op.SETATTR, found.ino, body) is not None:
                self.resized(uid, found.ino, size)

    def chmod(self, uid: int) -> None:
        if (found := self.file(uid)) is not None and found.uid == uid:
            mode = self.chance.choice((0o600, 0o666, 0o6777, 0o000))
            valid = p.Fattr.MODE | self.chance.choice((0, SETATTR_KILL_SUIDGID))
            body = p.SETATTR_IN.pack(valid, *[0] * 10, mode, *[0] * 4)
            if self.change(uid, Op.SETATTR, found.ino, body) is not None:
                self.kernel.refresh(found.ino)

    def allocate(self, uid: int) -> None:
        if (found := self.file(uid)) is not None and found.allows(uid, 2) and self.opened(uid, found, os.O_WRONLY):
            mode, length = self.chance.choice((0, 1, 3, 16)), self.chance.choice((10, 70_000, 2 << 20))
            body = p.FALLOCATE_IN.pack(0, 0, length, mode, 0)
            if self.kernel.ask(uid, Op.FALLOCATE, found.ino, body) is not None:
                self.content.pop(found.ino, None)
                self.resized(uid, found.ino, self.size(found.ino))

    def sync(self, uid: int) -> None:
        if (found := self.file(uid)) is not None:
            self.kernel.ask(uid, Op.FSYNC, found.ino, bytes(16))

    def listing(self, uid: int) -> None:
        above, _ = self.folder(uid)
        if above is not None and above.is_dir and above.allows(uid, 4):
            self.kernel.ask(uid, Op.OPENDIR, above.ino, bytes(8))
            self.kernel.ask(uid, Op.READDIR, above.ino, p.READ_IN.pack(0, 0, 4096) + bytes(20))

    def pry(self, uid: int) -> None:
        """Look where nothing is to be found, and make something there."""
        hidden = self.line.fs.policy.numbers
        tokens = [hidden.folder_of(other) for other in self.uids] if hidden is not None else []
        path = tuple(self.chance.choices((*PRYING, *FOLDERS, *tokens), k=self.chance.randrange(1, 4)))
        found = self.kernel.walk(uid, path)
        if found is not None and found.is_dir and found.allows(uid, 3):
            self.made(uid, Op.MKDIR, found, b"K1", p.MKDIR_IN.pack(0o777, 0) + b"K1\0")
        if found is not None and self.policy == "private" and path[0] == b".tenants" and len(path) > 1:
            mine = path[1] in (b"..", hidden.folder_of(uid)) if hidden is not None else True
            assert mine or (len(path) == 2 and path[1] in tokens), f"user {uid} finds {path}"
        self.kernel.ask(uid, Op.STATFS, ROOT_INO)

    # --- what else happens ----------------------------------------------------------------------------------------

    def meanwhile(self) -> None:
        """What goes on beside the requests. Then all accounts must be right."""
        fs = self.line.fs
        self.chance.choice((fs.settle, fs.evictor.turn, self.kernel.forget_all, fs.store.fold, self.next_worker))()
        spool = self.line.store.spool
        assert spool.allocated_bytes() == sum(spool.path(number).stat().st_blocks * 512 for number in spool.numbers())
        if (quotas := self.line.fs.quotas) is not None:
            assert quotas.accounts.totals() == quotas.accounts.recounted()
            assert all(total < 2 * quotas.limit for uid, total in quotas.accounts.totals().items() if uid in USERS)

    def next_worker(self) -> None:
        """The worker is killed, and another one takes over."""
        before, line = self.line.fs, self.line
        accounts = before.quotas.accounts.totals() if before.quotas is not None else {}
        line.engine.close()
        line.fs = _filesystem(line.store, self.policy, before.options.limits, Knowing(self.kernel))
        line.engine = DirectEngine(line.fs, line._daemon.fileno())
        assert line.fs.quotas is None or line.fs.quotas.accounts.totals() == accounts

    # --- what publish promises ----------------------------------------------------------------------------------------

    def wrote(self, uid: int, ino: int, offset: int, data: bytes) -> None:
        owner, before = self.known(ino)
        if self.is_changed_by_its_owner(uid, owner, ino):
            before = before.ljust(offset, b"\0")
            self.content[ino] = owner, before[:offset] + data + before[offset + len(data) :]

    def resized(self, uid: int, ino: int, size: int) -> None:
        if LOCK_BASE <= ino < LOCK_END:
            assert self.size(ino) == 0, "a lock in memory holds no bytes"
            return
        owner, before = self.known(ino)
        if self.is_changed_by_its_owner(uid, owner, ino):
            self.content[ino] = owner, before[:size].ljust(size, b"\0")

    def known(self, ino: int) -> tuple[int, bytes]:
        """Who owns a file, and what it is to hold."""
        return self.content.get(ino, (self.line.fs.nodes.get(ino).uid, self.now(ino)))

    def is_changed_by_its_owner(self, uid: int, owner: int, ino: int) -> bool:
        if owner == uid:
            return True
        assert self.policy != "publish" or self.is_lock(ino), f"user {uid} changed inode {ino} of user {owner}"
        self.content.pop(ino, None)
        return False

    def now(self, ino: int) -> bytes:
        return self.line.fs.read(ino, 0, 1 << 23)

    def is_lock(self, ino: int) -> bool:
        return self.line.fs.policy._membership.is_lock(ino, self.line.fs.nodes.get(ino))

    def check_published(self, uid: int) -> None:
        """Whatever another user has done, a file that is not a lock holds what its owner wrote. Looks at some."""
        fs = self.line.fs
        for ino in self.chance.sample(sorted(self.content), min(3, len(self.content))):
            owner, expected = self.content[ino]
            if not fs.nodes.exists(ino) or fs.nodes.get(ino).nlink == 0:
                del self.content[ino]
            elif owner != uid and expected and not self.is_lock(ino):
                assert self.now(ino) == expected, f"inode {ino} of user {owner} was changed, by user {uid} or before"


# --- the tests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quota", [0, 3 << 20])
@pytest.mark.parametrize("policy", SHARINGS)
def test_whatever_users_ask_what_is_promised_holds(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    policy: str,
    quota: int,
) -> None:
    monkeypatch.setattr(room, "WAIT_WHEN_FULL_SECONDS", 0.0)
    monkeypatch.setattr(probing, "PROBE_SECONDS", 0.01)  # the model of the kernel lets go of nothing meanwhile
    caplog.set_level(logging.WARNING)
    chance = random.Random(f"{seed} {policy} {quota}")
    limits = Limits(max_size=1 << 30, max_size_per_uid=quota, min_free=0, grace=0.0)
    line = Line(tmp_path / "store", caplog, lambda store: _filesystem(store, policy, limits))
    users = Users(line, policy, chance)
    try:
        for number in range(STEPS):
            users.step()
            if number % 50 == 0:
                users.meanwhile()
        assert users.kernel.resends > 0
        assert users.reads > 20 or policy not in ("private", "base")
        failures = [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]
        assert failures == []
    finally:
        line.close()
    assert fsck.run(tmp_path / "store").findings == []


def _filesystem(store: Store, policy: str, limits: Limits, kernel: CoreKernel | None = None) -> Filesystem:
    options = FsOptions(sharing=SHARINGS[policy], limits=limits, resumed=kernel is not None)
    fs = Filesystem(store, options, kernel)
    fs.evictor.certain_seconds = 0.0
    return fs


class Knowing(CoreKernel):
    """Answers which inodes the model of the kernel knows."""

    def __init__(self, model: Kernel) -> None:
        self._model = model

    def knows(self, ino: int) -> bool:
        return ino in self._model.lookups
