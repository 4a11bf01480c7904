"""Waiting without blocking an event loop: the few things the library needs from asyncio or trio, whichever runs.

Neither is imported before a task needs it; by then its program has imported it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a call that may block, made in a worker thread.

    A task that is cancelled does not wait for the call, but the call still runs to its end.
    """
    call = partial(copy_context().run, partial(function, *args, **kwargs))
    if _is_trio():
        import trio

        ended = trio.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        async def make() -> None:  # must not raise: that would be the end of trio's loop
            try:
                results.append(await trio.to_thread.run_sync(call))
            except BaseException as error:
                errors.append(error)
            ended.set()

        trio.lowlevel.spawn_system_task(make)  # nobody cancels it before the program ends
        await ended.wait()
        if errors:
            raise errors[0]
        return results[0]
    import asyncio

    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, call))


async def in_thread_to_the_end(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `in_thread`, but a task that is cancelled waits for the call first."""
    if _is_trio():
        import trio

        with trio.CancelScope(shield=True):
            return await in_thread(function, *args, **kwargs)
    import asyncio

    call = asyncio.create_task(in_thread(function, *args, **kwargs))
    cancelled = None
    while not call.done():
        try:
            await asyncio.wait([call])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return call.result()


async def sleep(seconds: float) -> None:
    """Let other tasks run for this long."""
    if _is_trio():
        import trio

        await trio.sleep(seconds)
        return
    import asyncio

    await asyncio.sleep(seconds)


async def until(when: Callable[[Callable[[], None]], Any]) -> None:
    """Wait until the callback passed to `when(callback)` is called, which happens once and from any thread."""
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
