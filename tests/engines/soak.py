"""Runs the random tests with new seeds for a given time: see scripts/posix_soak."""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from pathlib import Path

import hypothesis
from hypothesis.stateful import run_state_machine_as_test

from tests.engines.comparison import comparison_in
from tests.engines.mounting import Place, opened, temporary_folder
from tests.engines.test_fsx import exercise
from tests.engines.test_state_machine import SUITE


def main() -> int:
    wanted = _arguments()
    end = time.monotonic() + wanted.hours * 3600
    once = wanted.seed is not None or wanted.blob is not None
    batches = 0
    while True:
        for kind in wanted.on:
            seed = random.SystemRandom().getrandbits(32) if wanted.seed is None else wanted.seed
            begun = time.monotonic()
            if not _batch(kind, seed, wanted):
                return 1
            batches += 1
            left = max(0.0, end - time.monotonic())
            print(
                f"{time.strftime('%H:%M:%S')} {kind}: seed {seed} good in {time.monotonic() - begun:.0f} s; "
                f"{batches} done, {left / 3600:.2f} h to go",
                flush=True,
            )
        if once or time.monotonic() >= end:
            return 0


def _batch(kind: str, seed: int, wanted: argparse.Namespace) -> bool:
    """One mount, one run of the state machine with many examples, one file exercised."""
    try:
        with opened(kind) as place, temporary_folder() as references:
            _compare(place, references, seed, wanted)
            if not wanted.blob:
                exercise(place.fresh() / "file", place, seed)
    except Exception:
        traceback.print_exc()
        print(f"\n{kind}: seed {seed} failed; run it again with: scripts/posix_soak --on {kind} --seed {seed}")
        print(f"or its smallest example, from the blob above, with: scripts/posix_soak --on {kind} --blob BLOB")
        return False
    return True


def _compare(place: Place, references: Path, seed: int, wanted: argparse.Namespace) -> None:
    machine = hypothesis.seed(seed)(comparison_in(place, references))
    if wanted.blob:
        machine = hypothesis.reproduce_failure(hypothesis.__version__, wanted.blob.encode())(machine)
    settings = hypothesis.settings(SUITE, derandomize=False, print_blob=True, max_examples=wanted.examples)
    run_state_machine_as_test(machine, settings=settings)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="posix_soak", description=__doc__)
    parser.add_argument("hours", nargs="?", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--on", nargs="+", default=["direct", "pyfuse3"], choices=["plain", "direct", "pyfuse3"])
    parser.add_argument("--seed", type=int, help="use only this seed")
    parser.add_argument("--blob", help="run only this example, as a failure printed it")
    parser.add_argument("--examples", type=int, default=100, help="of the state machine, in a batch (default: 100)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
