"""Source and PTX of a kernel, line by line, each with the line of the source file that it belongs to."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable

from kcachefs.core.insight_info import MadeEntry
from kcachefs.insight import sources, triton_ir
from kcachefs.insight.explaining import Explainer
from kcachefs.insight.kernels import TritonKernel
from kcachefs.live.view import Listing

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_INLINED_AT = re.compile(r"inlined_at (\d+) (\d+)")
_LABEL = re.compile(r"^\$L__(tmp|func_)\w*:")
_LINES_MAX = 4_000
_SOURCE_LINES_MAX = 500
_SLACK_SECONDS = 1.0
_GAP = "⋯"


def code_of(ptx: str, file: str) -> Listing:
    """The PTX without its location marks, which become the numbers in front of the lines."""
    text = ptx.partition("\t.section")[0]
    lines = text.splitlines()
    numbers = {found[1] for line in ptx.splitlines() if (found := _FILE.match(line)) and _is_same(found[2], file)}
    shown: list[str] = []
    places: list[int] = []
    place, in_asm = 0, False
    for line in lines:
        # Inside inline assembly, the compiler increments the line number for each line of assembly.
        in_asm = line.strip() != "// end inline asm" and (in_asm or line.strip() == "// begin inline asm")
        if (found := _LOC.match(line)) is not None:
            place = place if in_asm else _place(line, found, numbers)
        elif not (_FILE.match(line) or _LABEL.match(line) or not line.strip() or line.startswith("//")):
            if line.startswith("}"):
                place = 0
            shown.append(line.replace("\t", "    ")[:500])
            places.append(place)
    note = f"the first {_LINES_MAX:,} of {len(shown):,} lines" if len(shown) > _LINES_MAX else ""
    return Listing(title="PTX", first=1, lines=shown[:_LINES_MAX], places=places[:_LINES_MAX], note=note)


def source_of(
    explainer: Explainer, kernel: TritonKernel, entry: MadeEntry, mount: str, code: Listing | None
) -> Listing | None:
    """The kernel's function in its source file, and the functions it calls there. If the file cannot be read, the
    kernel's first IR, which names the same lines."""
    file = kernel.place.file
    text = sources.read_for((entry.uid,), file) if not _is_inside(file, mount) else None
    if text is not None and (lines := _functions(text[0], {kernel.place.line, *(code.places if code else ())})):
        all_lines = text[0].splitlines()
        changed = text[1] > kernel.created + _SLACK_SECONDS
        return Listing(
            title=file,
            first=min(one for one in lines if one),
            lines=[all_lines[number - 1][:500] if number else _GAP for number in lines],
            places=lines,
            note="the file was changed after this was compiled; lines may have moved" if changed else "",
        )
    for _, files in explainer.reader.files([entry], ("*.source", "*.ttir")):
        found = sorted(files.values(), key=lambda one: not one.file.endswith(".source"))[0]
        return _listed(found.file, (found.content or b"").decode("utf-8", "replace"), file)
    return None


def _listed(title: str, text: str, file: str) -> Listing:
    rows = list(triton_ir.lines_with_places(text))[:_LINES_MAX]
    return Listing(
        title=title,
        first=1,
        lines=[line[:500] for line, _ in rows],
        places=[place.line if _is_same(place.file, file) else 0 for _, place in rows],
        note=f"{file} cannot be read here, so this is its first IR" if file else "",
    )


def _place(line: str, found: re.Match[str], numbers: Iterable[str]) -> int:
    """The line in the kernel's own file: for code inlined from elsewhere, the line that called it."""
    if found[1] in numbers:
        return int(found[2][:9])
    called = _INLINED_AT.search(line)
    return int(called[2][:9]) if called and called[1] in numbers else 0


def _is_same(path: str, other: str) -> bool:
    return bool(path) and os.path.basename(path) == os.path.basename(other)


def _is_inside(path: str, folder: str) -> bool:
    """Whether a file is in the mount itself, where reading it would count as a use."""
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


def _functions(text: str, wanted: set[int]) -> list[int]:
    """The line numbers of the functions that contain these lines, in order, with 0 for each gap between functions."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            last = node.end_lineno or node.lineno
            if any(first <= line <= last for line in wanted if line):
                spans.append((first, last))
    lines: list[int] = []
    for first, last in sorted(spans):
        if lines and first <= lines[-1]:
            continue  # a function inside another that is shown already
        lines += ([0] if lines else []) + list(range(first, last + 1))
    return lines[:_SOURCE_LINES_MAX]
