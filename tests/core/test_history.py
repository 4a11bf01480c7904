"""What a mount remembers: costs, runs, what went and why, samples; over reopening, and with a clock that is set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from kcachefs.core import Filesystem, uses
from kcachefs.core import history as history_module
from kcachefs.core.insight import Insight
from kcachefs.core.insight_info import MadeEntry, RunInfo, path_hash
from kcachefs.core.limits import Limits
from kcachefs.errors import NoSpace, ObjectDamaged, UsageError
from kcachefs.store import Options, Store, fsck
from tests.core.trees import (
    READER,
    ROOT,
    WRITER,
    find,
    folder,
    look_up,
    nothing_acknowledged,
    opened,
    rename,
    shrink,
    user,
    write,
)
from tests.waiting import until

NO_GRACE = Limits(max_size=1 << 40, grace=0.0)
SECOND = 10**9


def entry(fs: Filesystem, path: str) -> MadeEntry:
    fs.settle()
    return next(one for one in Insight(fs).entries() if one.path == path)


def runs(fs: Filesystem, uid: int | None = None) -> dict[int, RunInfo]:
    return {one.pid: one for one in Insight(fs).runs(uid=uid)}


def made(fs: Filesystem, path: str, seconds: float, *, pid: int = WRITER, uid: int = 0, size: int = 1000) -> None:
    """An entry whose folder was made so many seconds before its file."""
    ino = folder(fs, path, user(uid, pid))
    file = write(fs, f"{path}/kernel.cubin", os.urandom(size), user(uid, pid))
    with fs.nodes.change() as txn:
        node = fs.nodes.get(ino)
        node.atime = fs.nodes.get(file).mtime - int(seconds * SECOND)
        fs.nodes.save(txn, ino, node)
    fs.settle()


@contextmanager
def processes(*names: str) -> Iterator[list[int]]:
    """Real processes, one below the other, that do nothing until the end; their numbers, the oldest first."""
    chain = (
        "import os, sys\n"
        "for _ in range(int(sys.argv[1])):\n"
        "    os.write(1, b'%d\\n' % os.getpid())\n"
        "    if os.fork(): break\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", chain, str(len(names))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as top:
        assert top.stdout is not None
        try:
            yield [int(top.stdout.readline()) for _ in names]
        finally:
            top.communicate()


@contextmanager
def worker() -> Iterator[tuple[int, int, Callable[[], None]]]:
    """A real process, a thread of it, and what ends that thread; the process stays until the end."""
    script = (
        "import os, sys, threading\n"
        "thread = threading.Thread(target=sys.stdin.readline)\n"
        "thread.start()\n"
        "print(os.getpid(), thread.native_id, flush=True)\n"
        "thread.join()\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid, thread = map(int, process.stdout.readline().split())

        def end_thread() -> None:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            until(lambda: not os.path.exists(f"/proc/{thread}"))

        try:
            yield pid, thread, end_thread
        finally:
            process.communicate()


# --- what an entry cost -----------------------------------------------------------------------------------------------


def test_a_triton_entry_costs_the_time_from_its_folder_to_its_last_file(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        made(fs, "triton/KEY", 2.0)
        made(fs, "inductor/triton/0/KEY", 3.0)
        first, second = entry(fs, "triton/KEY"), entry(fs, "inductor/triton/0/KEY")
        assert first.cost == pytest.approx(2.0, abs=0.5)
        assert second.cost == pytest.approx(3.0, abs=0.5)
        assert first.basis == second.basis == "span"
        assert first.began is not None
        assert first.ended is not None
        assert first.ended - first.began == pytest.approx(first.cost)


def test_what_nobody_knows_is_unknown_and_not_zero(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        made(fs, "inductor/fxgraph/ab/KEY", 2.0)
        write(fs, "cute_dsl/stem.o", b"a group of files")
        made(fs, "triton/BACK", -60.0)
        made(fs, "triton/AGES", 86400.0)
        paths = ("inductor/fxgraph/ab/KEY", "cute_dsl/stem", "triton/BACK", "triton/AGES")
        assert [(entry(fs, path).cost, entry(fs, path).basis) for path in paths] == [(None, "")] * 4
        look_up(fs, "inductor/fxgraph/ab/KEY/kernel.cubin", READER)
        fs.settle()
        assert sum(row.seconds_saved for one in Insight(fs).history() for row in one.rows) == 0


def test_a_file_that_comes_much_later_does_not_make_an_entry_dearer(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        made(fs, "triton/KEY", 2.0)
        ino = write(fs, "triton/KEY/late.json", b"{}")
        late = time.time_ns() + 1
        with fs.nodes.change() as txn:
            node = fs.nodes.get(ino)
            node.atime = node.mtime = late + 3600 * SECOND
            fs.nodes.save(txn, ino, node)
        fs.settle()
        assert entry(fs, "triton/KEY").cost == pytest.approx(2.0, abs=0.5)


def test_costs_are_kept_and_go_with_the_entry(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        made(fs, "triton/KEY", 2.0)
        number = entry(fs, "triton/KEY").entry
    with opened(tmp_path / "store", NO_GRACE) as fs:
        assert entry(fs, "triton/KEY").cost == pytest.approx(2.0, abs=0.5)
        Insight(fs).evict(["triton/KEY"])
        assert fs.makings.get(number) is None


def test_an_artefact_may_say_what_its_entry_cost(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        made(fs, "inductor/fxgraph/ab/KEY", 0.0)
        number = entry(fs, "inductor/fxgraph/ab/KEY").entry
        assert Insight(fs).note_costs({str(number): 7.5, "999999": 1.0}) == 1
        found = entry(fs, "inductor/fxgraph/ab/KEY")
        assert (found.cost, found.basis) == (7.5, "artefact")
        for wrong in (-1.0, 1e9):
            with pytest.raises(UsageError):
                Insight(fs).note_costs({str(number): wrong})


def test_the_kernels_of_a_graph_that_was_hit_are_not_counted_again(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs, processes("maker") as [maker], processes("reader") as [reader]:
        made(fs, "inductor/triton/0/INSIDE", 3.0, pid=maker)
        made(fs, "inductor/fxgraph/ab/GRAPH", 0.0, pid=maker)
        made(fs, "triton/OUTSIDE", 30.0, pid=maker)
        Insight(fs).note_costs({str(entry(fs, "inductor/fxgraph/ab/GRAPH").entry): 8.0})
        assert runs(fs)[maker].seconds_compiled == pytest.approx(8.0 + 30.0, abs=1.0)
        assert runs(fs)[maker].unknown_compiled == 0
        rows = [row for one in Insight(fs).history() for row in one.rows]
        assert sum(row.seconds_compiled for row in rows) == pytest.approx(8.0 + 30.0, abs=1.0)
        for path in ("inductor/triton/0/INSIDE", "inductor/fxgraph/ab/GRAPH", "triton/OUTSIDE"):
            look_up(fs, f"{path}/kernel.cubin", reader)
        fs.settle()
        assert runs(fs)[reader].hits == 3
        assert runs(fs)[reader].seconds_saved == pytest.approx(8.0 + 30.0, abs=1.0)
        assert runs(fs)[reader].unknown_saved == 0


def test_what_autograd_cost_beyond_its_graph_is_counted_as_well(tmp_path: Path) -> None:
    graph, autograd, code = "inductor/fxgraph/ab/GRAPH", "inductor/aotautograd/KEY", "inductor/cd/ccdefg"
    with opened(tmp_path / "store") as fs, processes("maker") as [maker], processes("reader") as [reader]:
        for path, seconds in ((code, 0.0), (autograd, 0.0), (graph, 8.0)):
            made(fs, path, seconds, pid=maker)
        Insight(fs).note_costs({str(entry(fs, graph).entry): 8.0}, {str(entry(fs, autograd).entry): 2.0, "999999": 1.0})
        assert (entry(fs, autograd).cost, entry(fs, autograd).basis) == (2.0, "part")
        assert runs(fs)[maker].seconds_compiled == pytest.approx(10.0)
        for path in (code, autograd, graph):
            look_up(fs, f"{path}/kernel.cubin", reader)
        fs.settle()
        assert runs(fs)[reader].hits == 3
        assert runs(fs)[reader].seconds_saved == pytest.approx(10.0)
        assert runs(fs)[reader].unknown_saved == 0, "the code was written for the graph"
        with pytest.raises(UsageError):
            Insight(fs).note_costs({}, {"1": -1.0})


def test_what_nobody_has_costed_is_unknown_also_beside_a_graph(tmp_path: Path) -> None:
    graph, others = (
        "inductor/fxgraph/ab/GRAPH",
        ("inductor/fxgraph/cd/OTHER", "inductor/aotautograd/KEY", "inductor/ef/0a1"),
    )
    with opened(tmp_path / "store") as fs, processes("maker") as [maker], processes("reader") as [reader]:
        for path in (graph, *others):
            made(fs, path, 0.0, pid=maker)
        Insight(fs).note_costs({str(entry(fs, graph).entry): 8.0})
        for path in (graph, *others):
            look_up(fs, f"{path}/kernel.cubin", reader)
        fs.settle()
        assert (runs(fs)[reader].seconds_saved, runs(fs)[reader].unknown_saved) == (8.0, 3)


def test_code_whose_graph_was_not_hit_is_of_unknown_cost(tmp_path: Path) -> None:
    graph, code = "inductor/fxgraph/ab/GRAPH", "inductor/cd/ccdefg"
    with opened(tmp_path / "store") as fs, processes("maker") as [maker], processes("reader") as [reader]:
        for path in (graph, code):
            made(fs, path, 0.0, pid=maker)
        Insight(fs).note_costs({str(entry(fs, graph).entry): 8.0})
        look_up(fs, f"{code}/kernel.cubin", reader)
        fs.settle()
        assert (runs(fs)[reader].seconds_saved, runs(fs)[reader].unknown_saved) == (0.0, 1)


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_process_and_those_below_it_are_one_run(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs, processes("top", "below") as [top, below], processes("other") as [other]:
        made(fs, "triton/A", 1.0, pid=top)
        made(fs, "triton/B", 2.0, pid=below)
        look_up(fs, "triton/A/kernel.cubin", other)
        fs.settle()
        found = runs(fs)
        assert set(found) == {top, other}
        assert (found[top].misses, found[top].hits) == (2, 0)
        assert found[top].seconds_compiled == pytest.approx(3.0, abs=0.5)
        assert (found[other].misses, found[other].hits, found[other].bytes_served) == (0, 1, 1000)
        assert found[other].seconds_saved == pytest.approx(1.0, abs=0.5)
        assert sys.executable in found[top].argv
        assert abs(found[top].started - time.time()) < 60
        assert entry(fs, "triton/A").run == entry(fs, "triton/B").run == found[top].run


def test_what_a_run_loads_of_its_own_compilers_saves_nothing(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "store") as fs,
        processes("top", "compiler") as [top, compiler],
        processes("other") as [other],
    ):
        made(fs, "triton/A", 4.0, pid=compiler)
        for reader in (top, other):
            look_up(fs, "triton/A/kernel.cubin", reader)
        fs.settle()
        found = runs(fs)
        assert (found[top].hits, found[top].seconds_saved, found[top].unknown_saved) == (1, 0.0, 0)
        assert found[other].seconds_saved == pytest.approx(4.0, abs=0.5)


def test_an_ancestor_that_comes_later_takes_the_runs_below_it_over(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs, processes("top", "middle", "below") as [top, middle, below]:
        made(fs, "triton/A", 1.0, pid=below)
        assert set(runs(fs)) == {below}
        made(fs, "triton/B", 1.0, pid=top)
        made(fs, "triton/C", 1.0, pid=middle)
        assert {pid: one.misses for pid, one in runs(fs).items()} == {top: 3}
        assert {entry(fs, f"triton/{key}").run for key in "ABC"} == {runs(fs)[top].run}


def test_two_runs_below_one_ancestor_become_one(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        script = (
            "import os, sys\n"
            "for _ in range(2):\n"
            "    if not os.fork(): break\n"
            "os.write(1, b'%d\\n' % os.getpid())\n"
            "sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as top:
            assert top.stdout is not None
            pids = {int(top.stdout.readline()) for _ in range(3)}
            for number, pid in enumerate(sorted(pids - {top.pid})):
                made(fs, f"triton/{number}", 1.0, pid=pid)
            assert len(runs(fs)) == 2
            made(fs, "triton/TOP", 1.0, pid=top.pid)
            assert {pid: one.misses for pid, one in runs(fs).items()} == {top.pid: 3}
            top.communicate()
        merged = runs(fs)[top.pid].run
    with opened(tmp_path / "store") as fs:
        assert {one.run for one in Insight(fs).entries()} == {merged}


def test_a_worker_that_takes_over_recognizes_the_runs(tmp_path: Path) -> None:
    with processes("top", "below") as [top, below]:
        with opened(tmp_path / "store") as fs:
            made(fs, "triton/A", 1.0, pid=top)
        with opened(tmp_path / "store") as fs:
            made(fs, "triton/B", 1.0, pid=below)
            assert {pid: one.misses for pid, one in runs(fs).items()} == {top: 2}


def test_a_process_that_ends_at_once_is_a_run_too(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        with processes("brief") as [pid]:
            write(fs, "triton/KEY/kernel.ptx", b"x", user(0, pid))
        assert runs(fs)[pid].argv, "it was looked up while it waited for its answer"
        fs.settle()
        assert runs(fs)[pid].misses == 1


def test_a_process_of_the_same_number_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store") as fs, processes("one") as [pid]:
        made(fs, "triton/A", 1.0, pid=pid)
        [before] = Insight(fs).runs()
        real = fs.runs._look_up.__globals__["tell"]
        monkeypatch.setattr("kcachefs.core.runs._RECHECK_SECONDS", 0.0)

        def as_if_begun_later(thread: int) -> object:
            story = real(thread)
            return story._replace(process=story.process._replace(ticks=story.process.ticks + 5))

        monkeypatch.setattr("kcachefs.core.runs.tell", as_if_begun_later)
        made(fs, "triton/B", 1.0, pid=pid)
        assert [one.run for one in Insight(fs).runs()] == [before.run, before.run + 1]


def test_a_hit_while_hits_are_being_written_down_counts_for_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process has one hit on an entry: what its run did not get then, it would never get."""
    with opened(tmp_path / "store") as fs, processes("reader") as [reader]:
        made(fs, "triton/A", 1.0)
        settle = fs.uses._future.settle

        def settle_and_look_up() -> None:
            settle()
            look_up(fs, "triton/A/kernel.cubin", reader)

        monkeypatch.setattr(fs.uses._future, "settle", settle_and_look_up)
        fs.uses.flush()
        monkeypatch.undo()
        assert runs(fs)[reader].hits == 1


