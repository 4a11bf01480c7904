#!/usr/bin/env python3
"""Runs the cache tests of cuda.core, ninetoothed and Triton against kcachefs, from clones that you have.

    scripts/peer_suites.py --cuda-python DIR --ninetoothed DIR --triton DIR

DIR is a clone of NVIDIA/cuda-python, InfiniTensor/ninetoothed or triton-lang/triton, bare or not, or a folder with its
files; DIR@REVISION takes another revision of a clone than the default. Nothing of it is copied into this project: the
tests are unpacked into a temporary folder, run once against the peer's own cache and then against ours in its place,
and compared test by test. What differs by choice is listed with the reason in tests/peers/differences.py; anything else
that differs is an error. A test that fails is run once more, and told apart if it passes then: some of the peers' tests
start two processes and need the first to be quicker than the second.

Needs what the peers need (cuda-core; sympy, numpy, torch, triton; expecttest), and for a mount /dev/fuse.
Tests that fail or are skipped with the peer's own cache too, for want of a GPU or of that version, are counted apart.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.peers.differences import DIFFERENCES  # noqa: E402

START = ROOT / "tests" / "peers" / "start"
AGAIN = "passed when run again"
MARKERS = ("agent_authored", "thread_unsafe")
CUDA_CORE_CONFTEST = """
import pytest
@pytest.fixture
def init_cuda():
    try:
        from cuda.core import Device
        Device().set_current()
    except Exception as error:
        pytest.skip(f"needs a GPU: {error}")
