"""What a mount tells to explain its misses: the whole of it to its owner, their own to others, and without a use."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcachefs.daemon import control, registry
from kcachefs.mounts.insight_reports import InsightReports, asking_folder
from tests.engines.callers import OTHER, STRANGER, Identity, in_child
from tests.engines.mounting import Mount, temporary_folder

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