def test_who_may_see_a_command_line(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs, processes("one") as [pid]:
        made(fs, "triton/A", 1.0, pid=pid)
        owner = os.getuid()
        assert fs.runs.all(None, owner)[0].argv
        assert fs.runs.all(None, owner + 1)[0].argv == "", "of another user's run"
        assert fs.runs.all(None, 0)[0].argv, "root"
        assert fs.runs.all(owner, owner)[0].argv
        assert fs.runs.all(owner, owner + 1)[0].argv == "", "of the one user whose runs were asked for"
        assert fs.runs.all(owner + 1, owner) == []


def test_there_are_no_more_runs_than_the_ring_holds_and_a_long_one_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs, processes("long") as [pid]:
        made(fs, "triton/A", 1.0, pid=pid)
        first = runs(fs)[pid]
        ring = fs.store.history.runs
        for _ in range(ring.slots):
            ring.append(bytes(96))
        made(fs, "triton/B", 1.0, pid=pid)
        found = Insight(fs).runs()
        assert len(found) == ring.slots
        assert (found[-1].pid, found[-1].misses) == (pid, 2)
        assert entry(fs, "triton/A").run == entry(fs, "triton/B").run == found[-1].run > first.run


def test_another_run_that_writes_into_an_entry_is_noted_once(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs, processes("maker") as [maker], processes("other") as [other]:
        made(fs, "triton/KEY", 1.0, pid=maker)
        for number in range(3):
            write(fs, f"triton/KEY/more.{number}", b"more", user(0, other))
        fs.settle()
        found = entry(fs, "triton/KEY")
        assert (found.run, found.rewriter) == (runs(fs)[maker].run, runs(fs)[other].run)
        assert found.rewritten is not None
        assert found.cost == pytest.approx(1.0, abs=0.5)
        [event] = Insight(fs).events()
        assert (event.kind, event.path, event.detail) == ("rewritten", "triton/KEY", f"by run {found.rewriter}")
        told = runs(fs)[other]
        assert (told.misses, told.seconds_compiled, told.unknown_compiled) == (1, 0.0, 1), "not known is not nothing"
        assert runs(fs)[maker].unknown_compiled == 0


def replace_all(fs: Filesystem, path: str, pid: int) -> None:
    """Write an entry's only file again, as Triton does: in a temporary folder, and then renamed over the old one."""
    write(fs, f"{path}/tmp.pid_2/kernel.cubin", os.urandom(1000), user(0, pid))
    rename(fs, f"{path}/tmp.pid_2/kernel.cubin", f"{path}/kernel.cubin")
    fs.rmdir(ROOT, find(fs, path), b"tmp.pid_2")


def test_a_run_that_replaces_every_file_of_an_entry_rewrites_it(tmp_path: Path) -> None:
    """As it happens to a cache that is mounted elsewhere: the worker that serves it now never saw the entry's maker."""
    with processes("maker") as [maker], processes("other") as [other]:
        with opened(tmp_path / "store") as fs:
            made(fs, "triton/KEY", 1.0, pid=maker)
            before = entry(fs, "triton/KEY")
        with opened(tmp_path / "store") as fs:
            replace_all(fs, "triton/KEY", other)
            found = entry(fs, "triton/KEY")
            assert (found.run, found.rewriter) == (before.run, runs(fs)[other].run)
            assert found.rewritten is not None
            assert found.rewritten > (before.ended or 0.0)
            assert (found.cost, found.began) == (before.cost, before.began), "the first making is what it cost"
            assert runs(fs)[other].misses == 1
            assert fs.statistics().total.misses == 2
            replace_all(fs, "triton/KEY", other)
            fs.settle()
            assert runs(fs)[other].misses == 1, "that run rewrites it still"
            fs.unlink(ROOT, find(fs, "triton/KEY"), b"kernel.cubin")
            fs.settle()
    assert fsck.run(tmp_path / "store").findings == []


def test_who_rewrote_an_entry_is_known_after_a_full_disk_too(tmp_path: Path) -> None:
    """What cannot be sealed is sealed later, and counts then for those who made it."""
    with opened(tmp_path / "store") as fs, processes("maker") as [maker], processes("other") as [other]:
        made(fs, "triton/KEY", 1.0, pid=maker)
        before = entry(fs, "triton/KEY")
        replace_all(fs, "triton/KEY", other)
        fs.runs.catch_up()
        for _ in range(3):
            with nothing_acknowledged(fs):
                fs.sealer.seal_next(0)
        found = entry(fs, "triton/KEY")
        assert (found.run, found.rewriter) == (before.run, runs(fs)[other].run)
        assert runs(fs)[other].misses == 1
        assert fs.statistics().total.misses == 2
        assert [one.path for one in fs.history.events() if one.kind == "rewritten"] == ["triton/KEY"]


def test_a_log_that_another_run_adds_to_is_no_rewrite(tmp_path: Path) -> None:
    """As ninja's in the folder of an extension: it is opened again and again."""
    with opened(tmp_path / "store") as fs, processes("maker") as [maker], processes("other") as [other]:
        ino = write(fs, "torch_extensions/py311_cpu/scale/.ninja_log", b"built", user(0, maker))
        fs.settle()
        write(fs, "torch_extensions/py311_cpu/scale/lock", b"", user(0, other))
        fs.write(ino, 5, b" and found")
        fs.settle()
        assert runs(fs)[other].misses == 0
        fs.sealer.seal_quiet(0.0)
        found = entry(fs, "torch_extensions/py311_cpu/scale")
        assert (found.run, found.rewritten) == (runs(fs)[maker].run, None)
        assert fs.statistics().total.misses == 1


def test_a_run_that_replaces_its_own_file_rewrites_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs, processes("maker") as [maker]:
        made(fs, "triton/KEY", 1.0, pid=maker)
        replace_all(fs, "triton/KEY", maker)
        found = entry(fs, "triton/KEY")
        assert (found.run, found.rewritten, found.rewriter) == (runs(fs)[maker].run, None, 0)
        assert runs(fs)[maker].misses == 1


def put(fs: Filesystem, path: str, name: str, pid: int) -> None:
    """Put a file into an entry's folder as Triton does: from a temporary folder of the process's own."""
    write(fs, f"{path}/tmp.pid_{pid}/{name}", os.urandom(1000), user(0, pid))
    rename(fs, f"{path}/tmp.pid_{pid}/{name}", f"{path}/{name}")
    fs.rmdir(ROOT, find(fs, path), b"tmp.pid_%d" % pid)


def test_processes_that_make_an_entry_at_once_each_miss_it_and_none_hits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uses, "COMPLETE_NS", 0)
    with (
        opened(tmp_path / "store") as fs,
        processes("one") as [one],
        processes("two") as [two],
        processes("three") as [three],
    ):
        ranks = (one, two, three)
        for name in ("kernel.ttir", "kernel.cubin"):
            for pid in ranks:
                put(fs, "triton/KEY", name, pid)
                look_up(fs, "triton/KEY", pid)
            fs.settle()  # some of the files are sealed before the last ones are made
        for pid in ranks:
            look_up(fs, "triton/KEY", pid)
        fs.settle()
        told = runs(fs)
        assert [(told[pid].misses, told[pid].hits, told[pid].seconds_saved) for pid in ranks] == [(1, 0, 0.0)] * 3
        assert (fs.statistics().total.misses, fs.statistics().total.hits) == (3, 0)


def test_processes_whose_threads_make_an_entry_at_once_each_miss_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uses, "COMPLETE_NS", 0)
    with opened(tmp_path / "store") as fs, worker() as one, worker() as two, worker() as three:
        ranks = (one, two, three)
        for name in ("kernel.ttir", "kernel.cubin"):
            for _, thread, _ in ranks:
                put(fs, "triton/KEY", name, thread)
            fs.settle()
        for pid, thread, end_thread in ranks:
            look_up(fs, "triton/KEY", thread)
            end_thread()
            look_up(fs, "triton/KEY", pid)
        fs.settle()
        told = runs(fs)
        assert [(told[pid].misses, told[pid].hits) for pid, _, _ in ranks] == [(1, 0)] * 3
        assert (fs.statistics().total.misses, fs.statistics().total.hits) == (3, 0)


