"""Kill a writing process again and again, and check what it left: `python -m tests.store.kill ROUNDS [SEED]`.

A server, started once, forks a writer for each round: that takes milliseconds, where starting Python takes a second.
The writer opens the store, works on it with four threads, and writes to a pipe what it does before and after each
operation. The killer reads some of these lines and kills it; then it opens the store itself and compares.
"""

from __future__ import annotations

import logging
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from subprocess import PIPE, Popen

from blake3 import blake3

from kcachefs.store import Options, Store
from kcachefs.store.fsck import run
from tests.store import tree

THREADS = 4
OPTIONS = Options(volume_size=128 << 10)
"""Small volumes, so that many are started, emptied and compacted."""

Lines = Callable[[str], None]

_repacking = threading.Lock()
"""One thread at a time repacks."""


@lru_cache(maxsize=512)
def content(tag: str) -> bytes:
    """The bytes that belong to a tag: mostly few, some with several frames, some with a volume of their own."""
    chosen = random.Random(tag)
    kind = chosen.random()
    if kind < 0.90:
        return (tag.encode() + chosen.randbytes(40)) * chosen.randrange(1, 400)
    if kind < 0.97:
        return chosen.randbytes(3000) * 120
    return chosen.randbytes(600 << 10)


# --- the writer -------------------------------------------------------------------------------------------------------


