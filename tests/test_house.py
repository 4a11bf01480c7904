"""The house rules that a machine can check: which way imports point, how large a file or a class may be."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.syntax import nodes_of, syntax_of

ROOT = Path(__file__).resolve().parents[1] / "kcachefs"

LAYERS = (
    ("store",),
    ("core",),
    ("engines",),
    # The surface, from here on.
    ("keys", "frameworks"),
    ("fleet",),
    ("daemon",),
    ("caches", "mounts"),
    ("session", "doctor", "insight", "cuda", "torch", "triton"),
    ("live",),
    ("cli",),
    ("__init__", "__main__"),
)
"""From the bottom to the top. Modules beside the folders that are not named here (errors, config, …) lie below all."""

LINES_MAX = 400
METHODS_MAX = 25

FILES = sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name; a package's is that of its folder."""
    found = {}
    for path in FILES:
        parts = ("kcachefs", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports anywhere: at the top, in a function, or for its types only.

    Not the package itself, in which there is nothing but the version and names that lead elsewhere.
    """
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules() and alias.name != "kcachefs")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: write the whole name of what is imported"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in modules():
                    yield inner
                elif node.module in modules() and node.module != "kcachefs":
                    yield node.module


def room_of(path: Path) -> str:
    """The folder, or the module that lies beside the folders."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def height_of(room: str) -> int:
    return next((height for height, rooms in enumerate(LAYERS, 1) if room in rooms), 0)


def test_every_folder_has_its_layer() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders - {room for rooms in LAYERS for room in rooms} == set()


def points_down(here: str, there: str) -> bool:
    return here == there or height_of(there) < height_of(here) or height_of(here) == height_of(there) == 0


def test_imports_only_ever_point_down() -> None:
    wrong = [
        f"{name_of(path)} imports {module}"
        for path in FILES
        for module in imports_of(path)
        if not points_down(room_of(path), room_of(modules()[module]))
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: set(imports_of(path)) - {module} for module, path in modules().items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_says_what_it_is_for_and_is_no_longer_than_one_can_read(path: Path) -> None:
    assert ast.get_docstring(syntax_of(path)), "its first line says what it is for"
    assert len(path.read_text().splitlines()) <= LINES_MAX


def test_no_class_has_more_methods_than_one_can_remember() -> None:
    wrong = []
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                # By name: the overloads of a method are that one method.
                methods = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
                if len(methods) > METHODS_MAX:
                    wrong.append(f"{name_of(path)}: {node.name} has {len(methods)}")
    assert wrong == []


def test_engines_ask_the_filesystem_and_nothing_behind_it() -> None:
    """`fs.lookup`, but neither `fs.policy.find` nor `fs.report.find`."""
    wrong = [
        f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}"
        for path in FILES
        if room_of(path) == "engines"
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute)
        if "fs" in (getattr(node.value.value, "id", ""), getattr(node.value.value, "attr", ""))
    ]
    assert wrong == []


def test_no_engine_judges_where_the_bytes_of_a_file_are() -> None:
    """An engine asks `fs.looked_up`, `fs.is_quick_to_read`: what follows from an inode's content, the core says."""
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in FILES
        if room_of(path) == "engines"
        for node in nodes_of(path)
        if (isinstance(node, ast.ImportFrom) and any(alias.name == "Content" for alias in node.names))
        or (isinstance(node, ast.Attribute) and node.attr in ("content", "digest", "Content"))
    ]
    assert wrong == []


RECORDS = {
    *("node", "folder", "root", "seen", "old_folder", "new_folder", "spool", "lock"),
    *("record", "new", "total", "row", "sample", "making", "run", "start", "found", "part", "whole"),
    *("entry", "miss", "reply", "of_kind"),  # of engines
}
"""What records go by: inodes, entries, runs and the like, which whoever has them changes, often in a transaction."""


def bearer(node: ast.Attribute) -> str:
    """The name of what has the attribute: `nodes` for `self._nodes.lock`, none for what a call or a table gives."""
    return str(getattr(node.value, "id", getattr(node.value, "attr", ""))).lstrip("_")


def test_only_records_have_attributes_that_others_assign() -> None:
    """Engines and core hook nothing into each other: constructors take what they need, methods say what happens."""
    wrong = [
        f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}"
        for path in FILES
        if room_of(path) in ("core", "engines")
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
        if bearer(node) not in {"self", "", *RECORDS}
    ]
    assert wrong == []


def test_the_c_library_is_called_in_one_place() -> None:
    """There each function is declared with its argument types. `fleet/scopes.py` asks a library of NVIDIA's."""
    found = {
        name_of(path)
        for path in FILES
        for node in nodes_of(path)
        if (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "ctypes" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "ctypes")
    }
    assert found == {"libc.py", "fleet/scopes.py"}