def test_threads_of_a_process_that_replace_each_others_files_miss_the_entry_once(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs, worker() as (pid, thread, _):
        for name in ("kernel.ttir", "kernel.cubin"):
            for one in (pid, thread):
                put(fs, "triton/KEY", name, one)
        fs.settle()
        assert (runs(fs)[pid].misses, fs.statistics().total.misses) == (1, 1)


@pytest.mark.parametrize("is_folder_its_own", [False, True])
def test_what_a_thread_made_that_has_ended_is_no_hit_of_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder_its_own: bool
) -> None:
    monkeypatch.setattr(uses, "COMPLETE_NS", 0)
    with (
        opened(tmp_path / "store") as fs,
        processes("maker") as [maker],
        worker() as (pid, thread, end_thread),
    ):
        folder(fs, "triton/KEY", user(0, thread if is_folder_its_own else maker))
        for name in ("kernel.ttir", "kernel.cubin"):
            write(fs, f"triton/KEY/{name}", b"code", user(0, thread))
        end_thread()
        fs.settle()
        look_up(fs, "triton/KEY", pid)
        fs.settle()
        told = runs(fs)
        assert (told[pid].misses, told[pid].hits) == (1, 0)
        assert (fs.statistics().total.misses, fs.statistics().total.hits) == (1, 0)


