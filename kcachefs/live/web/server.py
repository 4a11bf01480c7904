"""Serves the page until it is told to stop. Requests are answered on trio; calls that may wait run in a thread."""

from __future__ import annotations

import functools
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import trio

from kcachefs.live.web.access import Access
from kcachefs.live.web.answers import Answers
from kcachefs.live.web.http import Connections
from kcachefs.live.web.listening import Place, listening


def serve(
    place: Place,
    access: Access,
    mounts: list[Path],
    *,
    allow_changes: bool = False,
    started: Callable[[str], None] = lambda link: None,
) -> None:
    """Serve until SIGINT or SIGTERM; `started` gets the link once it can be followed."""
    with listening(place) as made:
        answers = Answers(access, mounts, allow_changes=allow_changes)
        trio.run(_serve, made, answers, functools.partial(started, link_to(made, access)))


def link_to(made: socket.socket, access: Access) -> str:
    """The link to the page, with the token in it."""
    if made.family == socket.AF_UNIX:
        host = "localhost"
    else:
        name, port = made.getsockname()[:2]
        name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(name, name)
        host = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    return f"http://{host}{access.prefix}/?token={access.token}"


async def _serve(made: socket.socket, answers: Answers, started: Callable[[], None]) -> None:
    made.setblocking(False)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(made))
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_listen, listener, answers)
            started()
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()


async def _listen(listener: trio.SocketListener, answers: Answers) -> None:
    await trio.serve_listeners(Connections(answers.answer).serve, [listener])
