"""Compiles the changed Triton kernels, each change in a process of its own: no GPU is needed for that.

python -m benchmarks.explain_sets.triton_runner FOLDER [CHANGE]... leaves in FOLDER/base the entries before any change
and in FOLDER/CHANGE those that the change added. Compilers are loaded and hashed once; every change is a fork.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks.explain_sets.changing import Change
from benchmarks.explain_sets.forks import edited, in_a_fork
from benchmarks.explain_sets.triton_calls import BASE, FILES, Call
from benchmarks.explain_sets.triton_changes import CALL_CHANGES
from benchmarks.explain_sets.triton_edits import SOURCE_CHANGES
from benchmarks.explain_sets.triton_more import MORE_CHANGES

CHANGES = (*CALL_CHANGES, *SOURCE_CHANGES, *MORE_CHANGES)
KERNELS = Path(__file__).parent / "kernels"


def main() -> None:
    folder, wanted = Path(sys.argv[1]), sys.argv[2:]
    run_all(folder, [one for one in CHANGES if not wanted or one.name in wanted])


def run_all(folder: Path, changes: list[Change]) -> None:
    importlib.import_module("triton")
    _key()()
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    (folder / "src").mkdir(parents=True, exist_ok=True)
    if not (folder / "base").exists():
        concerned = {name for one in changes for name in one.only or [call.kernel for call in BASE]}
        _in_a_fork(folder, None, concerned)
    for change in changes:
        if not (folder / change.name).exists():
            _in_a_fork(folder, change)


def texts(change: Change | None) -> dict[str, str]:
    """The files as the change leaves them."""
    return edited(KERNELS, FILES, change.edits if change else ())


def _in_a_fork(folder: Path, change: Change | None, concerned: Collection[str] = ()) -> None:
    for name, text in texts(change).items():
        (folder / "src" / name).write_text(text)
    in_a_fork(change.name if change else "the base", lambda: _compile(folder, change, concerned))


def _compile(folder: Path, change: Change | None, concerned: Collection[str]) -> None:
    cache = folder / (change.name if change else "base")
    cache.mkdir()
    if change is not None:  # what is there already is found, and taken out again
        for entry in (folder / "base").iterdir():
            (cache / entry.name).symlink_to(entry)
        os.environ.update(change.environment)
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder / "src"))
    if change is not None and change.version is not None:
        _pretend(change.version)
    for call in calls(change):
        if not concerned or call.kernel in concerned:
            _compile_one(call, change)
    for entry in list(cache.iterdir()):
        if entry.is_symlink():
            entry.unlink()


def calls(change: Change | None) -> list[Call]:
    if change is None:
        return list(BASE)
    wanted = [call for call in BASE if not change.only or call.kernel in change.only]
    return wanted or [Call(name, "tiles", change.types, change.constants) for name in change.only]


def _compile_one(call: Call, change: Change | None) -> None:
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name = change.renamed.get(call.kernel, call.kernel) if change else call.kernel
    function = getattr(importlib.import_module(call.module), name)
    types, constants = dict(call.signature), dict(call.constants)
    if change is not None:
        constants.update(change.constants)
        for argument, kind in change.types.items():
            types.pop(argument, None)
            if kind not in ("", "constexpr"):
                constants.pop(argument, None)
                types[argument] = kind
    if isinstance(constants.get("TO"), str):
        constants["TO"] = getattr(tl, constants["TO"])
    signature: dict[str, Any] = {one: "constexpr" if one in constants else types[one] for one in function.arg_names}
    constants = {one: value for one, value in constants.items() if one in signature}
    divisible = change.divisible if change is not None and change.divisible is not None else call.divisible
    attributes = {
        (at,): [["tt.divisibility", 16]] for at in divisible if signature[function.arg_names[at]] != "constexpr"
    }
    options = {**call.options, **(change.options if change else {})}
    target = GPUTarget("cuda", change.arch if change else 90, 32)
    triton.compile(ASTSource(function, signature, constants, attributes), target=target, options=options)


def _pretend(version: str) -> None:
    import triton.compiler.compiler
    import triton.runtime.cache

    for module in (triton.compiler.compiler, triton.runtime.cache):
        module.__version__ = version
    _key().cache_clear()


def _key() -> Any:
    """What hashes all of Triton, once in a process; older versions have it elsewhere."""
    modules = map(importlib.import_module, ("triton.runtime.cache", "triton.compiler.compiler"))
    return next(module.triton_key for module in modules if hasattr(module, "triton_key"))


if __name__ == "__main__":
    main()