def test_who_fills_a_folder_that_another_process_made_has_made_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uses, "COMPLETE_NS", 0)
    with opened(tmp_path / "store") as fs, processes("maker") as [maker], processes("filler") as [filler]:
        folder(fs, "triton/KEY", user(0, maker))
        look_up(fs, "triton/KEY", filler)
        for name in ("kernel.ttir", "kernel.cubin"):
            write(fs, f"triton/KEY/{name}", b"code", user(0, filler))
        fs.settle()
        told = runs(fs)
        assert (told[filler].misses, told[filler].hits) == (1, 0)
        assert told[maker].misses == 0
        assert entry(fs, "triton/KEY").run == told[filler].run
        assert (fs.statistics().total.misses, fs.statistics().total.hits) == (1, 0)


def age(fs: Filesystem, ino: int, seconds: float) -> None:
    """Have a file been made and written that long ago."""
    with fs.nodes.change() as txn:
        node = fs.nodes.get(ino)
        node.atime = node.mtime = node.mtime - int(seconds * SECOND)
        fs.nodes.save(txn, ino, node)


@pytest.mark.parametrize("is_hit_written_down", [False, True])
def test_a_file_that_a_warm_run_adds_to_a_group_is_no_miss(tmp_path: Path, is_hit_written_down: bool) -> None:
    """As JAX, which notes when it read an executable, also if it did not when that was written."""
    with opened(tmp_path / "store") as fs, processes("maker") as [maker], processes("warm") as [warm]:
        age(fs, write(fs, "jax/jit_f-1f2e-cache", b"executable", user(0, maker)), 1.0)
        fs.settle()
        look_up(fs, "jax/jit_f-1f2e-cache", warm)
        if is_hit_written_down:
            fs.settle()
        write(fs, "jax/jit_f-1f2e-atime", b"now", user(0, warm))
        found, told = entry(fs, "jax/jit_f-1f2e"), runs(fs)
        assert (told[warm].hits, told[warm].misses) == (1, 0)
        assert (fs.statistics().total.hits, fs.statistics().total.misses) == (1, 1)
        assert (found.files, found.run, found.rewritten) == (2, told[maker].run, None)
        assert Insight(fs).events() == []


