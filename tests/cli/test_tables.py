"""Tables: no number is lost on any screen, in a pipe, without colours or in an ASCII-only locale."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kcachefs.cli.tables import Table, bar, cells_of, fold
from kcachefs.core.administration import Administration
from kcachefs.core.entry_patterns import meant_by
from kcachefs.core.eviction import BATCH
from kcachefs.core.filesystem import Filesystem
from kcachefs.errors import UsageError
from kcachefs.store import Options, Store
from tests.cli.scene import KCACHEFS, Scene, scene
from tests.waiting import PATIENCE, until

NUMBERS = ("12345", "1023.9 MiB", "999.9 GiB", "18446744073709551615", "23 h")
NAMES = ("triton/" + "K" * 52, "a_kernel_with_a_long_name sm_90, 4 warps, 3 stages", "日本語のカーネル" * 9, "")


def table() -> Table:
    made = Table(("entry", "name"), ("files", "size", "stored", "hits", "used"))
    for name in NAMES:
        made.add(name, name[::-1], *NUMBERS)
    return made


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200, 400])
def test_every_number_is_shown_whole_and_no_line_is_too_wide(width: int) -> None:
    lines = list(table().lines(width))
    text = "\n".join(lines)
    for number in NUMBERS:
        assert text.count(number) == len(NAMES), (width, number)
    longest = max(width, max(len(f"  stored {number}") for number in NUMBERS))
    assert [line for line in lines if cells_of(line) > longest] == []
    letters = re.sub(r"\s", "", text)
    assert letters.count("K") == 2 * 52, "texts are folded and not cut"


def test_without_a_width_each_row_is_a_line() -> None:
    lines = list(table().lines())
    assert len(lines) == len(NAMES) + 1
    assert all(name in line for name, line in zip(NAMES, lines[1:], strict=True))


def test_folding_loses_no_letter() -> None:
    assert "".join(fold("日本語" * 20, 7)) == "日本語" * 20
    assert max(map(cells_of, fold("日本語" * 20, 7))) <= 7


def test_a_bar_is_ascii_where_the_locale_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    assert bar(0.5, 4) == "##.."


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernels() -> Iterator[Scene]:
    """Three kernels: two are called softmax and differ in their shared memory, one is called matmul."""
    with scene() as place:
        folder = place.mount()
        for key, name, shared in (("AAAA1111", "softmax", 0), ("BBBB2222", "softmax", 4096), ("CCCC3333", "matmul", 0)):
            make_kernel(folder / key, name, shared)
        place.settle()
        yield place


def make_kernel(folder: Path, name: str, shared: int) -> None:
    target = {"backend": "cuda", "arch": 90, "warp_size": 32}
    options = {"name": name, "target": target, "num_warps": 4, "num_stages": 3, "shared": shared, "hash": folder.name}
    folder.mkdir()
    (folder / f"{name}.json").write_text(json.dumps(options))
    (folder / f"{name}.cubin").write_text(f"{name} {folder.name}")
    (folder / f"__grp__{name}.json").write_text(json.dumps({"child_paths": {}}))


def on_a_screen(place: Scene, columns: int, *arguments: str, **environment: str) -> str:
    """What a command shows in a terminal of that width."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*KCACHEFS, *arguments],
        stdout=theirs,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        env={**place.environment, "TERM": "xterm", "COLUMNS": str(columns), **environment},
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:
            pass  # EIO: the command has ended
        finally:
            os.close(ours)
        assert process.wait(PATIENCE) == 0, shown
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.mount
@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("verb", ["ls", "stats"])
def test_a_screen_shows_what_a_program_is_told(kernels: Scene, verb: str, columns: int) -> None:
    shown = on_a_screen(kernels, columns, verb, NO_COLOR="1")
    assert "\x1b" not in shown
    assert "…" not in shown
    assert max(map(cells_of, shown.splitlines())) <= columns
    told = json.loads(kernels.must("ls", "--json"))
    assert shown.count("hits") == (1 if columns > 40 else 3 if verb == "ls" else 2)
    if verb == "ls":
        letters = re.sub(r"\s", "", shown)
        assert all(one["path"] in letters for one in told)


@pytest.mark.mount
def test_a_screen_shows_how_far_an_eviction_is() -> None:
    with scene() as place, ExitStack() as opened:
        folder = place.mount()
        for number in range(2 * BATCH):  # they stay open: each batch waits until it is sure that they are in use
            (folder / f"OPEN{number}").mkdir()
            file = opened.enter_context(open(folder / f"OPEN{number}" / "kernel", "wb", buffering=0))
            file.write(b"bytes")
        place.settle()
        shown = until(lambda: _eviction_shown(place), "a bar") or ""
        assert "left alone, in use or pinned" in shown
        place.must("prune", "--unused")  # and nothing where nobody looks


