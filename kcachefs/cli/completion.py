"""`kcachefs completion`: prints the script that completes words in a shell."""

from __future__ import annotations

from importlib import resources
from typing import Annotated

import typer

from kcachefs.cli.completing import SHELLS
from kcachefs.cli.usage import did_you_mean
from kcachefs.errors import UsageError


def completion(shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the completion script of a shell: verbs, options, entries and mounts.

    In ~/.bashrc: eval "$(kcachefs completion bash)"
    """
    if shell not in SHELLS:
        raise UsageError(f"{shell}: no such shell{did_you_mean(shell, SHELLS)}; there are {', '.join(SHELLS)}")
    print(resources.files(__package__).joinpath("completions", SHELLS[shell]).read_text(encoding="utf-8"), end="")
