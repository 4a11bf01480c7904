"""Keeps the results of `torch.compile`: load its cache artefacts before a run, save them after it.

`torch.compiler` bundles the results of a process's compilations into one byte string. An `ArtifactStore` keeps such
bundles under names that you choose, bound to the versions of torch and Triton and to the machine's kind of device, and
verifies them as they are read. The bundle itself is torch's format and may contain pickles: share a store only with
people whom you would let run code.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator
from typing import Any

import torch

from kcachefs.caches import Cache
from kcachefs.keys.encoding import digest, encode


class ArtifactStore:
    """Bundles of compile artefacts by name. `max_bytes` bounds the folder where it is a plain directory.

    with ArtifactStore().session("llama-8b"):
        ...  # torch.compile finds what the last run made
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, max_bytes: int | None = None) -> None:
        # Bundles are large and read once: keeping them in memory would be of no use.
        self.cache: Cache = Cache(path, name="torch", memory_entries=0, max_bytes=max_bytes)

    def load(self, name: str) -> bool:
        """Put the artefacts kept under `name` into torch's caches; returns whether they existed and torch took them."""
        found = self.cache.get(self.key(name))
        return found is not None and torch.compiler.load_cache_artifacts(found) is not None

    def save(self, name: str) -> int:
        """Keep what this process has compiled or loaded under `name`; returns its size, or 0 if nothing is kept."""
        made: tuple[bytes, Any] | None = torch.compiler.save_cache_artifacts()
        if made is None:
            return 0
        is_kept = self.cache.put(self.key(name), made[0], {"name": name, "torch": str(torch.__version__)})
        return len(made[0]) if is_kept else 0

    @contextlib.contextmanager
    def session(self, name: str) -> Iterator[bool]:
        """Load before and save after; yields whether anything was loaded. A run that raises is not saved."""
        yield self.load(name)
        self.save(name)

    def key(self, name: str) -> str:
        """The key of a name on this kind of machine with these versions."""
        return digest("torch artefacts", encode((name, str(torch.__version__), _triton_version(), _device()))).hex()

    def close(self) -> None:
        """Close the underlying cache; the files on disk stay."""
        self.cache.close()

    def __enter__(self) -> ArtifactStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _triton_version() -> str:
    # Not Triton's own variable: Triton is imported by the first compilation, between a load and a save.
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _device() -> list[Any]:
    """The hardware that the artefacts are compiled for: the GPUs' names and capabilities, the CPU's instruction set."""
    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpus.append((torch.cuda.get_device_name(index), tuple(torch.cuda.get_device_capability(index))))
    return [platform.machine(), torch.backends.cpu.get_cpu_capability(), gpus]
