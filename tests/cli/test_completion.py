"""Completion in real shells, and manual pages that say what `--help` says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from kcachefs.cli import make_app
from kcachefs.cli.manual import pages
from tests import command_program, command_server
from tests.cli.scene import Scene, scene
from tests.insight.test_hostile_users import SOUND, put

ROOT = Path(__file__).resolve().parents[2]
MANUAL = ROOT / "docs" / "man" / "man1"


@pytest.fixture(scope="module")
def place() -> Iterator[Scene]:
    """A mount with an entry, and `kcachefs` on the PATH."""
    with scene() as made:
        binaries = made.folder / "bin"
        command_program.write(binaries / "kcachefs")
        made.environment["PATH"] = f"{binaries}:{made.environment['PATH']}"
        folder = made.mount()
        (folder / "KEY").mkdir()
        (folder / "KEY" / "kernel.cubin").write_bytes(b"cubin")
        made.settle()
        yield made


def in_bash(place: Scene, lines: Iterable[str]) -> list[list[str]]:
    script = (
        'eval "$(kcachefs completion bash)"; complete -p kcachefs | grep -q _kcachefs || exit; for line; do '
        'IFS=" " read -ra COMP_WORDS <<<"$line"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); _kcachefs; '
        'echo "${COMPREPLY[@]}"; done'
    )
    said = place.run("-c", script, "bash", *lines, command=("bash",)).out
    return [offered.split() for offered in said.splitlines()]


def in_zsh(place: Scene, lines: Iterable[str]) -> list[list[str]]:
    """What the function hands to zsh, without the terminal that zsh's own completion would need."""
    script = (
        'compdef() { :; }; _files() { :; }; compadd() { shift; print -l -- "$@"; }; '
        'eval "$(kcachefs completion zsh)"; words=("$@"); CURRENT=$#words; _kcachefs'
    )
    return [place.run("-f", "-c", script, "zsh", *line.split(" "), command=("zsh",)).out.split() for line in lines]


def in_fish(place: Scene, lines: Iterable[str]) -> list[list[str]]:
    scripts = [f"kcachefs completion fish | source; complete -C '{line}'" for line in lines]
    return [place.run("--no-config", "-c", script, command=("fish",)).out.split() for script in scripts]


SHELLS = {"bash": in_bash, "zsh": in_zsh, "fish": in_fish}


