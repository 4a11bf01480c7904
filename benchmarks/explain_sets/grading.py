"""Whether the explanations of a change's new entries name what was changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.explain_sets import inductor_runner
from benchmarks.explain_sets.changing import Change, Expected, Line
from benchmarks.explain_sets.inductor_changes import ProgramChange
from benchmarks.explain_sets.triton_calls import FILES
from benchmarks.explain_sets.triton_runner import texts
from kcachefs.insight import autograd, graph_nearest, graphs, kernels
from kcachefs.insight.causes import Cause
from kcachefs.insight.graphs import Graph
from kcachefs.insight.kernel_nearest import explain
from kcachefs.insight.kernels import TritonKernel


@dataclass(slots=True)
class Grade:
    """Of one change: what was said of each new entry, and which of it is wrong."""

    name: str
    what: str
    said: list[tuple[str, Cause, bool]] = field(default_factory=list)
    """Of each new entry: its name, the first cause, whether that is right."""

    nothing_expected: bool = False

    @property
    def right(self) -> bool:
        return bool(self.said) != self.nothing_expected and all(right for _, _, right in self.said)

    @property
    def wrongly_certain(self) -> bool:
        return any(cause.certain and not right for _, cause, right in self.said)


def load(folder: Path, created: float | None = None) -> list[TritonKernel]:
    """The kernels of a cache folder."""
    found = []
    for entry in sorted(folder.iterdir()):
        names = [one.name for one in entry.iterdir()] if entry.is_dir() else []
        if kernels.is_kernel(names):
            when = entry.stat().st_mtime if created is None else created
            files = {name: (entry / name).read_bytes() for name in names}
            found.append(kernels.read(entry.name, when, names, files.__getitem__))
    return found


def grade(change: Change, new: Sequence[TritonKernel], base: Sequence[TritonKernel], *, with_source: bool) -> Grade:
    graded = Grade(change.name, change.what)
    expected = change.expected if with_source or change.without_source is None else change.without_source
    before, after = texts(None), texts(change)
    began = min((one.created for one in new), default=0.0)

    def read(path: str) -> tuple[str, float] | None:
        """The files as they were when the change was compiled; those that it left alone are old."""
        name = Path(path).name
        if not with_source or name not in FILES:
            return None
        return after[name], 0.0 if after[name] == before[name] else began

    for kernel in new:
        _, causes = explain(kernel, base, read)
        wanted = expected.get(kernel.name) or expected[""]
        graded.said.append((kernel.name, causes[0], is_right(causes[0], wanted, after)))
    return graded


def load_graphs(folder: Path, *, use_debug_lines: bool = True) -> list[Graph]:
    """The graphs of a cache folder of Inductor, with what the program calls their inputs."""
    names: dict[str, list[str]] = {}
    forwards: dict[str, str] = {}
    for file in sorted((folder / "aotautograd").glob("*/*")):
        entry = autograd.read(str(file), file.stat().st_mtime, file.read_bytes())
        names[entry.forward] = entry.inputs
        forwards[entry.backward] = entry.forward
    found = []
    for file in sorted((folder / "fxgraph").glob("*/*/*")):
        graph = graphs.read(file.parent.name, file.stat().st_mtime, file.read_bytes(), use_debug_lines=use_debug_lines)
        graph.input_names = names.get(graph.key, [])
        graph.forward_key = forwards.get(graph.key, "")
        found.append(graph)
    return found


def grade_graphs(change: ProgramChange, new: Sequence[Graph], base: Sequence[Graph]) -> Grade:
    graded = Grade(change.name, change.what, nothing_expected=not change.expected)
    files = inductor_runner.texts(change)
    for graph, _, causes in graph_nearest.explain_all(new, base):
        wanted = change.expected.get(graph.kind) or change.expected.get("")
        graded.said.append((graph.name, causes[0], wanted is not None and is_right(causes[0], wanted, files)))
    return graded


def is_right(cause: Cause, expected: Expected, files: Mapping[str, str]) -> bool:
    """Whether a cause is of an expected kind and says all that it must."""
    return cause.kind.value in expected.kinds.split() and all(
        re.search(_pattern(one, files), cause.words) for one in expected.said
    )


def _pattern(one: str | Line, files: Mapping[str, str]) -> str:
    if isinstance(one, str):
        return one
    number = next(at for at, line in enumerate(files[one.file].splitlines(), 1) if one.text in line)
    return rf"{re.escape(one.file)}:{number}\b"
