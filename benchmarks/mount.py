"""What a mount costs compared with ext4 and bindfs: python -m benchmarks.mount [--quick] [--handlers] [--json FILE].

Everything is measured in turns and shown as the median, followed by the tenth and ninetieth percentile. A ratio is the
median of the ratios of neighbouring rounds, so that it is reliable even on a machine that others use too.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks import handlers, operations, round_trips, scale
from benchmarks.measure import tenths
from benchmarks.operations import COLUMNS, TARGETS, TITLES, ratio
from benchmarks.peers import opened
from benchmarks.subjects import workplace

SUBJECTS = ["ext4", "bindfs", "memory", "direct", "pyfuse3"]
PARTS = ("operations", "beside bindfs", "first", "sequential", "million")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mount", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few short rounds with a tenth of the files")
    parser.add_argument(
        "--handlers", action="store_true", help="measure only what a request costs in the daemon itself"
    )
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="measure only these parts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--directory", type=Path, help="where to work; its filesystem appears as ext4 in the results")
    chosen = parser.parse_args()
    results: dict[str, Any] = {}
    if chosen.handlers:
        results["handlers"] = show_handlers(chosen)
    else:
        for part in chosen.only:
            results[part] = {
                "operations": show_operations,
                "beside bindfs": show_beside_bindfs,
                "first": show_first_reads,
                "sequential": show_sequential,
                "million": show_million,
            }[part](chosen)
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=2) + "\n")


def show_operations(chosen: argparse.Namespace) -> dict[str, Any]:
    rounds, files = (5, 300) if chosen.quick else (21, 1000)
    with workplace(chosen.directory) as base, opened(SUBJECTS, base) as subjects:
        found = operations.measure(subjects, range(rounds), files)
    print(f"\nmicroseconds per operation, {rounds} rounds in turn\n")
    for column in COLUMNS:
        print(TITLES[column])
        for name in SUBJECTS:
            if name in found:
                middle, low, high = tenths([each[column] for each in found[name]])
                print(f"    {name:8} {middle:9.1f}   ({low:.1f} to {high:.1f}){_ratios(found, name, column)}")
            else:
                print(f"    {name:8}    absent")
    return found


def show_beside_bindfs(chosen: argparse.Namespace) -> dict[str, Any]:
    """Ratios to bindfs, of kcachefs and of the least that a filesystem in Python takes, in every state."""
    rounds, subjects_here = 5 if chosen.quick else 15, ["bindfs", "memory", "direct"]
    all_found: dict[str, Any] = {}
    with workplace(chosen.directory) as base, opened(subjects_here, base) as subjects:
        if "bindfs" not in subjects:
            raise SystemExit("there is nothing to compare with")
        for clients, state, measure in (
            (1, "warm", operations.measure),
            (1, "cold", operations.measure_cold),
            (8, "warm", operations.measure),
            (8, "cold", operations.measure_cold),
        ):
            files = 300 if clients == 1 else 60
            found = all_found[f"{clients}, {state}"] = measure(subjects, range(rounds), files, clients)
            print(f"\n{clients} client{'s' * (clients > 1)}, {state}, {rounds} rounds in turn: times of bindfs\n")
            for column in COLUMNS:
                if column in found["bindfs"][0]:
                    theirs = statistics.median(each[column] for each in found["bindfs"])
                    row = "   ".join(
                        f"{name} {ratio(found, name, 'bindfs', column):5.2f}" for name in ("memory", "direct")
                    )
                    print(f"    {TITLES[column].removesuffix(', warm'):36} bindfs {theirs:8.1f} µs   {row}")
    return all_found


def _ratios(found: dict[str, list[operations.Round]], name: str, column: str) -> str:
    if name != "direct":
        return ""
    text = ""
    for other, targets in TARGETS.items():
        if other in found:
            factor = ratio(found, name, other, column)
            goal = targets.get(column)
            text += f"   {factor:.2f} of {other}" + (f" {_verdict(factor <= goal)} {goal}" if goal else "")
    return text


def _verdict(holds: bool) -> str:
    return "≤" if holds else "MISSES"


def show_first_reads(chosen: argparse.Namespace) -> dict[str, list[float]]:
    rounds, files = (3, 300) if chosen.quick else (9, 1000)
    with workplace(chosen.directory) as base, opened(["bindfs", "direct"], base) as subjects:
        found = scale.first_reads(subjects, rounds, files)
    print("\nfirst open+read+close of sealed files of 16 KiB after a remount, nothing cached, microseconds\n")
    for name, values in found.items():
        middle, low, high = tenths(values)
        print(f"    {name:8} {middle:9.1f}   ({low:.1f} to {high:.1f})")
    if "bindfs" in found:
        factor = statistics.median(a / b for a, b in zip(found["direct"], found["bindfs"], strict=True))
        print(f"    {factor:.2f} of bindfs {_verdict(factor <= 2.5)} 2.5")
    return found


def show_sequential(chosen: argparse.Namespace) -> dict[str, Any]:
    rounds, megabytes = (1, 256) if chosen.quick else (3, 1024)
    with workplace(chosen.directory) as base, opened(["ext4", "direct"], base) as subjects:
        found = scale.sequential(subjects, rounds, megabytes)
    print(f"\n{megabytes} MiB in one file, MB/s of plain bytes; reading with nothing cached\n")
    for name, row in found.items():
        write, read = statistics.median(row["write"]), statistics.median(row["read"])
        print(
            f"    {name:20} write {write:7.0f}   read {read:7.0f}   ({min(row['read']):.0f} to {max(row['read']):.0f})"
        )
    share = statistics.median(found["direct, raw"]["read"]) / statistics.median(found["ext4, raw"]["read"])
    speed = statistics.median(found["direct, compressed"]["read"])
    print(f"    raw: {share:.2f} of ext4 {'≥' if share >= 0.5 else 'MISSES'} 0.5")
    print(f"    compressed: {speed:.0f} MB/s {'≥' if speed >= 400 else 'MISSES'} 400")
    return found


def show_million(chosen: argparse.Namespace) -> dict[int, dict[str, float]]:
    few, many = 10_000, 100_000 if chosen.quick else 1_000_000
    with workplace(chosen.directory) as base:
        found = scale.many_files(base, [few, many], 4_500)
    print("\nmany files\n")
    for count, row in found.items():
        print(f"    {count:9,}   " + "   ".join(f"{name} {value:.1f}" for name, value in row.items()))
    factor = found[many]["lookup in µs"] / found[few]["lookup in µs"]
    ready, memory = found[many]["mounted in s"], found[many]["RSS in MiB"]
    print(
        f"    mounted in {ready:.1f} s {_verdict(ready <= 2)} 2   lookup {factor:.2f} {_verdict(factor <= 1.3)} 1.3",
        end="",
    )
    print(f"   RSS {memory:.0f} MiB {_verdict(memory < 256)} 256")
    return found


def show_handlers(chosen: argparse.Namespace) -> dict[str, list[float]]:
    rounds, count = (3, 1000) if chosen.quick else (9, 2000)
    found = handlers.measure(rounds, count, chosen.directory)
    shares = handlers.measure_shares(rounds, count, chosen.directory)
    print(
        f"\nmicroseconds of handler time per request, {rounds} rounds of {count}, and what is LMDB's and the kernel's\n"
    )
    for name, values in found.items():
        middle, low, high = tenths(values)
        lmdb, kernel = shares[name]
        print(f"    {name:24} {middle:7.1f}   ({low:.1f} to {high:.1f})   LMDB {lmdb:5.1f}   kernel {kernel:5.1f}")
    print(f"    {'one put':24} {handlers.put_sum(found):7.1f}")
    with workplace(chosen.directory) as base:
        trips = round_trips.measure(base, 2000 if chosen.quick else 10_000)
    print("\nmicroseconds through a mount: client, daemon's code, daemon's system calls, waking up\n")
    for name, trip in trips.items():
        parts = f"{trip.client:6.1f} {trip.daemon:6.1f} {trip.kernel:6.1f} {trip.waking:6.1f}"
        print(f"    {name:28} {trip.whole:7.1f} = {parts}")
    return found


if __name__ == "__main__":
    main()
