"""Real models on a real GPU, cold and warm, in a plain directory and in a mount: times, ratios, counters and results.

Each measurement is a fresh process (benchmarks/gpu_programs.py). A round is plain cold, mount cold, plain warm, mount
warm, each time from an empty directory and an empty store; in every second round the mount goes first. Further warm
starts (--warm) follow in turns. With --ranks 8 a start is eight processes at once. A ratio is the median of the ratios
of the pairs, so that noise that affects both of a pair cancels out. The table is Markdown. --json keeps every number,
and --also adds the numbers of earlier runs, for when a machine is not available long enough for all rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.gpu_programs import ON_A_CPU, ON_A_GPU, PROGRAMS

ROOT = Path(__file__).resolve().parents[1]
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
PATIENCE = 560.0


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.bundle is not None:
        return bundle(arguments.bundle, arguments.python_version)
    if arguments.fleet:
        from benchmarks import gpu_fleet

        os.environ |= gpu_fleet.CREDENTIALS
    check = Check(arguments.site, arguments.device, arguments.work, arguments.ranks)
    if arguments.phases:
        from benchmarks import gpu_phases

        if arguments.first:
            return gpu_phases.first(
                check, arguments.device, arguments.rounds, hide=arguments.hide_bytecode, keep=arguments.json
            )
        return gpu_phases.check(
            check,
            arguments.device,
            arguments.rounds,
            arguments.rounds if arguments.cold is None else arguments.cold,
            hide=arguments.hide_bytecode,
            keep=arguments.json,
            also=arguments.also,
        )
    if arguments.fleet:
        chosen = arguments.only or (ON_A_GPU if arguments.device == "cuda" else ON_A_CPU)
        print(f"{check.machine()}\n", flush=True)
        return gpu_fleet.check(check, chosen, arguments.repeat)
    if arguments.saved:
        from benchmarks import gpu_saved

        chosen = arguments.only or (gpu_saved.ON_A_GPU if arguments.device == "cuda" else gpu_saved.ON_A_CPU)
        machine = check.machine()
        print(f"{machine}\n", flush=True)
        return gpu_saved.check(check, chosen, arguments.repeat, machine, arguments.json)
    earlier = [json.loads(path.read_text()) for path in arguments.also]
    known = dict.fromkeys(name for run in earlier for name in run["rounds"])
    names = arguments.only or list(known) or (ON_A_GPU if arguments.device == "cuda" else ON_A_CPU)
    rounds: dict[str, list[dict[str, Any]]] = {
        name: [one for run in earlier for one in run["rounds"].get(name, [])] for name in names
    }
    machines = dict.fromkeys([run["machine"] for run in earlier] + ([check.machine()] if arguments.repeat else []))
    if len(machines) > 1:
        raise CheckFailed("these results are from different machines: " + "; ".join(machines))
    machine = next(iter(machines), "")
    print(f"{machine}\n", flush=True)
    for number in range(arguments.repeat):
        for name in names:
            rounds[name].append(check.round(name, mount_first=len(rounds[name]) % 2 == 1, warm=arguments.warm))
            taken = ", ".join(f"{kind} {result['seconds']:.2f} s" for kind, result in rounds[name][-1]["runs"].items())
            print(f"round {number + 1}, {name}: {taken}", file=sys.stderr, flush=True)
            _keep(arguments.json, machine, rounds)  # after each round, in case the machine goes away
    _keep(arguments.json, machine, rounds)
    print(table(rounds))
    return 0 if all(agrees(one) for many in rounds.values() for one in many) else 1


def _keep(path: Path | None, machine: str, rounds: dict[str, list[dict[str, Any]]]) -> None:
    if path is not None:
        whole = path.with_name(path.name + ".part")
        measured = {name: many for name, many in rounds.items() if many}
        whole.write_text(json.dumps({"machine": machine, "rounds": measured}, indent=2))
        whole.replace(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gpu_check", description="Check kcachefs on this machine's GPU.")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), help="only these, separated by commas: " + ", ".join(PROGRAMS)
    )
    parser.add_argument("--repeat", type=int, default=3, help="rounds of cold and warm starts, plain and in a mount")
    parser.add_argument("--warm", type=int, default=1, help="warm starts of each kind in a round")
    parser.add_argument("--ranks", type=int, default=1, help="start this many processes at once; the slowest counts")
    parser.add_argument(
        "--device", default="cuda", help="cuda; or cpu: TorchInductor on the CPU, and Triton compiling for sm_90"
    )
    parser.add_argument("--fleet", action="store_true", help="check a second node of a fleet instead")
    parser.add_argument("--saved", action="store_true", help="check the seconds that a mount says were saved instead")
    parser.add_argument("--phases", action="store_true", help="time the phases of a start instead, imports first")
    parser.add_argument("--first", action="store_true", help="with --phases: first starts, before and after a warming")
    parser.add_argument("--rounds", type=int, default=7, help="with --phases: rounds; 0 only shows --also")
    parser.add_argument("--cold", type=int, help="with --phases: how many of the rounds begin with empty caches")
    parser.add_argument(
        "--hide-bytecode", action="store_true", help="with --phases: as in an image without bytecode, on any machine"
    )
    parser.add_argument("--work", type=Path, help="where to put caches and stores; should be a local disk")
    parser.add_argument("--site", type=Path, help="a folder made by --bundle, with the packages that kcachefs needs")
    parser.add_argument("--bundle", type=Path, help="only fetch the packages that kcachefs needs into this folder")
    parser.add_argument("--python-version", default="3.12", help="the Python of the machine that the bundle is for")
    parser.add_argument("--json", type=Path, help="also write every number to this file")
    parser.add_argument(
        "--also",
        type=Path,
        nargs="+",
        default=[],
        help="add the numbers of these files from earlier runs; with --repeat 0 only those",
    )
    return parser


# --- the bundle ------------------------------------------------------------------------------------------------------


def bundle(folder: Path, version: str) -> int:
    """Fetch the wheels that kcachefs needs for that Python, and unpack them so that a PYTHONPATH suffices."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["fleet"]]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as wheels:
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "-d", wheels]
        command += ["--python-version", version, "--only-binary=:all:", "--implementation", "cp"]
        command += [word for name in PLATFORMS for word in ("--platform", name)]
        subprocess.run([*command, *needed], check=True)
        names = sorted(os.listdir(wheels))
        for name in names:
            with zipfile.ZipFile(Path(wheels) / name) as wheel:
                wheel.extractall(folder)
    print(f"{len(names)} packages for Python {version} in {folder}; there, run: scripts/gpu_check --site {folder}")
    return 0


