"""The completions that a shell offers for the word being typed: verbs, options, values, entries and mounts.

The scripts in completions/ ask with `kcachefs --complete WORD...`, the last word being the unfinished one. If we offer
nothing, the shell completes file names. If anything goes wrong, we offer nothing and print nothing. Somebody is typing,
so we do not wait for a slow daemon.
"""

from __future__ import annotations

import contextlib
import glob
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kcachefs.errors import DaemonError, KcachefsError

SHELLS = {"bash": "kcachefs.bash", "zsh": "_kcachefs", "fish": "kcachefs.fish"}
"""The script of each shell, in completions/."""
_OFFERED = 200
_PATIENCE_SECONDS = 1.5
"""How long all questions to a daemon may take together."""


class _Line(NamedTuple):
    """The words typed so far."""

    verb: str
    before: Sequence[str]
    unfinished: str

    def value_of(self, option: str) -> Path | None:
        """The value of an option that takes a path, if it is given."""
        given = [value for name, value in zip(self.before, self.before[1:], strict=False) if name == option]
        return Path(given[-1]) if given else None


def candidates(words: Sequence[str], commands: dict[str, Any]) -> list[str]:
    """The possible completions of the last word; `commands` are the parsers by their verbs."""
    *typed, unfinished = words or [""]
    before = list(_words(typed))
    verb = next((word for word in before if not word.startswith("-")), "")
    command = commands.get(verb)
    if (inner := getattr(command, "commands", None)) and verb in before[:-1]:
        after = before[before.index(verb) + 1 :]
        command = inner.get(next((word for word in after if not word.startswith("-")), ""), command)
    if before and "--" in before:
        return []
    line = _Line(verb, before, unfinished)
    if before and before[-1] in _VALUES:
        found = _VALUES[before[-1]](line)
    elif command is None:
        found = [] if verb else [*commands, "--help", "--version", "--debug"]
    elif unfinished.startswith("-"):
        found = [name for one in command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("--")]
    elif verb == "help":
        found = list(_below(commands, before[before.index(verb) + 1 :]))
    elif hasattr(command, "commands"):
        found = list(command.commands)
    else:
        found = _ARGUMENTS[verb](line) if verb in _ARGUMENTS else []
    return sorted({word for word in found if word.startswith(unfinished) and word.isprintable()})[:_OFFERED]


def _words(typed: Sequence[str]) -> Iterator[str]:
    """Options and their values as separate words: `--mount=/mnt` is one word in some shells, and three in bash."""
    for word in typed:
        name, sign, value = word.partition("=") if word.startswith("--") else (word, "", "")
        yield from (name, value) if sign and value else () if word == "=" else (name,)


def _below(commands: dict[str, Any], words: Iterable[str]) -> dict[str, Any]:
    """The commands that may follow these words."""
    for word in words:
        commands = getattr(commands.get(word), "commands", {})
    return commands


def _entries(line: _Line) -> Iterator[str]:
    """Paths of entries and names of kernels, from the mount that the command would use; namespaces for `ls`."""
    from kcachefs.cli.target import find_mount
    from kcachefs.core.entry_info import EntryInfo
    from kcachefs.core.report import Statistics
    from kcachefs.daemon import control

    place = find_mount(line.value_of("--mount"), line.value_of("--store"))
    if place is None:  # a store that is not mounted would have to be opened
        return
    deadline = time.monotonic() + _PATIENCE_SECONDS

    def ask(verb: str, kind: Any, **arguments: Any) -> Any:
        left = max(0.01, deadline - time.monotonic())
        return control.ask_mount(place, verb, kind, arguments, seconds=left)

    with contextlib.suppress(KcachefsError):  # everything found by then is offered
        if line.verb == "ls":
            yield from ask("stats", Statistics).namespaces
        wanted = {"patterns": [f"{glob.escape(line.unfinished)}*"], "limit": _OFFERED}
        with contextlib.suppress(DaemonError):
            yield from (info.path for info in ask("ls", list[EntryInfo], names=False, **wanted))
        if "/" not in line.unfinished:
            for info in ask("ls", list[EntryInfo], **wanted):
                if not info.path.endswith(info.name):
                    yield info.name.partition(" ")[0]


def _mounts(_: _Line) -> Iterable[str]:
    from kcachefs.daemon import registry

    return [state.mountpoint for state in (*registry.all_mounts(), *registry.dead_mounts())]


def _namespaces(_: _Line) -> Iterable[str]:
    from kcachefs.core.layouts import NAMESPACES

    return NAMESPACES


def _formats(_: _Line) -> Iterable[str]:
    from kcachefs.frameworks.formats import FORMATS

    return FORMATS


def _policies(_: _Line) -> Iterable[str]:
    from kcachefs.core.sharing import POLICIES

    return POLICIES


def _levels(_: _Line) -> Iterable[str]:
    from kcachefs.daemon.logs import LEVELS

    return LEVELS


def _modes(_: _Line) -> Iterable[str]:
    from kcachefs.fleet.options import MODES

    return MODES


def _orders(line: _Line) -> Iterable[str]:
    if line.verb == "kernels":
        from kcachefs.cli.kernels import SORTS

        return SORTS
    from kcachefs.core import administration

    return administration.SORTS


_Offers = Callable[[_Line], Iterable[str]]
"""Returns the possible completions, given the words typed so far."""
_VALUES: dict[str, _Offers] = {
    "--mount": _mounts,
    "--only": _namespaces,
    "--as": _namespaces,
    "--format": _formats,
    "--policy": _policies,
    "--for": lambda _: ("read", "publish", "gc"),
    "--sort": _orders,
    "--by": lambda _: ("namespace", "user", "run"),
    "--engine": lambda _: ("direct", "pyfuse3"),
    "--log-format": lambda _: ("text", "json"),
    "--log-level": _levels,
    "--fleet-mode": _modes,
    "--bytecode": lambda _: ("auto", "on", "off"),
}
_ARGUMENTS: dict[str, _Offers] = {
    **dict.fromkeys(("ls", "pin", "unpin", "evict", "explain", "kernels", "show", "diff"), _entries),
    **dict.fromkeys(("umount", "reload", "set", "top", "web"), _mounts),
    "completion": lambda _: SHELLS,
}