def _eviction_shown(place: Scene) -> str | None:
    """What a command shows that evicts, if that includes how far it is: a busy machine may have no time for it."""
    shown = on_a_screen(place, 100, "prune", "--unused")
    return shown if re.search(r"evicting \d+ entries .*\d+%", shown) else None


@pytest.mark.mount
def test_colours_are_for_terminals_that_want_them(kernels: Scene) -> None:
    assert "\x1b[1m" in on_a_screen(kernels, 80, "ls")
    assert "\x1b" not in on_a_screen(kernels, 80, "ls", TERM="dumb")
    assert "\x1b" not in kernels.must("ls")


@pytest.mark.mount
def test_a_pipe_gets_one_line_for_each_entry_and_all_columns(kernels: Scene) -> None:
    kernels.environment["COLUMNS"] = "20"
    assert len(kernels.must("ls").splitlines()) == 1 + 3
    heading, *rows = kernels.must("stats").splitlines()
    assert {"entries", "files", "ratio", "served", "evicted"} <= set(heading.split())
    assert rows[0].startswith("triton")
    del kernels.environment["COLUMNS"]


@pytest.mark.mount
@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii", "LC_ALL": "C.UTF-8"}])
def test_an_ascii_locale_gets_ascii(kernels: Scene, locale: dict[str, str]) -> None:
    (kernels.mountpoint / "triton" / "日本").write_text("kernel")
    kernels.settle()
    ours = os.fsencode(kernels.folder)
    for verb in ("stats", "status", "doctor", "ls"):
        ended = subprocess.run([*KCACHEFS, verb], env={**kernels.environment, **locale}, capture_output=True)
        assert (ended.returncode in (0, 1), ended.stderr) == (True, b"")
        # `doctor` tells of every mount of the host, and other tests have some with other letters in their names.
        told = [line for line in ended.stdout.splitlines() if b"kcachefs-test-" not in line or ours in line]
        assert verb == "ls" or (told and b"\n".join(told).isascii()), ended.stdout
    kernels.must("evict", "triton/日本")


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.mount
def test_entries_are_found_by_what_people_call_them(kernels: Scene) -> None:
    def found(*arguments: str) -> set[str]:
        return {one["path"] for one in json.loads(kernels.must("ls", "--json", *arguments))}

    both = {"triton/AAAA1111", "triton/BBBB2222"}
    assert found("softmax") == found("SoftM") == found("soft*") == both
    assert found("triton") == found() == both | {"triton/CCCC3333"}
    assert found("shared 4096") == {"triton/BBBB2222"}
    assert found("softmax", "matmul") == found()
    assert found("jax") == set(), "a namespace with nothing in it"
    kernels.run("ls", "tritn").refused_with(2, "tritn: no entry is called that; did you mean triton?")
    kernels.run("ls", "sofmax").refused_with(2, "did you mean softmax?")
    kernels.run("ls", "zzz").refused_with(2, "see: kcachefs ls")
    kernels.run("show", "softmax").refused_with(2, "means 2 entries (triton/AAAA1111, triton/BBBB2222); give the path")


@pytest.mark.mount
def test_kernels_of_one_name_are_told_apart_by_what_differs(kernels: Scene) -> None:
    names = {one["path"]: one["name"] for one in json.loads(kernels.must("ls", "--json"))}
    assert names == {
        "triton/AAAA1111": "softmax sm_90, 4 warps, 3 stages, shared 0",
        "triton/BBBB2222": "softmax sm_90, 4 warps, 3 stages, shared 4096",
        "triton/CCCC3333": "matmul sm_90, 4 warps, 3 stages",
    }


@pytest.mark.mount
def test_entries_are_pinned_and_evicted_by_what_people_call_them(kernels: Scene) -> None:
    def pinned() -> set[str]:
        return {one["path"] for one in json.loads(kernels.must("ls", "--json")) if one["pinned"]}

    kernels.must("pin", "softmax*")
    assert pinned() == {"triton/AAAA1111", "triton/BBBB2222"}
    kernels.must("unpin", "softmax")
    assert pinned() == set()
    kernels.run("pin", "soft").refused_with(2, "soft: no entry is called that")
    assert "would evict 1 entry" in kernels.must("evict", "--dry-run", "*shared 4096")


def test_a_pattern_that_means_nothing_changes_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "store", Options(background=False)) as store:
        with pytest.raises(UsageError, match="no entry is called that"):
            Administration(Filesystem(store)).pin(["nothing"])
    assert meant_by([], []) == []
