#!/usr/bin/env python3
"""Writes the manual pages in docs/man/man1/ from the commands' own help; run it after changing a help text."""

from __future__ import annotations

from pathlib import Path

import typer

from kcachefs.cli import make_app
from kcachefs.cli.manual import pages

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "man" / "man1"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = pages(typer.main.get_command(make_app()))
    for old in FOLDER.glob("kcachefs*.1"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
