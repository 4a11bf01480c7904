"""Writes scripts/requirements/*.txt anew: exact versions, with hashes, of all that set-up and the image install.

    .venv/bin/python scripts/lock_requirements.py

It asks pip what it would install on every Python that pyproject.toml names, on x86-64 and aarch64, with an old and with
a new C library, and keeps the hash of every wheel in the answers. Run it after a change of the dependencies, or for
newer versions. Some minutes; it needs libfuse3-dev and pkg-config, because pip has to look into pyfuse3's source.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "scripts" / "requirements"
MACHINES = ("x86_64", "aarch64")
GLIBCS = (39, 28)
"""Wheels differ in the oldest C library they run on: as for a system with 2.39, and for one with 2.28."""

EDITABLE = ("editables",)
"""What hatchling needs to install a checkout."""
PYFUSE3_BUILD = ("setuptools>=78.1.1", "setuptools-scm>=8", "cython")
"""What pyfuse3, of which there are no wheels, is built with."""
INSTALLER = ("pip>=24",)
"""Debian 12's own cannot install for Python 3.12 and newer."""
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "networkx", "numpy", "sympy")
"""What torch installs besides itself. scripts/setup.sh says why torch and triton are not locked."""
PYTEST = ("pytest", "hypothesis")
"""What the tests that run on every Python need; pytest's plugins begin with its name."""

HEADERS = {
    "run": "What kcachefs runs with, and what builds and installs it.",
    "pytest": "What the tests need on every Python, besides run.txt.",
    "test": "What scripts/test needs besides run.txt and pytest.txt.",
    "source": "Has no wheels, and is built on the machine with the tools in test.txt.",
}


class Wheel(NamedTuple):
    """One line of pip's answer."""

    name: str
    version: str
    digest: str


class Target(NamedTuple):
    """A machine to install on."""

    python: str
    machine: str


def inputs() -> dict[str, list[str]]:
    """What each file is to hold, before pip adds what that needs in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    # With the fleet: an image in which it cannot be switched on would be of little use to one.
    run = [*project["project"]["dependencies"], *extras["fleet"], *project["build-system"]["requires"], *EDITABLE]
    pytest = [one for one in extras["dev"] if one.startswith(PYTEST)]
    dev = [one for one in extras["dev"] if one not in pytest]
    test = [*dev, *extras["cuda"], *extras["live"], *PYFUSE3_BUILD, *INSTALLER, *TORCH_NEEDS]
    return {"run": run, "pytest": pytest, "test": test, "source": list(extras["pyfuse3"])}


def targets() -> list[Target]:
    text = (ROOT / "pyproject.toml").read_text()
    pythons = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)
    return [Target(python, machine) for python in pythons for machine in MACHINES]


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    wanted = inputs()
    found: dict[str, dict[Target, list[Wheel]]] = {"run": {}, "pytest": {}, "test": {}}
    for target in targets():
        # The files are installed together, so each keeps to the versions of those before it.
        pins: list[str] = []
        for name in found:
            wheels = resolve(wanted[name], target, GLIBCS[0], pins)
            for glibc in GLIBCS[1:]:
                wheels += resolve(wanted[name], target, glibc, pins_of(wheels), optional=True)
            found[name][target] = wheels
            pins = pins_of([*wheels, *(wheel for earlier in found.values() for wheel in earlier.get(target, []))])
            print(f"{name}: Python {target.python} on {target.machine}: {len({w.name for w in wheels})} packages")
    before: set[str] = set()
    for name, by_target in found.items():
        write(name, wanted[name], lines(by_target, leave_out=before))
        before |= {wheel.name for wheels in by_target.values() for wheel in wheels}
    write(
        "source", wanted["source"], lines({target: source(wanted["source"]) for target in targets()}, leave_out=set())
    )


def resolve(
    requirements: Sequence[str], target: Target, glibc: int, pins: Iterable[str], *, optional: bool = False
) -> list[Wheel]:
    platforms = [f"manylinux_2_{minor}_{target.machine}" for minor in range(glibc, 4, -1)]
    platforms += [f"{old}_{target.machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    options = ["--only-binary", ":all:", "--python-version", target.python, "--target", "unused"]
    options += [word for platform in platforms for word in ("--platform", platform)]
    return ask_pip([*options, *requirements], pins, optional=optional)


def source(requirements: Sequence[str]) -> list[Wheel]:
    names = [re.match(r"[\w-]+", one)[0] for one in requirements]  # type: ignore[index]
    return ask_pip(["--no-deps", "--no-binary", ",".join(names), *requirements], [])


def ask_pip(arguments: Sequence[str], pins: Iterable[str], *, optional: bool = False) -> list[Wheel]:
    """What pip would install. Nothing if that is impossible and only `optional`."""
    with tempfile.TemporaryDirectory() as folder:
        constraints, report = Path(folder, "constraints.txt"), Path(folder, "report.json")
        constraints.write_text("\n".join(pins))
        command = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--constraint", str(constraints), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        if done.returncode != 0 and optional:
            return []
        if done.returncode != 0:
            sys.exit(f"pip: {done.stderr.strip()}")
        answer = json.loads(report.read_text())
    wheels = []
    for one in answer["install"]:
        name = re.sub(r"[-_.]+", "-", one["metadata"]["name"]).lower()
        digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
        wheels.append(Wheel(name, one["metadata"]["version"], digest))
    return wheels


def pins_of(wheels: Iterable[Wheel]) -> list[str]:
    return sorted({f"{wheel.name}=={wheel.version}" for wheel in wheels})


def lines(by_target: dict[Target, list[Wheel]], leave_out: set[str]) -> list[str]:
    """One requirement for each version of each package, with the hashes of its wheels."""
    where: dict[tuple[str, str], set[Target]] = defaultdict(set)
    digests: dict[tuple[str, str], set[str]] = defaultdict(set)
    for target, wheels in by_target.items():
        for wheel in wheels:
            if wheel.name not in leave_out:
                where[wheel.name, wheel.version].add(target)
                digests[wheel.name, wheel.version].add(wheel.digest)
    made = []
    for (name, version), here in sorted(where.items()):
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(digests[name, version]))
        made.append(f"{name}=={version}{marker(here, set(by_target))}{hashes}")
    return made


def marker(here: set[Target], everywhere: set[Target]) -> str:
    """The condition under which a line holds; empty if it always does."""
    if here == everywhere:
        return ""
    pythons = sorted({target.python for target in here}, key=lambda version: int(version.partition(".")[2]))
    if all(Target(python, machine) in here for python in pythons for machine in MACHINES):
        return " ; " + " or ".join(f'python_version == "{python}"' for python in pythons)
    each = sorted(here)
    return " ; " + " or ".join(
        f'(python_version == "{one.python}" and platform_machine == "{one.machine}")' for one in each
    )


def write(name: str, wanted: Sequence[str], made: Sequence[str]) -> None:
    text = f"# {HEADERS[name]} scripts/lock_requirements.py wrote this, from:\n"
    text += "".join(f"#   {one}\n" for one in wanted)
    (FOLDER / f"{name}.txt").write_text(text + "\n".join(made) + "\n")
    print(f"wrote scripts/requirements/{name}.txt: {len(made)} requirements")


if __name__ == "__main__":
    main()
