"""`ProgramCache` under the names and arguments of cuda.core's program caches."""

from __future__ import annotations

import os

import cuda.core.utils

from kcachefs.cuda import ProgramCache

_UNBOUNDED = 1 << 60


class FileStreamProgramCache(ProgramCache):
    def __init__(self, path: str | os.PathLike[str] | None = None, *, max_size_bytes: int | None = None) -> None:
        super().__init__(path, max_bytes=max_size_bytes)


class InMemoryProgramCache(ProgramCache):
    def __init__(self, *, max_size_bytes: int | None = None) -> None:
        bound = _UNBOUNDED if max_size_bytes is None else max_size_bytes
        super().__init__(disk=False, memory_entries=_UNBOUNDED, memory_bytes=bound)


def install() -> None:
    """Replace cuda.core's."""
    cuda.core.utils.FileStreamProgramCache = FileStreamProgramCache
    cuda.core.utils.InMemoryProgramCache = InMemoryProgramCache
