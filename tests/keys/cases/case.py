"""`Case`: two situations, and whether their keys must differ, must be equal, or must be refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Expectation = Literal["change", "same", "refused"]


@dataclass(frozen=True)
class Case:
    """Two situations whose keys are compared.

    `sources` are files, by name; the second situation has those of `edits` in their place. `before` and `after` are
    expressions that give a key, evaluated in the module `main`, or for `after` with `then` executed first.
    """

    name: str
    expect: Expectation
    sources: dict[str, str]
    before: str
    after: str
    edits: dict[str, str] = field(default_factory=dict)
    # Statements between the two, in the same process; without edits, and where this is empty, one process sees both.
    then: str = ""
    needs: tuple[str, ...] = ()
    # Whether every process, Python version and checkout must find the same keys.
    is_portable: bool = True


def values(
    section: str, expect: Expectation, prelude: str, lines: str, needs: str = "", is_portable: bool = True
) -> list[Case]:
    """One case for each line `one || two` of expressions whose values are compared."""
    source = {"main.py": dedent(prelude)}
    cases = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        one, _, two = line.partition(" || ")
        before, after = (_key_of(value.strip()) for value in (one, two or one))
        name, packages = f"{section}: {line}", _words(needs)
        cases.append(Case(name, expect, source, before, after, needs=packages, is_portable=is_portable))
    return cases


def edits(
    section: str, expect: Expectation, source: str, lines: str, key: str = "hash_function(kernel)", needs: str = ""
) -> list[Case]:
    """One case for each line `old || new`, a replacement in the source; `\\n` in it stands for a line's end.

    `\\_` stands for a blank, for where one is needed at an end of the line.
    """
    text = dedent(source)
    cases = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        old, new = (part.strip().replace("\\n", "\n").replace("\\_", " ") for part in line.split("||"))
        assert old in text, f"{section}: {old!r} is not in the source"
        changed = {"main.py": text.replace(old, new)}
        cases.append(Case(f"{section}: {line}", expect, {"main.py": text}, key, key, changed, needs=_words(needs)))
    return cases


def mutations(
    section: str,
    expect: Expectation,
    source: str,
    lines: str,
    key: str = "hash_function(kernel)",
    needs: str = "",
    is_portable: bool = True,
) -> list[Case]:
    """One case for each line, a statement that is executed between two questions in one process."""
    text = {"main.py": dedent(source)}
    return [
        Case(f"{section}: {line}", expect, text, key, key, then=line, needs=_words(needs), is_portable=is_portable)
        for line in filter(None, map(str.strip, lines.splitlines()))
    ]


def _key_of(value: str) -> str:
    return value if value.startswith("hash_") else f"hash_value({value})"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def dedent(text: str) -> str:
    lines = text.strip("\n").split("\n")
    margin = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    return "\n".join(line.removeprefix(margin) for line in lines).rstrip() + "\n"
