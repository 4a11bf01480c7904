"""A real `kcachefs web` and plain HTTP to it, without a browser's own mind."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from tests.cli.scene import KCACHEFS, Scene
from tests.waiting import PATIENCE


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Server:
    """A server that runs, and its link."""

    link: str
    process: subprocess.Popen[str]
    socket: str = ""

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.link).query)["token"][0]

    @property
    def origin(self) -> str:
        return f"http://{urlsplit(self.link).netloc}"

    def get(self, path: str, *, token: bool = True, method: str = "GET", **headers: str) -> Reply:
        """A request; headers are named with underscores."""
        return self._sent(method, path, b"", headers, token)

    def post(self, path: str, body: bytes, **headers: str) -> Reply:
        return self._sent("POST", path, body, headers, True)

    def _sent(self, method: str, path: str, body: bytes, headers: dict[str, str], token: bool) -> Reply:
        connection = self._connection()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, body or None, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, found, answer.read())
        finally:
            connection.close()

    def api(self, name: str, **query: str) -> Any:
        words = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items())
        found = self.get(f"/api/{name}?{words}")
        assert found.status == 200, found
        return found.json

    def _connection(self) -> http.client.HTTPConnection:
        if self.socket:
            connection = http.client.HTTPConnection("localhost", timeout=PATIENCE)
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.connect(self.socket)
            return connection
        place = urlsplit(self.link)
        return http.client.HTTPConnection(str(place.hostname), place.port, timeout=PATIENCE)


@contextmanager
def serving(scene: Scene, *options: str | Path, user: int | None = None, **environment: str) -> Iterator[Server]:
    """`kcachefs web` during the scope; it has to end in good order, and also ends when the tests are killed."""
    command = ["setpriv", "--pdeathsig", "TERM", *KCACHEFS, "web", "--json", *map(str, options)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**scene.environment, **environment},
        cwd=scene.folder,
        user=user,
        group=user,
        extra_groups=[] if user is not None else None,
    )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            told = json.loads(line)
            yield Server(told["link"], process, told["socket"] or "")
        finally:
            process.terminate()
            code = process.wait(PATIENCE)
    assert code in (0, -15) or os.environ.get("PYTEST_CURRENT_TEST") is None, code
