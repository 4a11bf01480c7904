"""The syntax of source files, for tests that read the code: each file is parsed once in a process."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def syntax_of(path: Path) -> ast.Module:
    was_enabled = gc.isenabled()
    gc.disable()  # all of it stays: looking for garbage would take longer than parsing
    try:
        return ast.parse(path.read_text())
    finally:
        if was_enabled:
            gc.enable()


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Everything in a file, as `ast.walk` finds it."""
    return tuple(ast.walk(syntax_of(path)))
