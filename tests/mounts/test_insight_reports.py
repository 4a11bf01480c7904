"""What a mount tells to explain its misses: the whole of it to its owner, their own to others, and without a use."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from kcachefs.core.insight_info import RunInfo
from kcachefs.daemon import control, registry
from kcachefs.errors import MountError
from kcachefs.mounts.insight_reports import InsightReports, asking_folder
from tests.engines.callers import OTHER, STRANGER, Child, Identity, in_child
from tests.engines.mounting import Mount, kill, temporary_folder
from tests.waiting import until

pytestmark = pytest.mark.mount

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module", params=["direct", "pyfuse3"])
def mount(request: pytest.FixtureRequest) -> Iterator[Mount]:
    with temporary_folder() as base:
        with Mount(base / "mount", base / "store", request.param, "--allow-other") as made:
            yield made


def write(mount: Mount, key: str, who: Identity | None = None, **files: bytes) -> None:
    """A Triton entry, made by another process."""

    def make() -> None:
        folder = mount.mountpoint / "triton" / key
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)

    in_child(make, who)


_OPEN: set[int] = set()
"""Where programs get their orders."""


def _obey(mountpoint: Path, orders: int, answers: int) -> None:
    with open(orders) as lines:
        for line in lines:
            word, key = line.split()
            folder = mountpoint / "triton" / key
            if word == "make":
                folder.mkdir()
                (folder / "kernel.json").write_bytes(os.urandom(500))
            else:
                (folder / "kernel.json").read_bytes()
            os.write(answers, f"{word}\n".encode())


class Program:
    """Another program, which makes and reads entries when it is told to. This process does not use the mount itself:
    what is below a process that does is part of that one's run."""

    def __init__(self, mount: Mount, who: Identity | None = None) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()

        def obey() -> None:
            os.close(self._orders)
            for line in list(_OPEN):  # other programs wait for their own end
                os.close(line)
            _obey(mount.mountpoint, orders, answers)

        self._child = Child(obey, who)
        _OPEN.add(self._orders)
        os.close(orders)
        os.close(answers)
        self.pid = self._child.pid

    def do(self, word: str, key: str) -> None:
        os.write(self._orders, f"{word} {key}\n".encode())
        assert os.read(self._answers, 100).decode().strip() == word

    def hit(self, mount: Mount, key: str) -> None:
        """Read an entry until that counts: for a second after it was made, the kernel asks nobody for its name."""

        def counts() -> bool:
            self.do("read", key)
            return any(run.hits for run in told(mount).runs() if run.pid == self.pid)

        until(counts)

    def run(self, mount: Mount) -> RunInfo:
        """What is known of it."""
        [found] = until(lambda: [run for run in told(mount).runs() if run.pid == self.pid])
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _OPEN.discard(self._orders)
        os.close(self._orders)
        with self._child:
            self._child.result()
        os.close(self._answers)


def ask(mount: Mount, verb: str, **arguments: Any) -> Any:
    return json.loads(control.ask(registry.socket_path(str(mount.mountpoint)), verb, arguments))


def told(mount: Mount) -> InsightReports:
    return InsightReports.of(mount.mountpoint)


def test_artefacts_are_handed_over_without_a_use(mount: Mount) -> None:
    write(mount, "KEPT", json=b"{}", cubin=b"\x7fELF" * 999)
    write(mount, "LATER", json=b"[]")
    reports = told(mount)
    before = {one.path: one for one in reports.entries(settle=True)}
    wanted = [before["triton/KEPT"].entry, before["triton/LATER"].entry]
    whole = {(one.entry, one.file): one.content for one in reports.artifacts(wanted)}
    assert whole == {
        (wanted[0], "json"): b"{}",
        (wanted[0], "cubin"): b"\x7fELF" * 999,
        (wanted[1], "json"): b"[]",
    }
    assert [one.file for one in reports.artifacts(wanted, ["j*n"])] == ["json", "json"]
    small = {one.file: one.content for one in reports.artifacts(wanted[:1], max_file=10)}
    assert small == {"json": b"{}", "cubin": None}
    after = {one.path: one for one in reports.entries(settle=True)}
    assert {path: (one.hits, one.used) for path, one in after.items()} == {
        path: (one.hits, one.used) for path, one in before.items()
    }
    assert ask(mount, "stats", settle=True)["total"]["hits"] == 0


def test_a_reply_is_bounded_and_the_rest_is_asked_for(mount: Mount) -> None:
    for key in "ABC":
        write(mount, f"LARGE{key}", cubin=os.urandom(5000))
    wanted = [one.entry for one in told(mount).entries(settle=True) if "LARGE" in one.path]
    first = ask(mount, "artifacts", entries=wanted, max_bytes=6000)
    assert ([one["entry"] for one in first["found"]], first["rest"]) == (wanted[:2], wanted[2:])
    assert ask(mount, "artifacts", entries=[1 << 40]) == {"found": [], "rest": []}


@as_root
def test_another_user_is_told_of_their_own_entries_only(mount: Mount) -> None:
    write(mount, "ROOTS", json=b"root")
    write(mount, "OTHERS", OTHER, json=b"other")
    write(mount, "STRANGERS", STRANGER, json=b"stranger")
    everything = {one.path: one.entry for one in told(mount).entries(settle=True)}

    def look() -> tuple[dict[str, int], list[bytes | None]]:
        reports = InsightReports(asking_folder(mount.mountpoint))
        entries = {one.path: one.entry for one in reports.entries()}
        return entries, [one.content for one in reports.artifacts(everything.values())]

    assert in_child(look, OTHER) == ({"triton/OTHERS": everything["triton/OTHERS"]}, [b"other"])
    seen, contents = in_child(look)
    assert seen == everything
    assert {b"root", b"other", b"stranger"} <= set(contents)


