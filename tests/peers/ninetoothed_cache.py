"""What `ninetoothed._cache` offers, made of kcachefs: keys by content, and an `ObjectCache` for values.

Its tests patch the modules `inspect` and `os` in it, so those are imported though nothing here uses them.
"""

from __future__ import annotations

import ast
import inspect  # noqa: F401
import json
import os  # noqa: F401
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kcachefs import Cache as ByteCache
from kcachefs import ObjectCache
from kcachefs.errors import Unkeyable
from kcachefs.keys import hash_function, hash_value, project_fingerprint

DEFAULT_CACHE_ROOT = Path.home() / ".ninetoothed"


def hash_function_source(function: Callable[..., Any]) -> str:
    # `make` puts what it arranged into the annotations of the application that it is given.
    return f"src:{hash_function(function, annotations=False)}"


def hash_tensor_signature(tensor: Any) -> tuple[str, ...]:
    """A tensor by its layout; its name is an instance counter and does not count."""
    shape = tuple(map(_dimension, tensor.shape))
    fields = ("ndim", "jagged_dim", "other", "dtype", "constexpr", "value")
    return (hash_value((shape, [getattr(tensor, name, None) for name in fields])),)


def _dimension(size: Any) -> Any:
    """A symbol by what is known of it, for its name is generated; an expression by its text."""
    node = getattr(size, "node", None)
    if node is None:
        return size
    known = [getattr(size, name, None) for name in ("lower_bound", "upper_bound", "power_of_two")]
    return ("symbol", known) if isinstance(node, ast.Name) else (ast.dump(node), known)


def project_files_fingerprint(directory: Path, exclude_suffixes: tuple[str, ...] = (".pyc",)) -> str:
    return str(project_fingerprint(directory))


class Cache:
    """ninetoothed's cache: any value under any key, in memory first in first out, and in files through text."""

    def __init__(
        self,
        namespace: str | None = None,
        *,
        suffix: str = ".json",
        serializer: Callable[[Any], str] = json.dumps,
        deserializer: Callable[[str], Any] = json.loads,
        cache_dir: Path | None = None,
        max_memory: int = 256,
    ) -> None:
        folder = cache_dir if cache_dir is not None or namespace is None else DEFAULT_CACHE_ROOT / namespace
        self.cache_dir = None if folder is None else Path(folder)
        self._objects: ObjectCache[Any]
        if self.cache_dir is None:
            self._objects = ObjectCache(memory_entries=max_memory, policy="fifo")
        else:
            self.cache_dir.mkdir(parents=True, exist_ok=True)
            self._objects = ObjectCache(
                ByteCache(self.cache_dir, memory_entries=0),
                encode=lambda value: serializer(value).encode(),
                decode=lambda content: deserializer(content.decode()),
                memory_entries=max_memory,
                policy="fifo",
            )

    @property
    def is_memory_only(self) -> bool:
        return self.cache_dir is None

    @property
    def memory_size(self) -> int:
        return self._objects.stats().memory_entries

    def contains(self, key: Any) -> bool:
        return _key(key) in self._objects

    def get(self, key: Any, default: Any = None) -> Any:
        return self._objects.get(_key(key), default)

    def put(self, key: Any, value: Any) -> None:
        self._objects.put(_key(key), value)

    def delete(self, key: Any) -> None:
        self._objects.delete(_key(key))

    def clear_memory(self) -> None:
        self._objects.clear_memory()


def _key(key: Any) -> str:
    try:
        return hash_value(key)
    except Unkeyable as error:
        raise TypeError(f"{key!r} cannot be a key: {error}") from error
