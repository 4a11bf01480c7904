"""Clients that are slow, silent or hostile: each ends its own connection, and nobody else's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from kcachefs.live.web import http
from kcachefs.live.web.access import Access
from kcachefs.live.web.answers import Answers
from kcachefs.live.web.http import Connections, Request, Response
from kcachefs.live.web.listening import Place, listening
from tests.cli.scene import scene
from tests.waiting import until_async

REQUEST = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def echo(request: Request) -> Response:
    return Response(200, request.path.encode())


def run(main: Callable[[Connections, trio.Nursery], Awaitable[None]]) -> None:
    """With a clock that jumps to the next deadline when everybody waits."""

    async def whole() -> None:
        async with trio.open_nursery() as nursery:
            await main(Connections(echo), nursery)
            nursery.cancel_scope.cancel()

    trio.run(whole, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("target", "path"),
    [(b"//[", b"//["), (b"//[x]/?a=[", b"//[x]/"), (b"http://localhost/a%5b?b", b"/a["), (b"*", b"*"), (b"/?#]", b"/")],
)
def test_whatever_is_asked_for_has_an_answer(target: bytes, path: bytes) -> None:
    async def main(connections: Connections, nursery: trio.Nursery) -> None:
        client, server = trio.testing.memory_stream_pair()
        nursery.start_soon(connections.serve, server)
        await client.send_all(REQUEST % target)
        assert (await client.receive_some()).endswith(b"\r\n\r\n" + path)

    run(main)


def test_an_error_of_ours_ends_one_connection(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Request:
        raise ZeroDivisionError

    monkeypatch.setattr(http, "_request", fail)

    async def main(connections: Connections, nursery: trio.Nursery) -> None:
        for _ in range(2):
            client, server = trio.testing.memory_stream_pair()
            nursery.start_soon(connections.serve, server)
            await client.send_all(REQUEST % b"/")
            assert await client.receive_some() == b""

    run(main)
    assert "ZeroDivisionError" in caplog.text


def test_a_client_that_takes_no_reply_is_let_go() -> None:
    async def main(connections: Connections, nursery: trio.Nursery) -> None:
        client, server = trio.testing.lockstep_stream_pair()
        nursery.start_soon(client.send_all, REQUEST % b"/")
        await connections.serve(server)  # returns although nobody reads
        assert trio.current_time() > 0

    run(main)


def test_one_more_takes_the_place_of_the_one_that_has_been_silent_longest() -> None:
    async def main(connections: Connections, nursery: trio.Nursery) -> None:
        clients = []
        for _ in range(http.CONNECTIONS_MAX + 2):
            client, server = trio.testing.memory_stream_pair()
            nursery.start_soon(connections.serve, server)
            await trio.testing.wait_all_tasks_blocked()
            clients.append(client)
        before = trio.current_time()
        assert [await one.receive_some() for one in clients[:2]] == [b"", b""]
        await clients[2].send_all(REQUEST % b"/still-here")
        assert (await clients[2].receive_some()).endswith(b"/still-here")
        assert trio.current_time() == before

    run(main)


def test_a_body_of_two_lengths_is_refused_before_a_proxy_can_mistake_it() -> None:
    async def main(connections: Connections, nursery: trio.Nursery) -> None:
        client, server = trio.testing.memory_stream_pair()
        nursery.start_soon(connections.serve, server)
        lengths = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        await client.send_all(b"POST / HTTP/1.1\r\nHost: localhost\r\n" + lengths + REQUEST % b"/smuggled")
        assert (await client.receive_some()).startswith(b"HTTP/1.1 400")
        assert await client.receive_some() == b""

    run(main)


def test_the_work_that_a_cookie_makes_does_not_grow_with_the_square_of_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("http.cookies undoes quotes in quadratic time")

    monkeypatch.setattr("http.cookies._unquote", fail)
    allowed = Access("a-token-of-some-length")
    name, _, token = allowed.cookie().partition(";")[0].partition("=")
    hostile = 'a="' + "\\" * 15_000 + '"'
    assert not allowed.is_token_right({b"cookie": hostile.encode()}, {})
    assert allowed.is_token_right({b"cookie": f"{hostile}; {name}={token}".encode()}, {})


@pytest.mark.mount
def test_nothing_is_looked_up_for_those_who_left_while_they_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asking(path: Path, search: str) -> trio.SocketStream:
        stream = await trio.open_unix_socket(path)
        head = f"GET /api/kernels?search={search}&token=right HTTP/1.1\r\nHost: localhost\r\n\r\n"
        await stream.send_all(head.encode())
        return stream

    async def main(answers: Answers, path: Path) -> None:
        [mounted] = answers._mounts.values()
        with listening(Place(path=path)) as made:
            made.setblocking(False)
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(made))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.serve_listeners, Connections(answers.answer).serve, [listener])
                async with mounted.expensive_turn:
                    clients = [await asking(path, name) for name in ("a", "b", "c", "stays")]
                    await until_async(lambda: mounted.expensive_turn.statistics().tasks_waiting >= len(clients))
                    for client in clients[:-1]:
                        await client.aclose()
                async with clients[-1] as one:
                    assert (await one.receive_some()).startswith(b"HTTP/1.1 200 ")
                nursery.cancel_scope.cancel()
        assert [word for key in mounted.kept for word in key if word not in ("", "kernels")] == ["stays"]

    with scene() as place:
        place.mount()
        for name in ("KCACHEFS_RUNTIME_DIR", "XDG_CACHE_HOME"):
            monkeypatch.setenv(name, place.environment[name])
        trio.run(main, Answers(Access("right"), [place.mountpoint]), place.folder / "page")