"""


@dataclass(frozen=True)
class Suite:
    """The tests of one peer: which files of which revision, and how ours gets in the place of theirs."""

    name: str
    revision: str
    tests: tuple[str, ...]
    others: tuple[str, ...] = ()
    """Further files and folders that the tests need."""
    conftest: str = ""
    modules: dict[str, Path] = field(default_factory=dict)
    """Modules of the peer, by path, that are replaced by the content of a file of ours."""
    variables: dict[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    """Folders of the clone that are on the Python path."""


SUITES = {
    "cuda_python": Suite(
        "cuda.core",
        "HEAD",
        tuple(f"cuda_core/tests/test_program_{name}.py" for name in ("cache", "cache_multiprocess", "compile_cache")),
        conftest=CUDA_CORE_CONFTEST,
        variables={"KCACHEFS_PEER": "cuda.core"},
    ),
    "ninetoothed": Suite(
        "ninetoothed",
        "cache-unify",
        ("tests/test_cache.py", "tests/test_make_cache_key.py", "tests/test_atomic_write.py"),
        others=("src", "tests"),
        modules={"src/ninetoothed/_cache.py": ROOT / "tests" / "peers" / "ninetoothed_cache.py"},
        paths=("src",),
    ),
    "triton": Suite(
        "Triton",
        "HEAD",
        ("python/test/unit/runtime/test_cache.py",),
        others=("python/conftest.py", "python/test/conftest.py"),  # the fixtures have moved
        variables={"KCACHEFS_PEER": "triton", "TRITON_CACHE_MANAGER": "kcachefs.triton:CacheManager"},
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in SUITES:
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="DIR[@REVISION]")
    parser.add_argument("--verbose", action="store_true", help="show what pytest prints")
    given = vars(parser.parse_args())
    if not any(given[name] for name in SUITES):
        parser.error("name at least one clone")
    is_fine = True
    for name, suite in SUITES.items():
        if given[name]:
            clone, _, revision = given[name].partition("@")
            is_fine &= compare(suite, Path(clone), revision or suite.revision, given["verbose"])
    return 0 if is_fine else 1


def compare(suite: Suite, clone: Path, revision: str, verbose: bool) -> bool:
    """Run a suite in all its ways and print how they compare; whether nothing differs that should not."""
    with tempfile.TemporaryDirectory(prefix="kcachefs-peers-") as folder:
        root = Path(folder, "suite")
        unpack(suite, clone, revision, root)
        theirs = run_twice(suite, root, {}, verbose)
        ways = {"kcachefs": run_twice(suite, root, suite.variables, verbose, suite.modules)}
        if suite.name == "Triton":
            with mounted(Path(folder)) as mount:
                ways["Triton's own on a mount"] = run_twice(suite, root, {"TMPDIR": str(mount / "triton")}, verbose)
    results = [report(suite, way, theirs, ours) for way, ours in ways.items()]
    return all(results)


def unpack(suite: Suite, clone: Path, revision: str, root: Path) -> None:
    """The files of a revision, as the tests need them; of a folder without a repository, as they are."""
    root.mkdir()
    wanted = [*suite.tests, *suite.others]
    if is_repository(clone):
        git = ["git", "-C", str(clone)]
        listed = subprocess.run([*git, "ls-tree", "--name-only", revision, *wanted], check=True, capture_output=True)
        archive = subprocess.run(
            [*git, "archive", revision, *listed.stdout.decode().split()], check=True, capture_output=True
        )
        subprocess.run(["tar", "-x", "-C", str(root)], input=archive.stdout, check=True)
    else:
        for path in filter(lambda path: (clone / path).exists(), wanted):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            if (clone / path).is_dir():
                shutil.copytree(clone / path, root / path, dirs_exist_ok=True)
            else:
                shutil.copy(clone / path, root / path)
    if suite.conftest:
        (root / "conftest.py").write_text(suite.conftest)
    markers = "\n".join(f"    {marker}: of the peer" for marker in MARKERS)
    (root / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{markers}\n")


def is_repository(clone: Path) -> bool:
    return (clone / ".git").exists() or (clone / "objects").is_dir()


def run_twice(
    suite: Suite, root: Path, variables: dict[str, str], verbose: bool, modules: dict[str, Path] | None = None
) -> dict[str, str]:
    """The outcome of every test: passed, failed, skipped, or passed when it was run again."""
    for path, module in (modules or {}).items():
        (root / path).write_text(f"exec(compile(open({str(module)!r}).read(), {str(module)!r}, 'exec'))\n")
    outcomes = run(suite, root, variables, verbose)
    if "failed" in outcomes.values():
        for test, outcome in run(suite, root, variables, verbose, "--last-failed").items():
            if outcome == "passed" and outcomes[test] == "failed":
                outcomes[test] = AGAIN
    return outcomes


def run(suite: Suite, root: Path, variables: dict[str, str], verbose: bool, *options: str) -> dict[str, str]:
    """The outcome of every test that pytest runs with these options."""
    report = root / "report.xml"
    environment = {
        **environment_with(*(root / path for path in suite.paths), ROOT, START),
        **variables,
        "TRITON_CACHE_DIR": tempfile.mkdtemp(dir=root),
    }
    words = ["-m", "pytest", *options, "-q", f"--rootdir={root}", f"--junitxml={report}"]
    words += [f"--basetemp={tempfile.mkdtemp(dir=variables.get('TMPDIR'))}/tests", *suite.tests]
    output = None if verbose else subprocess.DEVNULL
    subprocess.run([sys.executable, *words], cwd=root, env=environment, check=False, stdout=output, stderr=output)
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if not case.get("classname"):
            raise SystemExit(f"{suite.name}: {case.get('name')} cannot be imported; --verbose shows why")
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        outcomes[f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"] = outcome
    return outcomes


def environment_with(*folders: Path) -> dict[str, str]:
    """The environment with folders on the Python path before those that are there; absolute, for daemons start in /."""
    inherited = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, folders), *inherited])}


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """A mount in a folder."""
    mount, store = folder / "mount", folder / "store"
    mount.mkdir()
    command = [sys.executable, "-m", "kcachefs"]
    environment = environment_with(ROOT)
    subprocess.run([*command, "mount", str(mount), "--store", str(store)], check=True, env=environment)
    try:
        yield mount
    finally:
        subprocess.run([*command, "umount", str(mount)], check=True, env=environment)


def report(suite: Suite, way: str, theirs: dict[str, str], ours: dict[str, str]) -> bool:
    """Print one line for a suite, and one for each test that differs; whether every difference is a choice."""
    known = DIFFERENCES.get(suite.name, {}) if way == "kcachefs" else {}
    counts = {"pass": 0, "differ by choice": 0, "not with theirs either": 0}
    wrong = []
    for test, outcome in theirs.items():
        reason = known.get(test.partition("[")[0].partition("::")[2])
        if outcome not in ("passed", AGAIN):
            counts["not with theirs either"] += 1
        elif ours.get(test) in ("passed", AGAIN):
            counts["pass"] += 1
        elif reason:
            counts["differ by choice"] += 1
        else:
            wrong.append(test)
    told = ", ".join(f"{count} {what}" for what, count in counts.items())
    print(f"{suite.name} with {way}: {len(theirs)} tests, {told}, {len(wrong)} wrong", flush=True)
    for test in sorted(test for test in ours if AGAIN in (ours[test], theirs.get(test))):
        print(f"  only when run again: {test} theirs {theirs.get(test)}, ours {ours[test]}")
    for test in wrong:
        print(f"  wrong: {test} {ours.get(test, 'did not run')}")
    return not wrong and bool(theirs)


if __name__ == "__main__":
    sys.exit(main())