# --- measuring -------------------------------------------------------------------------------------------------------


class CheckFailed(Exception):
    """A program or a command failed; the message is its output."""


class Check:
    """Runs the programs with their caches in a plain directory or in a mount."""

    def __init__(self, site: Path | None, device: str, work: Path | None, ranks: int = 1) -> None:
        self._device = device
        self._ranks = ranks
        self.work = work
        paths = [str(ROOT), *([str(site.resolve())] if site is not None else [])]
        # Only the commands of kcachefs see its packages; the measured programs run as they would without it.
        self._commands = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def machine(self) -> str:
        script = (
            "import torch, platform\n"
            "try:\n import triton; version = triton.__version__\n"
            "except ImportError:\n version = 'none'\n"
            "name = torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'\n"
            "print(f'{name}, torch {torch.__version__}, CUDA {torch.version.cuda}, Triton {version}')"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        kernel = ".".join(platform.release().split(".")[:2])
        return f"{done.stdout.strip()}, Python {platform.python_version()}, Linux {kernel}"

    def round(self, name: str, *, mount_first: bool, warm: int = 1) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=self.work, prefix="gpu-check-") as folder:
            base = Path(folder)
            plain = self.environment(base / "plain", base / "plain-tmp")
            with self.mounted(base) as mount:
                on_mount = self.environment(mount, base / "mount-tmp")
                places = [("plain", plain), ("mount", on_mount)]
                if mount_first:
                    places.reverse()
                runs = {
                    f"{place} {state}": self.run(name, environment)
                    for state in ("cold", "warm")
                    for place, environment in places
                }
                again = []
                for _ in range(warm - 1):
                    places.reverse()
                    again.append({f"{place} warm": self.run(name, environment) for place, environment in places})
                return {"runs": runs, "again": again, "mount": self._statistics(mount)}

    def environment(self, folder: Path, temporary: Path) -> dict[str, str]:
        """The variables for a mount, or for a plain directory as if it were a mount, torch's header included."""
        temporary.mkdir()
        self._commands["TMPDIR"] = str(temporary)
        values: dict[str, str] = json.loads(self.command("-c", _ENVIRONMENT, str(folder)))
        return {**values, "TMPDIR": str(temporary), "TRITON_DEFAULT_FP_FUSION": "1"}

    def run(self, name: str, environment: dict[str, str]) -> dict[str, Any]:
        """One start. Of several ranks at once, the slowest: the others wait for it before the first step."""
        with ThreadPoolExecutor(self._ranks) as pool:
            results = list(pool.map(lambda _: self._run_one(name, environment), range(self._ranks)))
        if len({result["digest"] for result in results}) > 1:
            raise CheckFailed(f"the ranks of {name} computed different results")
        slowest = max(results, key=lambda result: float(result["seconds"]))
        counted = sum((Counter(result["counters"]) for result in results), Counter[str]())
        return {**slowest, "counters": dict(counted)}

    def _run_one(self, name: str, environment: dict[str, str]) -> dict[str, Any]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("TRITON_", "TORCHINDUCTOR_"))}
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu_programs", name, self._device],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            cwd=ROOT,
            env={**clean, **environment},
            check=False,
        )
        if done.returncode != 0:
            raise CheckFailed(f"{name} failed:\n{done.stdout}{done.stderr}")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {**result, "process_seconds": time.perf_counter() - started, "said": done.stderr[-2000:]}

    @contextmanager
    def mounted(self, base: Path, *options: str) -> Iterator[Path]:
        mount = base / "mount"
        # A socket's path has room for about a hundred characters, and the working directory's may be longer.
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as runtime:
            places = {"KCACHEFS_RUNTIME_DIR": runtime, "KCACHEFS_LOG_DIR": str(base / "log")}
            self._commands |= places
            self.command("-m", "kcachefs", "mount", str(mount), "--store", str(base / "store"), *options)
            try:
                yield mount
            finally:
                self._commands |= places  # another mount may have been made in between
                self.command("-m", "kcachefs", "umount", str(mount))

    def _statistics(self, mount: Path) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.command("-c", _STATISTICS, str(mount)))
        return result

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, env=self._commands, cwd=ROOT, check=False
        )
        if done.returncode != 0:
            raise CheckFailed(f"{' '.join(arguments[:3])} failed:\n{done.stdout}{done.stderr}")
        return done.stdout


