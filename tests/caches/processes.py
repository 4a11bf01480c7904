"""Starts the workers, talks to them, and ends every one of them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


class Worker:
    """One process."""

    def __init__(self, *words: object, before: tuple[str, ...] = ()) -> None:
        command = [*before, sys.executable, "-m", "tests.caches.workers", *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the worker ended with {self.process.wait(PATIENCE)}"
        return json.loads(line)

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


@pytest.fixture
def start() -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def started(*words: object, **how: Any) -> Worker:
        workers.append(Worker(*words, **how))
        return workers[-1]

    yield started
    for worker in workers:
        worker.kill()
        for pipe in (worker.process.stdin, worker.process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
