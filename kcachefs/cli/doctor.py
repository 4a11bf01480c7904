"""`kcachefs doctor`: prints what is missing or unusual on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from kcachefs import config


def doctor(
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The store to check.", show_default="the default store")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report what is missing or unusual on this machine and how to fix it. Exit code 1 if something does not work."""
    from kcachefs.doctor import NOTE, OK, PROBLEM, examine

    findings = list(examine(Path(store or config.default_store()).absolute(), os.environ))
    if as_json:
        import dataclasses
        import json

        print(json.dumps({"findings": [dataclasses.asdict(one) for one in findings]}, indent=2))
    else:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False, soft_wrap=True)
        marks = {OK: ("✓", "green"), NOTE: ("!", "yellow"), PROBLEM: ("✗", "red")}
        for one in findings:
            mark, colour = marks[one.level]
            message = one.message.replace("\n", "\\n")  # a path may contain one, and a finding is one line
            console.print(Text.assemble((mark, colour), " ", (one.subject, "bold"), ": ", message))
            if one.remedy:
                remedy = one.remedy.replace("\n", "\\n")
                console.print(Text(f"    → {remedy}", style="cyan"))
    if any(one.level == PROBLEM for one in findings):
        sys.exit(1)