_ENVIRONMENT = """
import json, sys
from pathlib import Path
from kcachefs.frameworks import environment, headers, make_folders
folder = Path(sys.argv[1])
make_folders(folder)
(folder / headers.NAMESPACE).mkdir(exist_ok=True)
headers.link(folder)
print(json.dumps(environment(folder)))
"""

_STATISTICS = """
import json, sys
from pathlib import Path
from kcachefs.daemon import control, registry
print(control.ask(registry.socket_path(sys.argv[1]), "stats", {"settle": True}).decode())
"""


# --- the table -------------------------------------------------------------------------------------------------------


def table(rounds: dict[str, list[dict[str, Any]]]) -> str:
    lines = [
        "| what | cold: plain | mount | ratio | warm: plain | mount | ratio | files | plain | stored | results |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, many in rounds.items():
        cells = [name]
        for state in ("cold", "warm"):
            plain, mount = seconds(many, f"plain {state}"), seconds(many, f"mount {state}")
            ratio = statistics.median(b / a for a, b in zip(plain, mount, strict=True))
            cells += [f"{statistics.median(plain):.3f} s", f"{statistics.median(mount):.3f} s", f"{ratio:.3f}"]
        total = next(one["mount"]["total"] for one in reversed(many) if "mount" in one)
        cells += [f"{total['files']:,}", _megabytes(total["plain_bytes"]), _megabytes(total["stored_bytes"])]
        cells.append("equal" if all(agrees(one) for one in many) else "DIFFERENT")
        lines.append("| " + " | ".join(cells) + " |")
    for name, many in rounds.items():
        counted = {kind: result["counters"] for kind, result in many[-1]["runs"].items() if result.get("counters")}
        if counted:
            lines.append(f"\n{name}: " + "; ".join(f"{kind} {_spell(what)}" for kind, what in counted.items()))
    return "\n".join(lines)


def seconds(rounds: list[dict[str, Any]], kind: str) -> list[float]:
    """How long each start of that kind took."""
    return [result["seconds"] for one in rounds for which, result in _starts(one) if which == kind]


def agrees(one: dict[str, Any]) -> bool:
    """Whether all starts of a round gave the same bits, and the warm ones compiled nothing.

    Of a run that was cut short there may only be the log, which has times but nothing to compare.
    """
    if one.get("from_log"):
        return True
    missed = [result["counters"].get(what, 0) for kind, result in _starts(one) if "warm" in kind for what in _MISSES]
    return len({result["digest"] for _, result in _starts(one)}) == 1 and not any(missed)


def _starts(one: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [start for runs in (one["runs"], *one.get("again", [])) for start in runs.items()]


_MISSES = ("compiled", "graph_misses")


def _spell(counted: dict[str, int]) -> str:
    return ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counted.items())


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


if __name__ == "__main__":
    if shutil.which("nvidia-smi") is None and "--device" not in sys.argv and "--bundle" not in sys.argv:
        print("gpu_check: nvidia-smi not found; does this machine have a GPU?", file=sys.stderr)
    try:
        sys.exit(main())
    except CheckFailed as failed:
        sys.exit(str(failed))
