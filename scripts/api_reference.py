#!/usr/bin/env python3
"""Writes docs/api.md from the docstrings of the library: `scripts/api_reference.py`, or `--check` to compare only.

Reads the sources without importing them, so it needs nothing but Python: not torch, Triton or cuda.core.
"""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"


@dataclass(frozen=True)
class Section:
    """What one importable module offers; a star stands for all of its `__all__`."""

    module: str
    names: tuple[str, ...]


SECTIONS = (
    Section(
        "kcachefs", ("Cache", "ObjectCache", "cached", "Entry", "ContentStore", "AsyncContentStore", "init", "TooLate")
    ),
    Section("kcachefs.caches", ("CachedFunction", "CacheInfo", "Stats", "ObjectStats")),
    Section("kcachefs.keys", ("*",)),
    Section("kcachefs.cuda", ("ProgramCache", "NvrtcCache", "Compiled")),
    Section("kcachefs.torch", ("ArtifactStore",)),
    Section("kcachefs.triton", ("CacheManager",)),
)

HEAD = """# API reference

Made from the docstrings by `scripts/api_reference.py`; a test keeps it current. What the library is for, and what it
promises, is in [library.md](library.md). The examples of a section need the import at its top.
"""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is not current")
    page = page_text()
    if not parser.parse_args().check:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page)
        return 0
    if PAGE.exists() and PAGE.read_text() == page:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is not current; run scripts/api_reference.py", file=sys.stderr)
    return 1


def page_text() -> str:
    """The whole page."""
    parts = [HEAD]
    for section in SECTIONS:
        module = _Module(section.module)
        parts.append(f"## {section.module}\n\n{_prose(module.tree)}")
        parts.append(_code([f"from {section.module} import {', '.join(section.names)}"]))
        names = module.public() if section.names == ("*",) else section.names
        parts += [_definition(name, *module.find(name)) for name in names]
    return "\n".join(part.rstrip() + "\n" for part in parts)


class _Module:
    """One source file, and where the names that it passes on come from."""

    def __init__(self, name: str) -> None:
        base = ROOT / Path(*name.split("."))
        self.path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        self.tree = ast.parse(self.path.read_text())

    def public(self) -> tuple[str, ...]:
        """The names in `__all__`, in that order."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return tuple(ast.literal_eval(node.value))
        raise SystemExit(f"{self.path}: no __all__")

    def find(self, name: str) -> tuple[ast.stmt, list[ast.stmt]]:
        """The statement that defines a name, wherever that is, and its overloads."""
        found = [node for node in self.tree.body if name in _names(node)]
        if found:
            *overloads, last = found
            return last, [node for node in overloads if _is_overload(node)]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module and name in {alias.name for alias in node.names}:
                return _Module(node.module).find(name)
        raise SystemExit(f"{self.path}: no {name}")


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, Definition):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {ast.unparse(target) for target in node.targets}
    return {ast.unparse(node.target)} if isinstance(node, ast.AnnAssign) else set()


def _definition(name: str, node: ast.stmt, overloads: list[ast.stmt]) -> str:
    if isinstance(node, ast.ClassDef):
        return f"### {name}\n\n{_class(node)}"
    if isinstance(node, _FUNCTIONS):
        shown = [one for one in overloads if isinstance(one, _FUNCTIONS)] or [node]
        return f"### {name}\n\n{_code([_signature(one) for one in shown])}\n{_prose(node)}"
    return f"### {name}\n\n{_code([ast.unparse(node)])}"


def _class(node: ast.ClassDef) -> str:
    bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    parts = [_code([f"class {node.name}{bases}", *_constructor(node)]), _prose(node), *_fields(node)]
    for method in node.body:
        if isinstance(method, _FUNCTIONS) and not method.name.startswith("_") and not _is_overload(method):
            overloads = [one for one in node.body if isinstance(one, _FUNCTIONS) and one.name == method.name]
            shown = [one for one in overloads if _is_overload(one)] or [method]
            parts.append(f"**`{method.name}`**\n\n{_code([_signature(one) for one in shown])}\n{_prose(method)}")
    return "\n".join(part.rstrip() + "\n" for part in parts if part)


def _constructor(node: ast.ClassDef) -> Iterator[str]:
    made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    for one in [each for each in made if _is_overload(each)] or made[-1:]:
        yield _signature(one).replace("def __init__", node.name, 1).removesuffix(" -> None")


def _fields(node: ast.ClassDef) -> list[str]:
    """The annotated fields of a record, each with the text beneath it."""
    lines = []
    for at, one in enumerate(node.body):
        if isinstance(one, ast.AnnAssign) and not ast.unparse(one.target).startswith("_"):
            after = node.body[at + 1] if at + 1 < len(node.body) else None
            text = _text_of(after)
            lines.append(f"- `{ast.unparse(one)}`" + (f": {' '.join(text.split())}" if text else ""))
    return ["\n".join(lines)] if lines else []


def _text_of(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return ""


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    pieces = [ast.unparse(piece) for piece in _pieces(_without_self(node.args))]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    decorators = [name for one in node.decorator_list if (name := ast.unparse(one)) in ("property", "classmethod")]
    head = "".join(f"@{name}\n" for name in decorators)
    line = f"{head}{word} {node.name}({', '.join(pieces)}){returns}"
    if len(line) <= 100:
        return line
    return f"{head}{word} {node.name}(\n" + "".join(f"    {piece},\n" for piece in pieces) + f"){returns}"


def _pieces(arguments: ast.arguments) -> Iterator[ast.AST]:
    """Each argument by itself, so that a long signature can have a line for each."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    for at, (one, default) in enumerate(zip(positional, defaults, strict=True)):
        yield _piece(one, default)
        if arguments.posonlyargs and at == len(arguments.posonlyargs) - 1:
            yield ast.Name("/")
    if arguments.vararg:
        yield ast.Name(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        yield ast.Name("*")
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _piece(one, default)
    if arguments.kwarg:
        yield ast.Name(f"**{ast.unparse(arguments.kwarg)}")


def _piece(argument: ast.arg, default: ast.expr | None) -> ast.Name:
    told = ast.unparse(argument)
    if default is not None:
        told += f" = {ast.unparse(default)}" if argument.annotation else f"={ast.unparse(default)}"
    return ast.Name(told)


def _without_self(arguments: ast.arguments) -> ast.arguments:
    kept = ast.arguments(**{field: getattr(arguments, field) for field in arguments._fields})
    if kept.args and kept.args[0].arg in ("self", "cls"):
        kept.args = kept.args[1:]
    return kept


def _is_overload(node: ast.stmt) -> bool:
    return isinstance(node, _FUNCTIONS) and "overload" in {ast.unparse(one) for one in node.decorator_list}


def _code(lines: list[str]) -> str:
    return "```python\n" + "\n".join(lines) + "\n```\n"


def _prose(node: ast.Module | ast.stmt) -> str:
    """A docstring, with its examples as code."""
    documented = isinstance(node, ast.Module | Definition)
    text = ast.get_docstring(node) if documented else None  # type: ignore[arg-type]
    if not text:
        return ""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith((">>>", "    ")):
            paragraphs.append(_code([textwrap.dedent(paragraph)]).rstrip())
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs) + "\n"


if __name__ == "__main__":
    sys.exit(main())
