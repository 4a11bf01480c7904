"""Waiting without blocking an event loop: the few things the library needs of asyncio or of trio, whichever runs.

Neither is imported unless a task asks: whoever runs one has imported it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a call that may block, made in a worker thread."""
    if _is_trio():
        import trio

        return await trio.to_thread.run_sync(lambda: function(*args, **kwargs))
    import asyncio

    return await asyncio.to_thread(function, *args, **kwargs)


async def sleep(seconds: float) -> None:
    """Let other tasks run for that long."""
    if _is_trio():
        import trio

        await trio.sleep(seconds)
        return
    import asyncio

    await asyncio.sleep(seconds)


async def until(when: Callable[[Callable[[], None]], Any]) -> None:
    """Wait for what `when(callback)` announces by calling the callback, once and from any thread."""
    if _is_trio():
        import trio

        event, token = trio.Event(), trio.lowlevel.current_trio_token()

        def wake_task() -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(event.set)

        when(wake_task)
        await event.wait()
        return
    import asyncio

    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(resolve)

    when(wake)
    await future


def _is_trio() -> bool:
    """Whether the calling task is trio's."""
    if "trio" not in sys.modules:
        return False
    import trio

    return trio.lowlevel.in_trio_task()
