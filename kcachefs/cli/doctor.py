"""`kcachefs doctor`: prints what is missing or unusual on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs.cli.printing import complain, console
from kcachefs.cli.usage import a_path
from kcachefs.errors import KcachefsError
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.doctor import Finding


def doctor(
    store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The store to check.", show_default="the default store", parser=a_path),
    ] = None,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Unmount your mounts whose daemon is dead, and remove broken links."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report what is missing or unusual on this machine and how to fix it. Exit code 1 if something does not work."""
    from kcachefs.doctor import NOTE, OK, PROBLEM, examine

    findings = list(examine(store, os.environ))
    if fix:
        for one in findings:
            _mend(one)
        findings = list(examine(store, os.environ))
    if as_json:
        import json

        shown = ("level", "subject", "message", "remedy")
        rows = [{name: getattr(one, name) for name in shown} for one in findings]
        print(json.dumps({"findings": rows}, indent=2))
    else:
        from rich.text import Text

        screen = console(highlight=False, soft_wrap=True)
        from kcachefs.cli.tables import shows_unicode

        good, bad, arrow = ("✓", "✗", "→") if shows_unicode() else ("ok", "BAD", "->")
        marks = {OK: (good, "green"), NOTE: ("!", "yellow"), PROBLEM: (bad, "red")}
        for one in findings:
            mark, colour = marks[one.level]
            screen.print(Text.assemble((mark, colour), " ", (one.subject, "bold"), ": ", printable(one.message)))
            if one.remedy:
                screen.print(Text(f"    {arrow} {printable(one.remedy)}", style="cyan"))
    if any(one.level == PROBLEM for one in findings):
        sys.exit(1)


def _mend(finding: Finding) -> None:
    if finding.mend is None:
        return
    try:
        finding.mend()
    except (KcachefsError, OSError) as error:
        complain(f"kcachefs: {printable(f'{finding.message}: cannot be fixed: {error}')}")
    else:
        complain(f"kcachefs: fixed: {printable(finding.message)}")
