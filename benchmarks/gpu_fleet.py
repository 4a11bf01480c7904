"""A second node of a fleet on a real GPU: `scripts/gpu_check --fleet`.

A first node starts twice and publishes what it compiled into a bucket, which a server on this machine hands out. Then a
warm start of that node and the first start of a fresh one, with a store and a mount path of its own, follow each other
in turns. The second node may take 1.05 times as long as the warm one, and the time of its fetch.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bucket_server import BucketServer
from benchmarks.gpu_check import Check, CheckFailed, agrees

RATIO_MAX = 1.05
PATIENCE = 60.0


def check(checked: Check, names: Sequence[str], rounds: int) -> int:
    """Print a table; returns the exit code."""
    rows = ["| what | cold | warm node | second node | fetch | ratio | hits | results |"]
    rows.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    is_good = True
    for name in names:
        measured = _FleetCheck(checked, name).measure(rounds)
        is_good = is_good and measured.is_good
        rows.append(measured.row())
        print(f"{name}: {measured.row()}", file=sys.stderr, flush=True)
    print("\n".join(rows))
    return 0 if is_good else 1


class _FleetCheck:
    """One program on the nodes of a fleet."""

    def __init__(self, checked: Check, name: str) -> None:
        self._check = checked
        self._name = name
        self._runs: dict[str, Any] = {}
        self._warm: list[float] = []
        self._second: list[float] = []
        self._waited: list[float] = []
        self._hits = 0

    def measure(self, rounds: int) -> _FleetCheck:
        with tempfile.TemporaryDirectory(dir=self._check.work, prefix="gpu-fleet-") as folder:
            base = Path(folder)
            (base / "bucket").mkdir()
            public = self._check.command("-c", _KEYGEN, str(base / "key")).strip()
            trust = ("--trust", public, "--fleet-scope", "gpu-check")
            publishes = (
                "--fleet-mode",
                "publish",
                "--fleet-key",
                str(base / "key"),
                "--fleet",
                f"file://{base}/bucket",
            )
            with self._node(base / "one", *trust, *publishes) as mount:
                self._wait(mount, lambda told: told["index_age"] >= 0)
                self._runs["first cold"] = self._run(mount, base / "one")
                # Inductor compiles the winner of a tuned reduction again in the second start, on a plain folder too.
                self._runs["warm first"] = self._run(mount, base / "one")
            with BucketServer(base / "bucket").running() as server:
                for number in range(rounds):
                    with self._node(base / "one") as mount:
                        self._runs[f"warm {number}"] = self._run(mount, base / "one")
                        self._warm.append(self._runs[f"warm {number}"]["seconds"])
                    second = base / f"two{number}"
                    with self._node(second, *trust, "--fleet", server.url) as mount:
                        self._wait(mount, lambda told: told["index_keys"] > 0)
                        self._runs[f"warm second {number}"] = self._run(mount, second)
                        self._second.append(self._runs[f"warm second {number}"]["seconds"])
                        told = self._fleet(mount)
                        self._waited.append(told["waited_seconds"])
                        self._hits = told["hits"]
        return self

    @property
    def ratio(self) -> float:
        """Of the second node's start without its fetch, by the warm node's."""
        pairs = zip(self._second, self._waited, self._warm, strict=True)
        return statistics.median((second - waited) / warm for second, waited, warm in pairs)

    @property
    def is_good(self) -> bool:
        return self.ratio <= RATIO_MAX and self._hits > 0 and agrees({"runs": self._runs})

    def row(self) -> str:
        cold, warm = self._runs["first cold"]["seconds"], statistics.median(self._warm)
        second, waited = statistics.median(self._second), statistics.median(self._waited)
        results = "equal" if agrees({"runs": self._runs}) else "DIFFERENT"
        figures = f"{cold:.3f} s | {warm:.3f} s | {second:.3f} s | {waited:.3f} s | {self.ratio:.3f}"
        return f"| {self._name} | {figures} | {self._hits} | {results} |"

    def _run(self, mount: Path, folder: Path) -> dict[str, Any]:
        environment = self._check.environment(mount, folder / f"tmp{time.monotonic_ns()}")
        # No fleet carries the driver's own cache: it stays outside, and is as warm for one node as for the other.
        return self._check.run(self._name, {**environment, "CUDA_CACHE_PATH": str(folder.parent / "driver")})

    @contextmanager
    def _node(self, folder: Path, *options: str) -> Iterator[Path]:
        folder.mkdir(exist_ok=True)
        # Compile workers of the last start may outlive it, and write where nothing is mounted any more.
        shutil.rmtree(folder / "mount", ignore_errors=True)
        with self._check.mounted(folder, *options) as mount:
            yield mount

    def _fleet(self, mount: Path) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((mount / ".kcachefs" / "settled.json").read_bytes())["fleet"]
        return told

    def _wait(self, mount: Path, is_ready: Any) -> None:
        until = time.monotonic() + PATIENCE
        while not is_ready(self._fleet(mount)):
            if time.monotonic() > until:
                raise CheckFailed(f"the fleet is not ready after {PATIENCE:.0f} s: {self._fleet(mount)}")
            time.sleep(0.1)


CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}
_KEYGEN = """
import sys
from pathlib import Path
from kcachefs.fleet import signing
print(signing.keygen(Path(sys.argv[1]))[1])
"""