def test_who_adds_to_a_group_that_the_kernel_knew_of_has_no_miss(tmp_path: Path) -> None:
    """Of processes that start at once, the lookup of the first serves them all: nobody sees that the others read."""
    with opened(tmp_path / "store") as fs, processes("maker") as [maker], processes("warm") as [warm]:
        age(fs, write(fs, "inductor/ab/cabc.py", b"code", user(0, maker)), 1.0)
        fs.settle()
        write(fs, "inductor/ab/cabc.best_config", b"{}", user(0, warm))
        fs.settle()
        assert runs(fs).get(warm) is None or runs(fs)[warm].misses == 0
        assert fs.statistics().total.misses == 1


def test_a_run_that_replaces_a_file_of_a_group_rewrites_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs, processes("maker") as [maker], processes("other") as [other]:
        for name in ("cabc.py", "cabc.so"):
            age(fs, write(fs, f"inductor/ab/{name}", b"code", user(0, maker)), 1.0)
        fs.settle()
        look_up(fs, "inductor/ab/cabc.py", other)
        write(fs, "inductor/ab/.2.3.tmp", b"other code", user(0, other))
        rename(fs, "inductor/ab/.2.3.tmp", "inductor/ab/cabc.so")
        found, told = entry(fs, "inductor/ab/cabc"), runs(fs)
        assert (told[other].hits, told[other].misses) == (0, 1)
        assert (found.run, found.rewriter) == (told[maker].run, told[other].run)


