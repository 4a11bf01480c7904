"""Manual pages generated from the same texts as `--help`, so that the two cannot differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import kcachefs


def pages(program: Any) -> dict[str, str]:
    """Every page by its file name: `kcachefs.1`, and one for each command."""
    commands = program.commands
    found = {"kcachefs.1": _overview(program, commands)}
    for name, command in commands.items():
        found[f"kcachefs-{name}.1"] = _page(name, command)
        for verb, inner in getattr(command, "commands", {}).items():
            found[f"kcachefs-{name}-{verb}.1"] = _page(f"{name} {verb}", inner)
    return found


def _overview(program: Any, commands: dict[str, Any]) -> str:
    lines = [_heading("kcachefs"), ".SH NAME", f"kcachefs \\- {_text(_one_line(program.help))}"]
    lines += [".SH SYNOPSIS", ".B kcachefs", ".I COMMAND", "[\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]"]
    lines += [".SH DESCRIPTION", *_paragraphs(program.help), ".SH COMMANDS"]
    for name, command in commands.items():
        lines += [".TP", f".BR kcachefs\\-{_text(name)} (1)", _text(_one_line(command.help))]
    lines += [".SH OPTIONS", *_options(program.params), ".SH EXIT STATUS"]
    for code, meaning in re.findall(r"(\d+) ([^·]+?)(?: ·|$)", _plain(program.epilog)):
        lines += [".TP", f".B {code}", _text(meaning)]
    return "\n".join([*lines, ""])


def _page(name: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    title = f"kcachefs-{name.replace(' ', '-')}"
    lines = [_heading(title), ".SH NAME", f"{_text(title)} \\- {_text(_one_line(command.help))}"]
    lines += [".SH SYNOPSIS", f".B kcachefs {_text(name)}", "[\\fIOPTIONS\\fR]"]
    lines += [f"\\fI{_text(_metavar(one))}\\fR" for one in arguments]
    lines += [".SH DESCRIPTION", *_paragraphs(command.help)]
    if arguments:
        lines.append(".SH ARGUMENTS")
        for one in arguments:
            lines += [".TP", f".I {_text(_metavar(one))}", _text(_plain(one.help or ""))]
    lines += [".SH OPTIONS", *_options(options), ".SH SEE ALSO", ".BR kcachefs (1)"]
    return "\n".join([*lines, ""])


def _heading(title: str) -> str:
    return f'.TH "{_text(title.upper())}" "1" "" "kcachefs {kcachefs.__version__}" "kcachefs"'


def _options(parameters: Iterable[Any]) -> Iterator[str]:
    for one in parameters:
        names = ", ".join(f"\\fB{_text(name)}\\fR" for name in (*one.opts, *one.secondary_opts))
        value = "" if one.is_flag else f" \\fI{_text(one.metavar or 'TEXT')}\\fR"
        yield from (".TP", f"{names}{value}", _text(_plain(one.help or "")) + _default(one))


def _default(parameter: Any) -> str:
    shown = parameter.show_default
    if isinstance(shown, str):
        return f" Default: {_text(shown)}."
    value = parameter.default
    if parameter.is_flag or value is None or value == "" or not isinstance(value, str | int | float):
        return ""
    return f" Default: {_text(str(value))}."


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _one_line(text: str) -> str:
    return _plain(text.strip().partition("\n\n")[0]).rstrip(".")


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(_plain(text.strip(), keep_lines=True).split("\n\n")):
        if number:
            yield ".PP"
        yield _text(" ".join(paragraph.split()))


def _plain(text: str, *, keep_lines: bool = False) -> str:
    return text.replace("`", "") if keep_lines else " ".join(text.replace("`", "").split())


def _text(text: str) -> str:
    """Text escaped for roff, so that none of it is read as a command."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace('"', "\\(dq")
    escaped = escaped.replace("…", "...").replace("·", "\\(bu")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
