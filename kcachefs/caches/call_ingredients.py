"""The ingredients of the key of a cached call: the function, its source, each argument, what was declared."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kcachefs.caches.arguments import is_function
from kcachefs.caches.ingredients import Ingredient, of_bytes, of_value
from kcachefs.keys.declared import Env, File, Version, hash_depends
from kcachefs.keys.functions import hash_function, hash_value


def of_call(
    function: Callable[..., Any],
    name: str,
    function_key: str,
    arguments: Mapping[str, Any],
    encoding: str | Callable[..., Any] | None,
    ignore: Sequence[str],
    depends: Sequence[object],
) -> Iterator[Ingredient]:
    """`encoding` is the name of the encoder, or the encoder itself."""
    yield Ingredient("function", bytes.fromhex(function_key)[:8], name)
    yield from _source(function)
    for parameter, value in arguments.items():
        yield of_value(f"argument {parameter}", value, _key(value))
    if isinstance(encoding, str):
        yield of_value("encoding", encoding, hash_value(encoding))
    elif encoding is not None:
        key = bytes.fromhex(hash_function(encoding, ignore=ignore))[:8]
        yield Ingredient("encoding", key, str(getattr(encoding, "__qualname__", "")))
    for number, item in enumerate(depends):
        yield _declared(number, item)


def _key(value: Any) -> str:
    return hash_function(value) if is_function(value) else hash_value(value)


def _source(function: Callable[..., Any]) -> Iterator[Ingredient]:
    """The function's own text and its place: so an edit of the function can be told from one of something it uses."""
    inner = getattr(function, "fn", function)
    try:
        lines, first = inspect.getsourcelines(inner)
        file = inspect.getsourcefile(inner) or ""
    except (OSError, TypeError):
        return
    yield of_bytes("source", "".join(lines).encode("utf-8", "surrogatepass"), f"{os.path.basename(file)}:{first}")


def _declared(number: int, item: object) -> Ingredient:
    """Values of variables and contents of files may be private: they are named, and not shown."""
    key = bytes.fromhex(hash_depends([item]))[:8]
    match item:
        case Env(name):
            return Ingredient(f"variable {name}", key)
        case File(path):
            return Ingredient(f"file {os.path.basename(path.rstrip('/'))}", key)
        case Version(distribution):
            return Ingredient(f"version of {distribution}", key, str(item.__kcachefs_key__()[2]))
    return Ingredient(f"dependency {number + 1}", key, type(item).__qualname__)
