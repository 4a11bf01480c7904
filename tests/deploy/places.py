"""The files of deploy/ and every kcachefs command in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
ROOT = DEPLOY.parent

_COMMAND = re.compile(r"""(?<![^\s"'`(/|])kcachefs[ ](?=(?P<rest>[a-z][^`\n]*))""")
_OTHERS = {"kcachefs", "exec", "import"}
"""Words after "kcachefs" that are not its commands: a container, a namespace and a module have that name too."""
_CONTINUED = re.compile(r"\\\n\s*")


def files() -> list[Path]:
    return sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.name != "__pycache__")


def documents(path: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(path.read_text()) if found]


def commands(path: Path) -> list[list[str]]:
    """The arguments of each `kcachefs …` in a file."""
    if path.suffix == ".yaml":
        return [arguments for document in documents(path) for arguments in _commands_in(document)]
    text = _CONTINUED.sub("", path.read_text())
    found = []
    for match in _COMMAND.finditer(text):
        words = _words(match["rest"])
        if words[0].isalpha() and words[0] not in _OTHERS:
            found.append(words)
    return found


def _words(text: str) -> list[str]:
    """The words up to where the shell ends the command."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;<>()"):
            if words and words[-1].isdigit() and set(word) & set("<>"):
                words.pop()  # the number of a redirected descriptor
            break
        words.append(word)
    return words


def _commands_in(node: Any) -> Iterator[list[str]]:
    """The arguments of containers of our image, wherever they are in a document."""
    if isinstance(node, dict):
        # An initContainer of ours runs a shell.
        if node.get("image") == "kcachefs" and node.get("command", [""])[0] != "sh":
            yield [str(word) for word in node.get("args") or node.get("command") or []]
        for value in node.values():
            yield from _commands_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from _commands_in(value)
