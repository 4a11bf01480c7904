"""`kcachefs fsck`: checks a store that nobody has open, and repairs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kcachefs import config
from kcachefs.cli.ending import dying_when_told_to
from kcachefs.cli.printing import bars, counted, print_json
from kcachefs.cli.usage import a_path
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.store.inspection import Report


def fsck(
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The store's directory.",
            show_default="$KCACHEFS_STORE or the user's cache directory",
            parser=a_path,
        ),
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Repair what is found.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check every record and every byte of a store, and with --repair drop what cannot be trusted.

    A file whose bytes are lost or wrong is removed, so that it is compiled again; nothing intact is lost. The store
    must not be mounted. Exit code: 0 clean, 1 repaired, 2 damage remains.
    """
    import msgspec

    from kcachefs.store.fsck import run

    path = store or config.default_store()
    with bars(quiet=as_json) as progress, dying_when_told_to():
        report = run(path, repair=repair, progress=progress)
    if as_json:
        print_json({**msgspec.to_builtins(report), "exit_code": report.exit_code})
    else:
        print(_text(report, repair=repair))
    raise typer.Exit(report.exit_code)


def _text(report: Report, *, repair: bool) -> str:
    lines = []
    for finding in report.findings:
        outcome = finding.remedy if finding.repaired else "damage remains" if repair else f"repair: {finding.remedy}"
        lines.append(printable(f"{finding.check}: {finding.thing}: {finding.problem} ({outcome})"))
    held = f"{counted(report.objects, 'object')}, {counted(report.inodes, 'inode')}"
    remaining = sum(not one.repaired for one in report.findings)
    verdict = {
        0: f"{report.store}: clean ({held})",
        1: f"{report.store}: repaired, {counted(len(report.findings), 'problem')} fixed ({held})",
        2: f"{report.store}: damaged, {counted(remaining, 'problem')} found"
        + ("; move the store away and start a new one" if repair else "; run: kcachefs fsck --repair"),
    }[report.exit_code]
    return "\n".join([*lines, verdict])
