"""`kcachefs warm`: compiles what every start on this machine needs, before the first job does."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated

import typer

from kcachefs.cli.printing import bars, print_json
from kcachefs.cli.usage import a_path
from kcachefs.errors import MountDenied, UsageError


def warm(
    distributions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DISTRIBUTION]...", help="Installed packages to compile to bytecode in full."),
    ] = None,
    mount: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The mount to fill.", show_default="the only one", parser=a_path)
    ] = None,
    python: Annotated[
        str, typer.Option(metavar="PY", help="The Python that jobs use.", show_default="the first on PATH")
    ] = "",
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Also compile what every start on this machine's GPU needs.")
    ] = False,
    bytecode: Annotated[
        str | None,
        typer.Option(help="Python's bytecode in the mount: auto (where it helps), on or off.", show_default="auto"),
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing after success.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compile what every start needs, whatever its model. Run it once for each environment; it skips what is there.

    This compiles TorchInductor's probes of the processor and its precompiled header; with --gpu, also Triton's driver
    and launcher. Where it helps, it also compiles the modules that these import, and every DISTRIBUTION, to bytecode.
    """
    from kcachefs.frameworks import bytecode as pycs
    from kcachefs.frameworks import environment, headers, interpreters, make_folders
    from kcachefs.mounts.finding import find
    from kcachefs.session import warming
    from kcachefs.session.bytecode import wish

    where = find(mount)
    executable = interpreters.executable_of(interpreters.named(python, os.environ), os.environ)
    interpreter = interpreters.ask(executable, os.environ) if executable is not None else None
    if executable is None or interpreter is None:
        raise UsageError(f"{python or 'python'}: is not a working Python; name one with --python")
    judged = pycs.judge(interpreter, os.environ, wish(where, bytecode))
    warming.steps(judged, distributions or (), gpu=gpu)  # report a wrong name before anything is made
    make_folders(where)
    headers.link(where)
    own = pycs.variables(where, judged)
    if not own:  # where others may write, bytecode stays with Python; everything else can still be warmed
        judged = dataclasses.replace(judged, is_used=False)
    wanted = warming.steps(judged, distributions or (), gpu=gpu)
    values = {**os.environ, **environment(where), **own}
    folder = pycs.environment_folder(where, judged) or where / pycs.NAMESPACE / judged.environment
    if not folder.is_dir():
        raise MountDenied(
            f"{where}: no permission to write to its folder {pycs.NAMESPACE}; ask its owner, or mount your own"
        )
    with bars(quiet=quiet or as_json) as tell:
        outcome = warming.warm(where, executable, folder, wanted, values, tell)
    if as_json:
        print_json({"environment": folder.name, "compiled": outcome.done, "known": outcome.known})
    elif not quiet:
        for name in outcome.done:
            print(f"{name}: compiled")
        for name in outcome.known:
            print(f"{name}: was there already")
        if not wanted:
            print("nothing to do: that Python has no torch, and there is no DISTRIBUTION to compile to bytecode")
