"""How commands print: JSON, counted nouns, and text for a terminal, a pipe or an ASCII-only locale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: Any) -> None:
    """Print one JSON document, indented, as every `--json` does."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value)).decode())


def counted(number: int, singular: str, plural: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "entry", "entries"), counted(2, "entry", "entries"), counted(12345, "problem")
    ('1 entry', '2 entries', '12,345 problems')
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def console(**options: Any) -> Console:
    """A rich console for which a reader that has seen enough is no failure."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Quiet(**options)
