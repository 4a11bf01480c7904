"""Wrong input: each is told in one line that names it and says what to do, with its exit code, and touches nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from kcachefs.cli import make_app
from kcachefs.cli.usage import a_path
from tests.cli.scene import Scene, scene

pytestmark = pytest.mark.mount

SIZE = "write it like 20GiB, 512M or 1000000"

WRONG: list[tuple[str, int, str]] = [
    # `.*` stands for anything; `new` for the mounting of a new store; MOUNT and EMPTY for what they say.
    # --- words that are not known ---
    ("mout", 2, "mout: no such command; did you mean mount or umount? See: kcachefs --help"),
    ("stas", 2, "stas: no such command; did you mean stats or status? See: kcachefs --help"),
    ("evcit x", 2, "evcit: no such command; did you mean evict? See: kcachefs --help"),
    ("frobnicate", 2, "frobnicate: no such command; see: kcachefs --help"),
    ("help mout", 2, "mout: no such command; did you mean mount or umount? See: kcachefs help --help"),
    ("help fleet psuh", 2, "psuh: no such command; did you mean push? See: kcachefs help --help"),
    ("help mount full", 2, "full: no such command; see: kcachefs help --help"),
    ("--colour", 2, "--colour: no such option; see: kcachefs --help"),
    ("ls --srot size", 2, "--srot: no such option; did you mean --sort? See: kcachefs ls --help"),
    ("frameworks --isntalled", 2, "--isntalled: no such option; did you mean --installed? See: .*"),
    ("ls tritn", 2, "tritn: no entry is called that; did you mean triton?"),
    ("ls zzzz", 2, "zzzz: no entry is called that; see: kcachefs ls"),
    ("pin KEYY", 2, "KEYY: no entry is called that; did you mean KEY?"),
    ("unpin zzzz", 2, "zzzz: no entry is called that; see: kcachefs ls"),
    ("pin tritn", 2, "tritn: no entry is called that; did you mean 'triton/*'?"),
    ("pin triton", 2, "triton: is a namespace; write 'triton/*' for all of its entries, or .*: kcachefs ls triton"),
    ("evict triton/", 2, "triton/: is a namespace; write 'triton/*' .*"),
    ("evict cuda", 2, "cuda: there is no entry in this namespace; see: kcachefs ls"),
    ("evict nothing/at/all", 2, "nothing/at/all: no entry is called that; see: kcachefs ls"),
    ("env --only trition", 2, "trition: no such framework; did you mean triton?"),
    ("env --only zzzz", 2, "zzzz: no such framework; see: kcachefs frameworks"),
    ("run --only inductr -- true", 2, "inductr: no such framework; did you mean inductor?"),
    ("adopt full --as tritn", 2, "--as tritn: no such namespace; did you mean triton?"),
    ("env --format fihs", 2, "--format fihs: unknown; did you mean fish?; there are sh, fish, .*"),
    ("env --json --format fish", 2, "--json: means --format json, so --format fish contradicts it; .*"),
    ("ls --sort colour", 2, "--sort colour: unknown; choose one of used, size, hits, age"),
    ("new --engine steam", 2, "--engine steam: is not known; use direct or pyfuse3"),
    ("new --policy secret", 2, "--policy secret: .*shared, publish, private.*"),
    ("new --log-format xml", 2, "--log-format xml: is not known; use text or json"),
    # --- too much, too little ---
    ("pin", 2, "ENTRY is missing; see: kcachefs pin --help"),
    ("evict", 2, "ENTRY is missing; see: kcachefs evict --help"),
    ("adopt", 2, "DIR is missing; see: kcachefs adopt --help"),
    ("run", 2, "COMMAND is missing; see: kcachefs run --help"),
    ("prune", 2, "nothing to prune by; give --older-than, --max-size or --unused"),
    ("ls --sort", 2, "--sort: needs a value; see: kcachefs ls --help"),
    ("mount --max-size", 2, "--max-size: needs a value; see: kcachefs mount --help"),
    ("unpack full --trust", 2, "--trust: needs a value; see: kcachefs unpack --help"),
    ("fleet push --key", 2, "--key: needs a value; see: kcachefs fleet push --help"),
    ("gc extra", 2, "extra: too many arguments; see: kcachefs gc --help"),
    ("status one two", 2, "one two: too many arguments; see: kcachefs status --help"),
    ("mount one two", 2, "two: too many arguments; see: kcachefs mount --help"),
    ("umount one two", 2, "two: too many arguments; see: kcachefs umount --help"),
    ("mount EMPTY", 2, "DIR: is empty; see: kcachefs mount --help"),
    ("umount EMPTY", 2, "DIR: is empty; see: kcachefs umount --help"),
    ("stats --mount EMPTY", 2, "--mount: is empty; see: kcachefs stats --help"),
    ("gc --store EMPTY", 2, "--store: is empty; see: kcachefs gc --help"),
    ("new --store EMPTY", 2, "--store: is empty; see: kcachefs mount --help"),
    ("run -- EMPTY", 2, "no command given; for example: kcachefs run -- python train.py"),
    ("pack EMPTY", 2, "OUT.kcp: is empty; see: kcachefs pack make --help"),
    ("pack .", 2, ".: is not an ordinary file; a pack needs a file of its own"),
    ("report -o full", 2, "full: is a folder; name a file in it"),
    ("report -o nowhere/page.html", 3, "nowhere/page.html: No such file or directory"),
    # --- values that make no sense ---
    ("prune --older-than soon", 2, "'soon' is not an age; write it like 30d, 12h or 90m"),
    ("prune --older-than 6M", 2, "'6M': M could mean months; write 6m for minutes, or days, as in 180d"),
    ("runs --since 1.5M", 2, "'1.5M': M could mean months; write 1.5m for minutes, or days, as in 180d"),
    ("prune --older-than ٣d", 2, "'٣d' is not an age; write it like 30d, 12h or 90m"),
    ("stats --watch --since 1d", 2, "--watch: shows current numbers only; leave it out, or --since and --by"),
    ("stats --watch --by user", 2, "--watch: shows current numbers only; leave it out, or --since and --by"),
    ("new --fleet-writers me", 2, "--fleet-writers me: is not a user or a group; write it like uid:1000,gid:50"),
    ("prune --max-size much", 2, f"'much' is not a size; {SIZE}"),
    ("run --max-size parsecs -- true", 2, f"--max-size: 'parsecs' is not a size; {SIZE}"),
    ("new --max-size lots", 2, f".*'lots'.* not a size; {SIZE}"),
    ("new --max-size 10", 2, "--max-size 10: is too small for any cache; give at least 1.0 MiB"),
    ("new --grace -1", 2, "--grace -1.0: is not a valid number of seconds; give one from 0 up"),
    ("new --grace soon", 2, "--grace.*not a number.*"),
    ("new --max-files many", 2, "--max-files.*not a whole number.*"),
    ("new --hang-timeout 0", 2, "--hang-timeout 0.0: is not a valid number of seconds; give one from 1 up"),
    ("new --floor triton", 2, ".*triton.* is not NAMESPACE=SIZE; write it like triton=2GiB"),
    ("new --writers me", 2, "--writers me: is not a user or a group; write it like uid:1000,gid:50"),
    ("new --umask 9", 2, "--umask 9: is not an octal mask; write it like 022"),
    ("new --uid 99999999999", 2, "--uid 99999999999: is not a possible id; the largest is 4294967294"),
    ("new --read-only --policy private", 2, "--read-only: means --policy read-only, so .*"),
    ("new --idmap --engine pyfuse3", 2, "--idmap: does not work with --engine pyfuse3; leave out one of the two"),
    ("mount -f --json", 2, "--json: does not work with --foreground, which prints its log; leave out one of the two"),
    # --- places where nothing suitable is ---
    ("adopt nowhere", 2, "nowhere: is not a directory"),
    ("adopt file", 2, "file: is not a directory"),
    ("adopt full", 2, "full: cannot tell which framework this cache belongs to; name it, for example with --as triton"),
    ("adopt MOUNT/triton --as triton", 2, ".*/triton: is already in the mount"),
    ("env --mount nowhere", 4, "nowhere: no kcachefs is mounted there; mount one with: kcachefs mount nowhere"),
    ("umount nowhere", 4, ".*/nowhere: is not a kcachefs mount; see: kcachefs status"),
    ("reload nowhere", 4, ".*/nowhere: is not one of your kcachefs mounts; see: kcachefs status"),
    ("stats --mount nowhere", 4, "nowhere: is not one of your kcachefs mounts; see: kcachefs status"),
    ("report --store nowhere", 3, ".*nowhere: there is no store here"),
    ("stats --store nowhere", 3, "nowhere: there is no store here"),
    ("stats --store full", 3, "full: has files but no .*, so it is not a kcachefs store; choose an empty directory"),
    ("stats --mount MOUNT --store other", 2, "--mount .* has the store .*, not other; give only one of the two"),
    ("fsck --store nowhere", 3, "nowhere: there is no store here"),
    ("fsck --store file", 3, "file: is a file, not a store's directory"),
    ("fsck --store full", 3, "full: there is no store here"),
    ("fsck", 3, ".*the store is in use by process .*"),
    ("mount full --store s2", 4, ".*/full: is not empty, and a mount would hide its contents; .*"),
    ("mount file --store s2", 4, ".*/file: is a file, or leads through one; choose a directory"),
    ("mount /proc --store s2", 4, "/proc: a proc filesystem is mounted there; choose another directory"),
    ("mount MOUNT", 4, ".*: is mounted already; see: kcachefs status"),
    ("mount elsewhere", 3, ".*: is mounted at .*; unmount that first .*"),
    ("run -- no-such-command", 127, "no-such-command: no such command"),
    ("run -- ./file", 126, "./file: cannot be executed: Permission denied"),
    ("run -- file/x", 126, "file/x: cannot be executed: Not a directory"),
]


@pytest.fixture(scope="module")
def mounted() -> Iterator[Scene]:
    with scene() as place:
        place.environment["KCACHEFS_MOUNT"] = ""
        place.must("mount", place.mountpoint)
        (place.mountpoint / "triton" / "KEY").mkdir()
        (place.mountpoint / "triton" / "KEY" / "kernel.cubin").write_bytes(b"cubin")
        place.settle()
        (place.folder / "file").write_text("untouched")
        (place.folder / "full").mkdir()
        (place.folder / "full" / "something").write_text("untouched")
        yield place


def test_there_are_many() -> None:
    assert len(WRONG) >= 60
    assert len({line for line, _, _ in WRONG}) == len(WRONG)


@pytest.mark.parametrize(("line", "code", "message"), WRONG, ids=[line for line, _, _ in WRONG])
def test_wrong_input_is_one_line(mounted: Scene, line: str, code: int, message: str) -> None:
    words = ["mount", "new", "--store", "s2", *line.split()[1:]] if line.startswith("new ") else line.split()
    words = [word.replace("MOUNT", str(mounted.mountpoint)) if word != "EMPTY" else "" for word in words]
    before = sorted(os.listdir(mounted.folder))
    outcome = mounted.run(*words)
    said = [one for one in outcome.err.splitlines() if " served, " not in one]
    assert (outcome.code, outcome.out, len(said)) == (code, "", 1), outcome
    assert re.fullmatch(re.escape(f"kcachefs: {message}").replace(r"\.\*", ".*"), said[0]), said[0]
    assert sorted(os.listdir(mounted.folder)) == before


def test_no_command_takes_an_empty_path_for_the_current_folder() -> None:
    """A forgotten variable leaves one."""

    def paths(command: Any, place: str) -> Iterator[tuple[str, Any]]:
        for one in command.params:
            if "Path" in type(one.type).__name__ or getattr(one.type, "func", None) is a_path:
                yield f"{place} {one.name}", one
        for name, inner in getattr(command, "commands", {}).items():
            yield from paths(inner, f"{place} {name}".strip())

    found = dict(paths(typer.main.get_command(make_app()), ""))
    assert len(found) > 30
    assert [place for place, one in found.items() if getattr(one.type, "func", None) is not a_path] == []