def test_names_that_are_no_report_are_not_found(mount: Mount) -> None:
    folder: Path = mount.mountpoint / ".kcachefs"
    for name in ("artifacts.json", "artifacts.x.json", "artifacts.1.txt", "artifacts.99999999999999999999.json"):
        with pytest.raises(FileNotFoundError):
            (folder / name).read_bytes()


# --- the past ---------------------------------------------------------------------------------------------------------


def events(mount: Mount) -> list[tuple[str, str]]:
    return [(one.kind, one.path) for one in told(mount).events()]


def test_runs_entries_and_what_went_are_known_after_kills_and_remounts(mount: Mount) -> None:
    with Program(mount) as maker, Program(mount) as reader:
        maker.do("make", "FIRST")
        run = maker.run(mount).run
        told(mount).entries(settle=True)
        reader.hit(mount, "FIRST")
        write(mount, "GOING", json=b"{}", cubin=b"\x7fELF" * 999)
        told(mount).entries(settle=True)
        assert ask(mount, "evict", patterns=["triton/GOING"])["entries"] == ["triton/GOING"]
        if mount.engine == "direct":
            _, worker = mount.daemon()
            kill(worker)
            until(lambda: mount.daemon()[1] != worker)
            until(lambda: ("failover", "") in events(mount))
        maker.do("make", "SECOND")
        entries = {one.path: one for one in told(mount).entries(settle=True)}
        assert entries["triton/FIRST"].run == entries["triton/SECOND"].run == run
        assert maker.run(mount).misses == 2
        ended = time.time()
    mount.kill()
    mount.remount()
    [known] = [one for one in told(mount).runs() if one.run == run]
    assert (known.misses, known.hits) == (2, 0)
    tombstone = told(mount).tombstone_of("triton/GOING")
    assert tombstone is not None
    assert tombstone.why == "evicted"
    assert ("evicted", "triton/GOING") in events(mount)
    rows = [row for one in told(mount).history(ended - 3600) for row in one.rows]
    assert sum(row.hits for row in rows) >= 1
    assert sum(row.misses for row in rows) >= 2


def test_a_reload_is_no_failover(mount: Mount) -> None:
    if mount.engine != "direct":
        pytest.skip("pyfuse3 has no reload")
    before = events(mount)
    supervisor, worker = mount.daemon()
    os.kill(supervisor, signal.SIGUSR2)
    until(lambda: mount.daemon()[1] != worker)
    assert until(lambda: events(mount)[len(before) :]) == [("reloaded", "")]


@as_root
def test_each_user_is_told_of_their_own_runs(mount: Mount) -> None:
    with Program(mount, OTHER) as theirs, Program(mount) as ours:
        theirs.do("make", f"THEIRS-{mount.engine}")
        ours.do("make", f"OURS-{mount.engine}")
        assert theirs.run(mount).argv
        assert ours.run(mount).uid == 0
        entries = {one.path: one for one in told(mount).entries(settle=True)}
        assert entries[f"triton/THEIRS-{mount.engine}"].run == theirs.run(mount).run

        def look() -> tuple[list[int], list[str], set[int], list[str]]:
            reports = InsightReports(asking_folder(mount.mountpoint))
            runs = reports.runs()
            rows = {row.uid for one in reports.history() for row in one.rows}
            return [one.pid for one in runs], [one.argv for one in runs], rows, [one.path for one in reports.events()]

        pids, argvs, uids, paths = in_child(look, OTHER)
        assert pids[-1] == theirs.pid
        assert argvs[-1] == theirs.run(mount).argv
        assert ours.pid not in pids
        assert (uids, paths) == ({OTHER.uid}, [])


@as_root
def test_hits_on_a_mount_that_others_only_read_are_theirs() -> None:
    with temporary_folder() as base:
        options = ("--allow-other", "--policy", "read-only", "--writers", "uid:0")
        with Mount(base / "mount", base / "store", "direct", *options) as mount, Program(mount) as writer:
            writer.do("make", "SHARED")
            told(mount).entries(settle=True)
            with Program(mount, STRANGER) as reader:
                reader.hit(mount, "SHARED")
                run = reader.run(mount)
                assert (run.uid, run.hits, run.misses) == (STRANGER.uid, 1, 0)
            [row] = [row for one in told(mount).history() for row in one.rows if row.uid == STRANGER.uid]
            assert (row.namespace, row.hits, row.bytes_served) == ("triton", 1, 500)


@pytest.mark.parametrize("raw", [b"", b"[", b'"x"'])
def test_a_report_that_is_cut_short_is_an_error_in_one_line(raw: bytes) -> None:
    """As that of a mount that ends while it is read: `doctor` looks at every mount of the host."""
    asked = InsightReports(lambda verb, arguments: raw)
    with pytest.raises(MountError, match="report of entries is not understood"):
        asked.entries()
    with pytest.raises(MountError, match="report of artifacts is not understood"):
        list(asked.artifacts([1]))
