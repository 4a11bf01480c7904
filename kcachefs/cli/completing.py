"""What a shell offers for the word that is being typed: verbs, options, values, entries and mounts.

The scripts in completions/ ask with `kcachefs --complete WORD...`, the last word being the unfinished one. Nothing
offered means that the shell completes file names. Whatever goes wrong, nothing is offered and nothing is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

SHELLS = {"bash": "kcachefs.bash", "zsh": "_kcachefs", "fish": "kcachefs.fish"}
"""The script of each shell, in completions/."""
_OFFERED = 200


def candidates(words: Sequence[str], commands: dict[str, Any]) -> list[str]:
    """What may stand in the place of the last word; `commands` are the parsers by their verbs."""
    *before, unfinished = words or [""]
    verb = next((word for word in before if not word.startswith("-")), "")
    command = commands.get(verb)
    if (inner := getattr(command, "commands", None)) and verb in before[:-1]:
        after = before[before.index(verb) + 1 :]
        command = inner.get(next((word for word in after if not word.startswith("-")), ""), command)
    if before and "--" in before:
        return []
    if before and before[-1] in _VALUES:
        found = _VALUES[before[-1]](verb)
    elif command is None:
        found = [] if verb else [*commands, "--help", "--version", "--debug"]
    elif unfinished.startswith("-"):
        found = [name for one in command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("--")]
    elif verb == "help":
        found = list(_below(commands, before[before.index(verb) + 1 :]))
    elif hasattr(command, "commands"):
        found = list(command.commands)
    else:
        found = _ARGUMENTS[verb](verb) if verb in _ARGUMENTS else []
    return sorted({word for word in found if word.startswith(unfinished) and word.isprintable()})[:_OFFERED]


def _below(commands: dict[str, Any], words: Iterable[str]) -> dict[str, Any]:
    """The commands that may follow these words."""
    for word in words:
        commands = getattr(commands.get(word), "commands", {})
    return commands


def _entries(verb: str) -> Iterable[str]:
    """Paths of entries and names of kernels, of the mount that a command without --mount means; namespaces for `ls`."""
    from kcachefs.core.entry_info import EntryInfo
    from kcachefs.daemon import control
    from kcachefs.mounts.finding import find

    for info in control.ask_mount(find(None), "ls", list[EntryInfo]):
        yield info.path
        if verb == "ls":
            yield info.namespace
        if not info.path.endswith(info.name):
            yield info.name.partition(" ")[0]


def _mounts(_: str) -> Iterable[str]:
    from kcachefs.daemon import registry

    return [state.mountpoint for state in (*registry.all_mounts(), *registry.dead_mounts())]


def _namespaces(_: str) -> Iterable[str]:
    from kcachefs.core.layouts import NAMESPACES

    return NAMESPACES


def _formats(_: str) -> Iterable[str]:
    from kcachefs.frameworks.formats import FORMATS

    return FORMATS


def _policies(_: str) -> Iterable[str]:
    from kcachefs.core.sharing import POLICIES

    return POLICIES


def _levels(_: str) -> Iterable[str]:
    from kcachefs.daemon.logs import LEVELS

    return LEVELS


def _modes(_: str) -> Iterable[str]:
    from kcachefs.fleet.options import MODES

    return MODES


def _orders(verb: str) -> Iterable[str]:
    if verb == "kernels":
        from kcachefs.cli.kernels import SORTS

        return SORTS
    from kcachefs.core import administration

    return administration.SORTS


_Offers = Callable[[str], Iterable[str]]
"""What may follow, given the verb."""
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