@pytest.mark.mount
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_verbs_options_values_entries_and_mounts(place: Scene, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    expected = {
        "kcachefs um": ["umount"],
        "kcachefs ls --so": ["--sort"],
        "kcachefs mount --policy pu": ["publish"],
        "kcachefs env --only trit": ["triton"],
        "kcachefs ls --sort s": ["size"],
        "kcachefs kernels --sort s": ["shared", "size"],
        "kcachefs set --log-level w": ["warning"],
        "kcachefs run --bytecode o": ["off", "on"],
        "kcachefs mount --fleet-mode p": ["publish"],
        "kcachefs ls trito": ["triton", "triton/KEY"],
        "kcachefs pin trito": ["triton/KEY"],
        "kcachefs help prun": ["prune"],
        "kcachefs help fleet pu": ["pull", "push"],
        "kcachefs fleet pu": ["pull", "push"],
        "kcachefs fleet check --fo": ["--for"],
    }
    mounts = [f"kcachefs umount {place.folder}", f"kcachefs stats --mount {place.folder}"]
    offered = SHELLS[shell](place, [*expected, *mounts])
    assert dict(zip(expected, offered, strict=False)) == expected
    # fish offers folders as well.
    assert [str(place.mountpoint) in words for words in offered[len(expected) :]] == [True, True]


@pytest.mark.mount
def test_entries_of_the_mount_that_is_named_are_offered(scene: Scene) -> None:
    for name in ("a", "b"):
        scene.must("mount", name, "--store", f"{name}-store")
        put(scene, f"KEY-{name}", json.dumps({**SOUND, "name": f"softmax_{name}"}).encode(), scene.folder / name)
        scene.must("stats", "--mount", name)
    offered = ["softmax_b", "triton", "triton/KEY-b"]
    for words in (["--mount", "b"], ["--mount=b"], ["--mount", "=", "b"], ["--store", "b-store"]):
        assert scene.must("--complete", "ls", *words, "").split() == offered
        assert scene.must("--complete", "evict", *words, "so").split() == offered[:1]
    assert scene.must("--complete", "ls", "") == "", "which of the two is not said"


@pytest.mark.mount
def test_a_daemon_that_takes_long_is_not_waited_for(scene: Scene) -> None:
    scene.mount("--hang-timeout", "600")
    [mounted] = scene.status()
    worker = mounted["worker_pid"]
    os.kill(worker, signal.SIGSTOP)
    try:
        assert scene.must("--complete", "ls", "tri") == ""
    finally:
        os.kill(worker, signal.SIGCONT)


@pytest.mark.mount
def test_no_more_is_offered_than_a_person_reads(scene: Scene) -> None:
    folder = scene.mount()
    for number in range(250):
        (folder / f"KEY{number}").write_bytes(b"x")
    scene.settle()
    assert len(scene.must("--complete", "pin", "triton/").split()) == 200


@pytest.mark.mount
def test_what_goes_wrong_offers_nothing_and_says_nothing(scene: Scene) -> None:
    for line in (["pin", ""], ["umount", ""], ["nonsense", ""], ["run", "--", "tr"], ["mount", "--store", ""]):
        assert scene.must("--complete", *line) == ""


def test_bash_keeps_the_typed_word_where_nothing_is_offered(scene: Scene) -> None:
    script = (
        'kcachefs() { echo; }; source "$1"; COMP_WORDS=(kcachefs unpack ./wa); COMP_CWORD=2; _kcachefs; '
        'echo "${#COMPREPLY[@]}"; complete -p kcachefs'
    )
    path = ROOT / "kcachefs" / "cli" / "completions" / "kcachefs.bash"
    offered, registered = scene.must("-c", script, "bash", path, command=("bash",)).splitlines()
    assert offered == "0"
    assert "-o default" in registered, "file names, if the function offers nothing"


def test_every_script_is_the_one_that_is_installed() -> None:
    folder = ROOT / "kcachefs" / "cli" / "completions"
    packaged = (ROOT / "pyproject.toml").read_text()
    assert all(f'"kcachefs/cli/completions/{path.name}"' in packaged for path in folder.iterdir())


# --- manual pages -----------------------------------------------------------------------------------------------------


def test_the_manual_pages_are_made_of_the_help_as_it_is_now() -> None:
    made = pages(typer.main.get_command(make_app()))
    kept = {path.name: path.read_text() for path in MANUAL.iterdir()}
    assert sorted(kept) == sorted(made), "run scripts/man_pages.py"
    assert [name for name in made if made[name] != kept[name]] == [], "run scripts/man_pages.py"


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/man/man?/*")), ids=lambda path: path.name)
def test_real_formatters_accept_every_page(path: Path) -> None:
    formatters = {"mandoc": ["-T", "lint", "-W", "error"], "groff": ["-man", "-Tascii", "-ww", "-z"]}
    present = [name for name in formatters if shutil.which(name)]
    if not present:
        pytest.skip("neither mandoc nor groff is installed")
    for name in present:
        done = subprocess.run([name, *formatters[name], path], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), name


@pytest.mark.mount
def test_help_is_help(scene: Scene) -> None:
    for command in (["prune"], ["fleet", "push"], ["pack"], ["pack", "ls"]):
        assert scene.must("help", *command) == scene.must(*command, "--help")
    assert "umount" in scene.must("help")


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_paragraphs_of_the_help_fill_the_terminal(columns: int) -> None:
    shown = command_server.run("fleet", "pull", "--help", env={**os.environ, "COLUMNS": str(columns)}).stdout
    for paragraph in re.split(r"\n *\n", shown.partition("╭")[0]):
        lines = [line.strip() for line in paragraph.strip().splitlines()]
        assert [one for one, after in pairwise(lines) if len(f" {one} {after.split()[0]} ") <= columns] == []
