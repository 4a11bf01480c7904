"""How often `kcachefs explain` names what was changed: python -m benchmarks.explain triton|inductor [CHANGE]...

Compiles real programs with one thing changed at a time (benchmarks/explain_sets/), explains every new entry from the
artefacts alone and with the source files at hand, and prints every answer that does not name the change.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.explain_sets import inductor_changes
from benchmarks.explain_sets.grading import Grade, grade, grade_graphs, load, load_graphs
from benchmarks.explain_sets.triton_runner import CHANGES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("set", choices=("triton", "inductor"))
    parser.add_argument("changes", nargs="*")
    parser.add_argument("--folder", type=Path, help="keep what is compiled here, and use what is there")
    parser.add_argument("--verbose", action="store_true", help="print the right answers too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        answer = triton if options.set == "triton" else inductor
        for title, grades in answer(folder, options.changes).items():
            show(title, grades, verbose=options.verbose)


def triton(folder: Path, wanted: list[str]) -> dict[str, list[Grade]]:
    command = [sys.executable, "-m", "benchmarks.explain_sets.triton_runner", str(folder), *wanted]
    subprocess.run(command, check=True)
    base = load(folder / "base")
    found: dict[str, list[Grade]] = {"with the source": [], "from the artefacts alone": []}
    for change in CHANGES:
        if not wanted or change.name in wanted:
            new = load(folder / change.name)
            for title, grades in found.items():
                grades.append(grade(change, new, base, with_source=title == "with the source"))
    return found


def inductor(folder: Path, wanted: list[str]) -> dict[str, list[Grade]]:
    command = [sys.executable, "-m", "benchmarks.explain_sets.inductor_runner", str(folder), *wanted]
    subprocess.run(command, check=True)
    changes = [one for one in inductor_changes.CHANGES if not wanted or one.name in wanted]
    found: dict[str, list[Grade]] = {}
    for title, use in (("by torch's own list", True), ("by the script that reproduces the graph", False)):
        base = load_graphs(folder / "base", use_debug_lines=use)
        found[title] = [grade_graphs(one, load_graphs(folder / one.name, use_debug_lines=use), base) for one in changes]
    return found


def show(title: str, grades: list[Grade], *, verbose: bool) -> None:
    right = sum(one.right for one in grades)
    certain = sum(one.wrongly_certain for one in grades)
    for one in grades:
        if verbose or not one.right:
            print(f"{'right' if one.right else 'WRONG'}  {one.name}: {one.what}")
            for name, cause, is_right in one.said:
                mark = "  " if is_right else "! "
                print(f"    {mark}{name}: {cause.kind.value}: {cause.words}{'' if cause.certain else ' (likely)'}")
    print(f"{title}: {right} of {len(grades)} changes named for every new entry; wrong and called certain: {certain}")


if __name__ == "__main__":
    main()
