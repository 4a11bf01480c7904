"""Messages about wrong usage: one line that names the word, says what is wrong, and suggests the right word.

The wording is ours, because the parser's own messages change from version to version.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

UsageError: Any = typer.BadParameter.__bases__[0]
"""The parser's exception for wrong usage; typer does not export it."""


def usage_line(error: Any) -> str:
    """The parser's complaint in one line that ends with where to read more."""
    context = error.ctx
    command = context.command_path if context is not None else "kcachefs"
    complaint = _complaint(error)
    return f"{complaint}{' See:' if complaint.endswith('?') else '; see:'} {command} --help"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean triton?`, or an empty text if no known word is similar.

    >>> did_you_mean("trition", ["triton", "jax"])
    '; did you mean triton?'
    """
    near = difflib.get_close_matches(word, sorted(known), 2, 0.7)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def a_path(text: str) -> Path:
    """A path as given; an empty one, as from an unset variable, is refused: it would mean the current directory."""
    if not text:
        raise typer.BadParameter("is empty")
    return Path(text)


def _complaint(error: Any) -> str:
    said = " ".join(error.format_message().split()).rstrip(".")
    command = error.ctx.command if error.ctx is not None else None
    kind = type(error).__name__
    if kind == "NoSuchOption":
        options = [name for one in command.params for name in (*one.opts, *one.secondary_opts)] if command else []
        return f"{error.option_name}: no such option{did_you_mean(error.option_name, options)}"
    if found := re.match(r"No such command '(.*?)'", said):
        return f"{found[1]}: no such command{did_you_mean(found[1], getattr(command, 'commands', ()))}"
    if kind == "MissingParameter" and error.param is not None:
        return f"{_name(error.param).removesuffix('...')} is missing"
    if found := re.match(r"Got unexpected extra arguments? ?(?:\(s\) )?\((.*)\)", said):
        return f"{found[1]}: too many arguments"
    if kind == "BadOptionUsage":
        return f"{error.option_name}: needs a value"
    if kind == "BadParameter" and error.param is not None:
        return f"{_name(error.param)}: {_reason(error.message)}"
    return said


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name).removeprefix("-- ").strip("[]")
    return str(parameter.opts[-1])


def _reason(message: str) -> str:
    """What is wrong with a value, as far as the parser's words, which differ between versions, reveal it."""
    if found := re.search(r"greater than or equal to (\S+)|>=\s?(\S+?)\.?$", message):
        return f"must be at least {(found[1] or found[2]).rstrip('.')}"
    if re.search(r"\bint(eger)?\b", message):
        return "is not a whole number"
    if "number" in message or "float" in message:
        return "is not a number"
    return message.rstrip(".")
