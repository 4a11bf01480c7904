"""`kcachefs doctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kcachefs import config


def doctor(
    store: Annotated[Path | None, typer.Option(help="The store to look at.", show_default="the usual one")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what is missing or odd on this machine and how to mend it. Exit code 1 when something does not work."""
    from kcachefs.frameworks import checkup

    findings = list(checkup.examine(Path(store or config.default_store()).absolute(), os.environ))
    if as_json:
        import dataclasses
        import json

        print(json.dumps({"findings": [dataclasses.asdict(one) for one in findings]}, indent=2))
    else:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False, soft_wrap=True)
        marks = {checkup.OK: ("✓", "green"), checkup.NOTE: ("!", "yellow"), checkup.PROBLEM: ("✗", "red")}
        for one in findings:
            mark, colour = marks[one.level]
            message = one.message.replace("\n", "\\n")  # a path may have one in it, and a complaint is one line
            console.print(Text.assemble((mark, colour), " ", (one.subject, "bold"), ": ", message))
            if one.remedy:
                remedy = one.remedy.replace("\n", "\\n")
                console.print(Text(f"    → {remedy}", style="cyan"))
    if any(one.level == checkup.PROBLEM for one in findings):
        sys.exit(1)