@pytest.mark.parametrize("names", [("cabc.py", "cabc.py"), ("cabc.py", "cabc.so")])
def test_runs_that_make_a_group_at_once_each_miss_it(tmp_path: Path, names: tuple[str, str]) -> None:
    with opened(tmp_path / "store") as fs, processes("one") as [one], processes("two") as [two]:
        for pid in (one, two):
            ino = write(fs, f"inductor/ab/.{pid}.3.tmp", os.urandom(100), user(0, pid))
        age(fs, ino, 60.0)  # the second was begun before the first was done
        for pid, name in zip((one, two), names, strict=True):
            rename(fs, f"inductor/ab/.{pid}.3.tmp", f"inductor/ab/{name}")
        fs.settle()
        for pid in (one, two):
            look_up(fs, f"inductor/ab/{names[1]}", pid)
        fs.settle()
        told = runs(fs)
        assert [(told[pid].misses, told[pid].hits) for pid in (one, two)] == [(1, 0)] * 2
        assert (fs.statistics().total.misses, fs.statistics().total.hits) == (2, 0)


# --- what went --------------------------------------------------------------------------------------------------------


def test_what_is_compiled_again_after_it_made_room_is_counted(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        for key in "AB":
            made(fs, f"triton/{key}", 1.0, size=300_000)
        shrink(fs, 0.8)
        fs.set_limits(NO_GRACE)
        gone = [key for key in "AB" if not fs.tree.find(find(fs, "triton"), key.encode())]
        assert gone == ["A"]
        made(fs, "triton/NEW", 1.0)
        Insight(fs).evict(["triton/NEW"])
        made(fs, "triton/NEW", 1.0)
        made(fs, "triton/A", 1.0)
        assert entry(fs, "triton/A").remade
        assert not entry(fs, "triton/NEW").remade, "somebody wanted that one gone"
    with opened(tmp_path / "store", NO_GRACE) as fs:
        rows = [row for one in Insight(fs).history() for row in one.rows]
        assert (sum(row.evictions for row in rows), sum(row.remade for row in rows)) == (2, 1)
        whys = {one.path_hash: one.why for one in Insight(fs).tombstones()}
        assert whys == {path_hash("triton/A"): "quota", path_hash("triton/NEW"): "evicted"}
        assert [(one.kind, one.path, one.detail) for one in Insight(fs).events()] == [
            ("evicted", "triton/A", "quota"),
            ("evicted", "triton/NEW", "evicted"),
        ]
        Insight(fs).prune(unused=True)
        assert {one.why for one in Insight(fs).tombstones()} >= {"pruned"}


def test_tombstones_and_events_of_another_user_are_not_told(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        made(fs, "triton/MINE", 1.0, uid=1000)
        made(fs, "triton/THEIRS", 1.0, uid=2000)
        Insight(fs).prune(unused=True)
        insight = Insight(fs)
        assert [one.path_hash for one in insight.tombstones(uid=1000)] == [path_hash("triton/MINE")]
        assert [one.path for one in insight.events(uid=1000)] == ["triton/MINE"]
        assert {row.uid for one in insight.history(uid=1000) for row in one.rows} == {1000}
        assert {(one.used_bytes, one.entries) for one in insight.history(uid=1000)} == {(0, 0)}
        insight.reset()
        assert [one.kind for one in insight.events(uid=1000)] == ["evicted"], "nor what concerns the whole mount"


def test_damage_and_power_cuts_leave_a_tombstone(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        made(fs, "triton/DAMAGED", 1.0)
        fs.condemn(find(fs, "triton/DAMAGED/kernel.cubin"), ObjectDamaged("a bit is wrong"))
        made(fs, "triton/CUT", 1.0)
    with Store(tmp_path / "store", Options(background=False)) as store:
        write(Filesystem(store), "triton/CUT/late.json", b"not sealed")
    header = tmp_path / "store" / "kcachefs.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"doubtful": True}))
    with opened(tmp_path / "store") as fs:
        whys = {one.path_hash: one.why for one in Insight(fs).tombstones()}
        assert whys == {path_hash("triton/DAMAGED"): "damaged", path_hash("triton/CUT"): "power cut"}
        assert [(one.kind, one.path, one.detail) for one in Insight(fs).events()] == [
            ("damaged", "triton/DAMAGED", "damaged"),
            ("damaged", "triton/CUT", "power cut"),
        ]


def test_a_grave_is_found_among_many_and_after_reopening(tmp_path: Path) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs:
        made(fs, "triton/A", 1.0)
        record = fs.table.get(entry(fs, "triton/A").entry)
        assert record is not None
        ring = fs.store.history.tombstones
        fs.history.note_gone(record, "quota")
        for number in range(2000):
            record.name = b"%d" % number
            fs.history.note_gone(record, "pruned")
        assert ring.next_number == 2002
        record.name = b"A"
        assert fs.history.was_evicted_for_room(record)
        record.name = b"5"
        assert not fs.history.was_evicted_for_room(record)
    with opened(tmp_path / "store", NO_GRACE) as fs:
        record.name = b"A"
        assert fs.history.was_evicted_for_room(record)
        fs.history.note_gone(record, "pruned")
        assert not fs.history.was_evicted_for_room(record), "the last time it was for another reason"


# --- samples ----------------------------------------------------------------------------------------------------------


class Clock:
    """What the history takes for the time: nobody can set the real clock for one test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000.0
        clock = SimpleNamespace(time=lambda: self.now, time_ns=lambda: int(self.now * SECOND))
        monkeypatch.setattr(history_module, "time", clock)


def test_samples_become_longer_with_age_and_add_up_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with opened(tmp_path / "store") as fs:
        for number in range(3):
            made(fs, f"triton/{number}", 1.0)
            clock.now += 400
        insight = Insight(fs)
        began = clock.now
        for later, lengths in ((0, [10] * 3), (7 * 3600, [300] * 3), (20 * 86400, [3600]), (800 * 86400, [3600])):
            clock.now = began + later
            found = insight.history()
            assert [one.seconds for one in found] == lengths
            assert sum(row.misses for one in found for row in one.rows) == 3
        assert insight.history(clock.now - 86400) == []
        clock.now = began + 7 * 3600
        made(fs, "triton/LATER", 1.0)
        assert [one.seconds for one in insight.history()] == [300, 300, 300, 10]
        assert [one.seconds for one in insight.history(clock.now - 60)] == [10]


def test_a_clock_that_is_set_back_hides_the_future_and_loses_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with opened(tmp_path / "store", NO_GRACE) as fs:
        made(fs, "triton/FUTURE", 1.0)
        Insight(fs).evict(["triton/FUTURE"])
        clock.now -= 86400
        made(fs, "triton/NOW", 1.0)
        Insight(fs).evict(["triton/NOW"])
        found = Insight(fs).history(clock.now - 3600)
        assert sum(row.misses for one in found for row in one.rows) == 1
        assert [one.path for one in Insight(fs).events()] == ["triton/FUTURE", "triton/NOW"], "by number, not by time"


def test_an_idle_mount_writes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        made(fs, "triton/A", 1.0)
        fs.write_down()
        files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
        before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}
        for _ in range(3):
            fs.write_down()
            fs.store.fold()
        assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files} == before


def test_history_that_cannot_be_written_harms_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "store", NO_GRACE) as fs, processes("one") as [pid]:

        def refuse(*_: object) -> None:
            raise NoSpace("the disk is full")

        for ring in fs.store.history.rings():
            monkeypatch.setattr(ring, "put", refuse)
        made(fs, "triton/A", 1.0, pid=pid)
        look_up(fs, "triton/A/kernel.cubin", READER)
        fs.settle()
        assert Insight(fs).stats().total.hits == 1
        assert Insight(fs).evict(["triton/A"]).entries == ["triton/A"]
        assert (Insight(fs).runs(), Insight(fs).events(), Insight(fs).history()) == ([], [], [])
        monkeypatch.undo()
        made(fs, "triton/B", 1.0, pid=pid)
        assert runs(fs)[pid].misses == 2, "what was counted meanwhile is not lost"


def test_numbers_start_again_at_zero_and_history_stays(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as fs:
        made(fs, "triton/A", 1.0, uid=1000)
        look_up(fs, "triton/A/kernel.cubin", READER, uid=2000)
        fs.settle()
        assert Insight(fs).stats().since == 0
        begun = time.time()
        since = Insight(fs).reset()
    with opened(tmp_path / "store") as fs:
        numbers = Insight(fs).stats()
        assert begun <= since <= time.time()
        assert numbers.since == since
        assert (numbers.total.hits, numbers.total.misses, numbers.total.bytes_served) == (0, 0, 0)
        assert (numbers.total.entries, numbers.total.files) == (1, 1)
        assert sum(row.hits for one in Insight(fs).history() for row in one.rows) == 1
        look_up(fs, "triton/A/kernel.cubin", READER, uid=2000)
        fs.settle()
        assert fs.report_for(user(2000)).total.hits == 1
        assert fs.report_for(user(2000)).since == since