def write(path: Path, round_: int, kinds: Sequence[str], say: Lines) -> None:
    """Work on the store with four threads until killed, making objects and files of these kinds."""
    store = Store(path, OPTIONS)
    tree.make_root(store)
    threads = [threading.Thread(target=_work, args=(store, f"{round_}.{n}", kinds, say)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _work(store: Store, name: str, kinds: Sequence[str], say: Lines) -> None:
    chosen = random.Random(name)
    mine: list[tuple[str, str]] = []
    for number in range(1 << 30):
        act = chosen.random()
        if act < 0.05:
            store.fold()
        elif act < 0.06:
            store.compact()
        elif act < 0.07:
            with _repacking:
                for _ in store.repack(0):
                    pass
        elif act < 0.09:
            _say_around(say, f"sync all {name}.{number}", _sync, store, "")
        elif act < 0.40 and len(mine) > 10:
            kind, tag = mine.pop(chosen.randrange(len(mine)))
            _say_around(say, f"remove {kind} {tag}", REMOVE[kind], store, tag)
        else:
            kind = chosen.choice(kinds)
            tag = f"{name}.{number}"
            _say_around(say, f"make {kind} {tag}", MAKE[kind], store, tag)
            mine.append((kind, tag))


def _say_around(say: Lines, what: str, act: Callable[[Store, str], None], store: Store, tag: str) -> None:
    say(f"begin {what}\n")
    act(store, tag)
    say(f"done {what}\n")


def _sync(store: Store, _: str) -> None:
    store.sync()


def _put(store: Store, tag: str) -> None:
    staged = store.objects.stage(content(tag))
    try:
        with store.transaction() as txn:
            store.objects.link(txn, staged, held=True)
    finally:
        store.objects.settle(staged)


def _delete(store: Store, tag: str) -> None:
    with store.transaction() as txn:
        assert store.objects.unlink(txn, blake3(content(tag)).digest(), held=True)


MAKE: dict[str, Callable[[Store, str], None]] = {
    "object": _put,
    "file": lambda store, tag: _ignore(tree.create(store, tag.encode(), content(tag))),
    "spooled": lambda store, tag: _ignore(tree.create_spooled(store, tag.encode(), content(tag))),
}
REMOVE: dict[str, Callable[[Store, str], None]] = {
    "object": _delete,
    "file": lambda store, tag: tree.remove(store, tag.encode()),
    "spooled": lambda store, tag: tree.remove(store, tag.encode()),
}


def _ignore(_: int) -> None: ...


def serve() -> None:
    """The server: for every `path round kinds` line on its input, forks a writer that talks to file descriptor 3."""
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        path, round_, kinds = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                write(Path(path), int(round_), kinds.split(","), lambda text: _ignore(os.write(3, text.encode())))
            finally:
                os._exit(1)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


# --- the killer -------------------------------------------------------------------------------------------------------


@dataclass
class Rounds:
    """What many rounds left behind."""

    there: dict[str, str] = field(default_factory=dict)
    """Tag to kind, for everything whose making was acknowledged and whose removal was not begun."""
    open: dict[str, str] = field(default_factory=dict)
    """Tag to kind, for everything whose last operation was not acknowledged."""
    rounds: int = 0
    acknowledged: int = 0
    in_flight: int = 0
    """Rounds in which the kill hit an operation."""
    recovered: int = 0
    """Rounds after which the journal held something that LMDB did not."""
    slowest: float = 0.0
    """Seconds that the slowest recovery took."""


class Writers:
    """The server, and the pipe on which its writers talk."""

    def __init__(self) -> None:
        self._read, write = os.pipe()
        self._server = Popen(
            [sys.executable, "-c", f"import os; os.dup2({write}, 3); from tests.store.kill import serve; serve()"],
            stdin=PIPE,
            stdout=PIPE,
            text=True,
            pass_fds=(write,),
            cwd=Path(__file__).parents[2],
        )
        os.close(write)
        self._rest = b""

    def start(self, path: Path, round_: int, kinds: Sequence[str] = ("object", "file", "spooled")) -> int:
        """Start a writer; returns its process id."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{path} {round_} {','.join(kinds)}\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def lines(self, count: int) -> list[str]:
        """Wait for at least `count` lines of the writer."""
        lines: list[str] = []
        while len(lines) < count:
            assert select.select([self._read], [], [], 60)[0], "the writer has stopped talking"
            lines += self._take()
        return lines

    def finish(self) -> tuple[int, list[str]]:
        """After the kill: the writer's exit status, and the lines that nobody had read yet."""
        assert self._server.stdout is not None
        status = int(self._server.stdout.readline())
        lines = self.said()
        self._rest = b""
        return status, lines

    def said(self) -> list[str]:
        """The lines that nobody has read yet, without waiting."""
        lines: list[str] = []
        while select.select([self._read], [], [], 0)[0]:
            lines += self._take()
        return lines

    def _take(self) -> list[str]:
        *whole, self._rest = (self._rest + os.read(self._read, 1 << 16)).split(b"\n")
        return [line.decode() for line in whole]

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()
        os.close(self._read)


@contextmanager
def writers() -> Iterator[Writers]:
    server = Writers()
    try:
        yield server
    finally:
        server.close()


def stop(pid: int) -> None:
    """Stop every thread of a process, and return when they all stand still."""
    os.kill(pid, signal.SIGSTOP)
    while True:
        states = [Path(task, "stat").read_text().rsplit(")", 1)[1].split()[0] for task in _tasks(pid)]
        if all(state == "T" for state in states):
            return
        os.sched_yield()


def _tasks(pid: int) -> list[str]:
    return [f"/proc/{pid}/task/{task}" for task in os.listdir(f"/proc/{pid}/task")]


def one_round(server: Writers, path: Path, state: Rounds, chosen: random.Random) -> None:
    """Start a writer, kill it in the middle of its work, and check what it left."""
    pid = server.start(path, state.rounds)
    lines = server.lines(chosen.randrange(1, 100))
    os.kill(pid, signal.SIGKILL)
    status, rest = server.finish()
    assert status == signal.SIGKILL, f"the writer ended by itself, with status {status}"
    _note(state, [*lines, *rest])
    state.rounds += 1
    _check(path, state)
    report = run(path)
    assert report.exit_code == 0, "\n".join(map(str, report.findings))


def _note(state: Rounds, lines: list[str]) -> None:
    begun: dict[str, str] = {}
    for line in lines:
        stage, act, kind, tag = line.split()
        if act == "sync":
            continue
        if stage == "begin":
            begun[tag] = kind
            state.there.pop(tag, None)
            continue
        del begun[tag]
        state.acknowledged += 1
        if act == "make":
            state.there[tag] = kind
    state.in_flight += bool(begun)
    state.open = begun


def _check(path: Path, state: Rounds) -> None:
    started = time.monotonic()
    with Store(path, Options(background=False, volume_size=OPTIONS.volume_size)) as store:
        state.slowest = max(state.slowest, time.monotonic() - started)
        state.recovered += bool(store.recovered)
        for tag, kind in state.there.items():
            assert _read(store, kind, tag) == content(tag), f"{kind} {tag} was acknowledged and is lost or wrong"
        for tag, kind in state.open.items():
            if (found := _read(store, kind, tag)) is not None:
                assert found == content(tag), f"{kind} {tag} was never acknowledged, is there, and is wrong"
                state.there[tag] = kind
        _clear_out(store, state)


def _read(store: Store, kind: str, tag: str) -> bytes | None:
    if kind != "object":
        return tree.read(store, tag.encode())
    digest = blake3(content(tag)).digest()
    return store.objects.get(digest) if store.objects.exists(digest) and store.objects.verify(digest) else None


def _clear_out(store: Store, state: Rounds) -> None:
    # Keeps every round as cheap as the first, and tests deleting what a dead process left.
    for tag, kind in list(state.there.items())[: max(0, len(state.there) - 40)]:
        REMOVE[kind](store, tag)
        del state.there[tag]
    names = {tag.encode() for tag, kind in state.there.items() if kind != "object"}
    assert tree.listing(store) == names


def main() -> None:
    """Kill as often as the command line says, and print how it went."""
    import tempfile

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32)
    print(f"{rounds} rounds, seed {seed}", flush=True)
    state, chosen = Rounds(), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="kcachefs-kill-") as folder, writers() as server:
        while state.rounds < rounds:
            one_round(server, Path(folder) / "store", state, chosen)
            if state.rounds % 50 == 0 or state.rounds == rounds:
                print(
                    f"{state.rounds} kills, {state.in_flight} in flight, {state.acknowledged} operations acknowledged, "
                    f"none lost; slowest recovery {state.slowest * 1000:.0f} ms",
                    flush=True,
                )
    if not state.in_flight:
        sys.exit("no kill hit an operation, so this proves nothing")


if __name__ == "__main__":
    main()
