"""The options of a run-time compiler in a program's key: when their order counts, and which paths in them do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from kcachefs.errors import UsageError
from kcachefs.keys.encoding import flat

OptionOrder = Literal["preserved", "normalised"]

INCLUDE = ("--include-path", "-I")
DEFINE = ("--define-macro", "-D")
# Debug information holds the paths of all files, and the current directory if those paths are relative.
DEBUG = frozenset({"-G", "--device-debug", "-lineinfo", "--generate-line-info"})

# Options that may change places with any other: each acts by itself, and repeated ones count in their order. NVRTC
# takes most of them with one dash as well as with two. Every option that is not here keeps its place.
_INDEPENDENT = frozenset(
    {
        *("fmad", "ftz", "prec-div", "prec-sqrt", "use_fast_math", "extra-device-vectorization", "maxrregcount"),
        *("std", "restrict", "device-as-default-execution-space", "default-device", "device-int128"),
        *("device-float128", "builtin-move-forward", "builtin-initializer-list", "minimal", "modify-stack-limit"),
        *("split-compile", "brief-diagnostics", "dlto", "gen-opt-lto", "optix-ir", "jump-table-density"),
    }
)
# Two names of one option.
_ALIASES = {"default-device": "device-as-default-execution-space"}


def encode_options(
    options: Sequence[str | bytes], order: OptionOrder, folders: Sequence[str] = (), tells_paths: bool = False
) -> list[bytes]:
    """Options as they count in a key.

    An include path among `folders` counts by its position there only, because the content of the folder counts by
    itself. The path itself counts if the compiled program would hold it: with debug information, or if `tells_paths` is
    true.
    """
    words = [word.strip() for word in _words(options)]  # NVRTC drops the blanks around a word
    if folders and not tells_paths and DEBUG.isdisjoint(words):
        words = _placed(words, list(folders))
    if order == "preserved":
        return [b"preserved", *(word.encode() for word in words)]
    return [b"normalised", *(flat([word.encode() for word in group]) for group in sorted(_groups(words), key=_bucket))]


def defined_macros(options: Sequence[str | bytes]) -> dict[str, str]:
    """The macros that options define, with their values.

    >>> defined_macros(["-DA=1", "-D", "B", "--define-macro=C=<c.h>"])
    {'A': '1', 'B': '1', 'C': '<c.h>'}
    """
    found = {}
    for value in option_values(_words(options), DEFINE):
        name, equals, content = value.partition("=")
        found[name] = content if equals else "1"
    return found


def option_values(options: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """The values of options of these names: `--name=value`, `--name value` in two words, or `-Ivalue`."""
    for _, _, value in _valued(options, names):
        yield value


def _valued(options: Sequence[str], names: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Where an option of these names begins and ends among the words, and its value."""
    words = [word.strip() for word in options]
    for at, word in enumerate(words):
        for name in names:
            is_letter = len(name) == 2
            if word == name:
                if at + 1 < len(words):
                    yield at, at + 2, words[at + 1]
            elif word.startswith(name + "="):
                yield at, at + 1, word[len(name) + 1 :]
            elif is_letter and word.startswith(name):
                yield at, at + 1, word[len(name) :].lstrip()


def _words(options: Sequence[str | bytes]) -> list[str]:
    if isinstance(options, str | bytes):
        raise UsageError(f"options is {options!r}; pass a list with one item for each option")
    for option in options:
        if not isinstance(option, str | bytes):
            raise UsageError(f"{option!r} is not an option; pass each option as text")
    return [option.decode() if isinstance(option, bytes) else option for option in options]


def _placed(words: list[str], folders: list[str]) -> list[str]:
    """The words with each include path that is one of `folders` replaced by its position there."""
    placed: list[str] = []
    end = 0
    for begin, after, value in _valued(words, INCLUDE):
        if begin < end or value not in folders:
            continue
        placed += [*words[end:begin], f"-I#{folders.index(value)}"]
        end = after
    return placed + words[end:]


def _groups(words: list[str]) -> list[list[str]]:
    """Each option with the words after it that are not options of their own: `-D N=4` is one group."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def _bucket(group: list[str]) -> str:
    """The bucket of an option: options in the same bucket keep their order."""
    name = group[0].strip().lstrip("-").partition("=")[0]
    name = _ALIASES.get(name, name)
    return name if name in _INDEPENDENT and len(group) == 1 else ""
