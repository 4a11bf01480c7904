"""Threads for requests that take long."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Pool(ThreadPoolExecutor):
    """A pool that goes on with its present threads if the system refuses to start more.

    The base class queues the work first and starts a thread then. If that fails, `submit` raises, and the work is
    carried out all the same when a later `submit` gets a thread: long after its caller was told that it failed.
    """

    def carry_out(self, run: Callable[[], None], finished: Callable[[int], None]) -> Future[None]:
        """Call `run` in a thread, then `finished` with the elapsed nanoseconds; RuntimeError if there is no thread."""
        came_at = time.monotonic_ns()
        try:
            future = self.submit(run)
        except RuntimeError:
            finished(0)
            raise
        future.add_done_callback(lambda _: finished(time.monotonic_ns() - came_at))
        return future

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                self._work_queue.get_nowait()  # without threads, the queue holds only the work just added
                raise
