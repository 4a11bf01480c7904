"""scripts/requirements/*.txt pins, with hashes, what set-up and the image install, as pyproject.toml wants it."""

from __future__ import annotations

import re
import runpy
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cli.scene import PACKAGE

ROOT = PACKAGE.parent
FILES = ("run", "pytest", "test", "source")
"""In the order in which they are installed."""
EXTENSIONS = ("blake3", "lmdb", "msgspec", "zstandard")
"""Packages with a wheel for each Python and each machine."""


def text_of(name: str) -> str:
    return (ROOT / "scripts" / "requirements" / f"{name}.txt").read_text()


def pinned(name: str) -> dict[str, tuple[str, list[str]]]:
    """Each package of a file with its version and its hashes; fails at a line that is anything else."""
    found = {}
    for line in text_of(name).replace("\\\n", " ").splitlines():
        if not line.startswith("#"):
            parts = re.fullmatch(r"([a-z0-9-]+)==(\S+?)((?: +--hash=sha256:[0-9a-f]{64})+)", line)
            assert parts is not None, f"{name}.txt: {line[:80]}"
            found[parts[1]] = (parts[2], re.findall(r"[0-9a-f]{64}", parts[3]))
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_requirement_has_one_version_and_hashes(name: str) -> None:
    found = pinned(name)
    assert found
    assert all(len(set(hashes)) == len(hashes) for _, hashes in found.values())
    assert "://" not in text_of(name), "pip knows where packages come from"


def test_there_is_a_wheel_for_every_python_and_both_machines() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    pythons = len(re.findall(r"Programming Language :: Python :: 3\.\d+", project))
    for name in EXTENSIONS:
        assert len(pinned("run")[name][1]) >= 2 * pythons, name


def test_the_files_are_those_of_pyproject_as_it_is_now() -> None:
    wanted = runpy.run_path(str(ROOT / "scripts" / "lock_requirements.py"))["inputs"]()
    assert tuple(wanted) == FILES
    for name in FILES:
        written = [line.removeprefix("#   ") for line in text_of(name).splitlines() if line.startswith("#   ")]
        assert written == wanted[name], f"{name}.txt is out of date; run: scripts/lock_requirements.py"
        versions = {one: version for file in FILES for one, (version, _) in pinned(file).items()}
        for requirement in map(Requirement, wanted[name]):
            assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_no_package_is_in_two_files() -> None:
    names = [one for file in FILES for one in pinned(file)]
    assert len(set(names)) == len(names)


def test_whatever_a_pinned_package_needs_is_pinned_too() -> None:
    """By the metadata of what is installed here, in the same version: pip would refuse to install it otherwise."""
    known: dict[str, str] = {}
    looked_at = 0
    for file in FILES:
        known |= {name: version for name, (version, _) in pinned(file).items()}
        for name, (version, _) in pinned(file).items():
            try:
                installed = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue
            if installed.version != version:
                continue
            looked_at += 1
            for needed in map(Requirement, installed.requires or []):
                if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                    assert known.get(canonicalize_name(needed.name), "") in needed.specifier, f"{name} needs {needed}"
    assert looked_at > 20
