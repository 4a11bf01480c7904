"""Compiles the changed program with torch.compile for the CPU, each change in a process of its own.

python -m benchmarks.explain_sets.inductor_runner FOLDER [CHANGE]... leaves in FOLDER/base the graphs before any change
and in FOLDER/CHANGE those that the change added. torch is loaded once; every change is a fork. What the C++ compiler
makes is shared by all of them, so that nothing is compiled twice.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.explain_sets.forks import edited, in_a_fork
from benchmarks.explain_sets.inductor_changes import BASE, CHANGES, FILES, ProgramChange, Run

MODELS = Path(__file__).parent / "models"
_GRAPHS = ("fxgraph", "aotautograd")


def main() -> None:
    folder, wanted = Path(sys.argv[1]), sys.argv[2:]
    run_all(folder, [one for one in CHANGES if not wanted or one.name in wanted])


def run_all(folder: Path, changes: Sequence[ProgramChange]) -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    for name in ("torch", "torch._inductor.compile_fx"):
        importlib.import_module(name)
    (folder / "src").mkdir(parents=True, exist_ok=True)
    if not (folder / "base").exists():
        (folder / "base").mkdir()
        concerned = {one.run.graph for one in changes}
        for number, run in enumerate(one for one in BASE if one.graph in concerned):
            _in_a_fork(folder, f"base{number}", run, texts(None))
            shutil.copytree(folder / f"base{number}", folder / "base", dirs_exist_ok=True)
    for change in changes:
        if not (folder / change.name).exists():
            _in_a_fork(folder, change.name, change.run, texts(change))


def texts(change: ProgramChange | None) -> dict[str, str]:
    """The files as the change leaves them."""
    return edited(MODELS, FILES, change.edits if change else ())


def _in_a_fork(folder: Path, name: str, run: Run, files: Mapping[str, str]) -> None:
    for file, text in files.items():
        (folder / "src" / file).write_text(text)
    in_a_fork(name, lambda: _compile(folder, name, run))


def _compile(folder: Path, name: str, run: Run) -> None:
    cache = folder / "cache"
    for kind in _GRAPHS:
        shutil.rmtree(cache / kind, ignore_errors=True)
        if (folder / "base" / kind).exists():
            shutil.copytree(folder / "base" / kind, cache / kind)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    os.environ.update(run.environment)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder / "src"))
    _settle(run)
    _call(run)
    for kind in _GRAPHS:
        for made in (cache / kind).rglob("*"):
            relative = made.relative_to(cache)
            if made.is_file() and not (folder / "base" / relative).exists():
                (folder / name / relative).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(made, folder / name / relative)
    (folder / name).mkdir(exist_ok=True)


def _settle(run: Run) -> None:
    """What is set before the program begins."""
    import torch
    import torch._inductor.config as config

    for name, value in run.config.items():
        holder: Any = config
        *above, last = name.split(".")
        for part in above:
            holder = getattr(holder, part)
        setattr(holder, last, value)
    for name, value in run.settings.items():
        getattr(torch, name)(value)
    if run.version is not None:
        import torch._inductor.codecache as codecache

        original, version = codecache.torch_key(), run.version
        codecache.torch_key = lambda: original + version.encode()
        torch.__version__ = torch.torch_version.TorchVersion(version)
        torch.version.__version__ = version


def _call(run: Run) -> None:
    import torch

    model = importlib.import_module("model")
    torch.manual_seed(0)
    dtype = getattr(torch, run.dtype)
    x = torch.randn(tuple(run.shape), dtype=dtype)
    if run.strided:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    if run.mark_dynamic is not None:
        torch._dynamo.mark_dynamic(x, run.mark_dynamic)
    how: dict[str, Any] = {"dynamic": run.dynamic}
    if run.options:
        how["options"] = dict(run.options)
    if run.mode is not None:
        how["mode"] = run.mode
    if run.graph in ("score", "other", "product"):
        arguments = {"score": [torch.randn_like(x), run.power], "product": [torch.randn_like(x)]}.get(run.graph, [])
        torch.compile(getattr(model, run.graph), **how)(x, *arguments)
        return
    block = model.Block(run.width, run.hidden).to(dtype)
    inputs = [x] + ([torch.zeros(*run.shape[:-1], 1, dtype=torch.bool)] if run.mask else [])
    compiled = torch.compile(block, **how)
    if run.graph == "train":
        compiled(*inputs).sum().backward()
    elif run.gradient:
        compiled(x.requires_grad_())
    else:
        with torch.no_grad():
            compiled(*inputs)


if __name__ == "__main__":
    main()
