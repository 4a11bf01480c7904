"""`kcachefs fleet`: from nothing to a warm second node by hand, and what each command says and refuses."""

from __future__ import annotations

import functools
import http.server
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kcachefs.fleet import collecting
from kcachefs.fleet.bucket_layout import Layout
from kcachefs.fleet.object_storage import Stored
from tests.engines.mounting import Mount
from tests.fleet.caches import ENTRIES, fill, key, packed, shown
from tests.fleet.nodes import SCOPE, Node, bucket_folder
from tests.fleet.servers import Server
from tests.frameworks.commands import kcachefs

LAYOUT = Layout(SCOPE)


def told(*arguments: str | Path, **options: Any) -> Any:
    return json.loads(kcachefs("fleet", *arguments, "--json", **options).stdout)


def refused(*arguments: str | Path, **options: Any) -> tuple[int, str]:
    """The exit code and the one line of a command that fails."""
    done = kcachefs(*arguments, check=False, **options)
    assert done.stderr.count("\n") == 1, done.stderr
    return done.returncode, done.stderr


@pytest.mark.mount
def test_what_is_pushed_from_one_mount_is_pulled_into_another(mount: Mount, base: Path, server: Server) -> None:
    secret, public = key(base)
    url, writer, reader = server.fresh(), server.writer, server.reader
    fill(mount.mountpoint)
    kcachefs("fleet", "init", url, env=writer)
    options = ("--key", secret, "--scope", SCOPE, "--level", "3", "--mount", mount.mountpoint)
    pushed = told("push", url, *options, env=writer)
    assert (len(pushed["packs"]), pushed["present"], pushed["waiting"], pushed["scope"]) == (1, 0, [], SCOPE)
    again = kcachefs("fleet", "push", url, *options, env=writer).stdout
    assert again == f"0 entries published (0 B), {ENTRIES} were there already\n"
    with Mount(base / "two", base / "store two", "direct") as two:
        trusting = ("--trust", public, "--scope", SCOPE)
        done = kcachefs("fleet", "pull", url, *trusting, "--mount", two.mountpoint, env=reader).stdout
        assert f"{ENTRIES} entries fetched" in done
        assert shown(two.mountpoint) == shown(mount.mountpoint)
        assert told("pull", url, *trusting, "--mount", two.mountpoint, env=reader)["present"] == ENTRIES
    (row,) = told("ls", url, *trusting, env=reader)
    assert (row["pack"], row["entries"], row["key"]) == (pushed["packs"][0], ENTRIES, public)
    listed = kcachefs("fleet", "ls", url, row["pack"][:6], *trusting, env=reader).stdout
    assert "triton/KEY0" in listed
    (scope,) = told("status", url, "--trust", public, env=reader)["scopes"]
    assert (scope["scope"], scope["packs"], scope["trusted_packs"], scope["entries"]) == (SCOPE, 1, 1, ENTRIES)
    assert SCOPE in kcachefs("fleet", "status", url, env=reader).stdout
    (mount.mountpoint / "triton" / "MORE").mkdir()
    (mount.mountpoint / "triton" / "MORE" / "more.cubin").write_bytes(b"cubin")
    assert refused("fleet", "push", url, *options, env=reader)[0] == 6


@pytest.mark.mount
def test_a_store_at_rest_is_pulled_into_for_the_place_that_is_named(base: Path) -> None:
    fill(base / "caches")
    secret, public = key(base)
    Node(base / "node", bucket_folder(base), secret).publish(base / "caches")
    options = ("--trust", public, "--scope", SCOPE, "--store", base / "store", "--mount", base / "place")
    said = kcachefs("fleet", "pull", f"file://{base}/bucket", *options).stdout
    assert said.splitlines()[1] == f"these entries refer to files below {base}/place: mount the store there"
    assert told("pull", f"file://{base}/bucket", *options)["mount"] == str(base / "place")
    with Mount(base / "place", base / "store", "direct") as mount:
        assert shown(mount.mountpoint) == shown(base / "caches")


def test_a_pack_is_unpacked_from_a_bucket_by_its_url(base: Path) -> None:
    fill(base / "caches")
    secret, public = key(base)
    url = bucket_folder(base)
    packed(base / "caches", base / "bucket" / "warm.kcp", secret)
    assert "which is trusted" in kcachefs("pack", "verify", f"{url}/warm.kcp", "--trust", public).stdout
    (base / "bucket" / "warm.kcp").rename(base / "bucket" / "a b#1.kcp")
    assert "which is trusted" in kcachefs("pack", "verify", f"{url}/a%20b%231.kcp", "--trust", public).stdout
    (base / "bucket" / "a b#1.kcp").rename(base / "bucket" / "warm.kcp")
    for more in ("#1", "?", "?2"):
        assert refused("pack", "verify", f"{url}/warm.kcp{more}", "--trust", public)[0] == 2
    assert refused("pack", "verify", f"{url}/warm.kcp")[0] == 6
    code, line = refused("pack", "verify", f"{url}/none.kcp", "--trust", public)
    assert (code, "is not there" in line) == (3, True)
    code, line = refused("pack", "ls", f"{url}/", "--json")
    assert (code, "names a folder" in line) == (2, True)


def test_a_url_of_an_unknown_scheme_is_named_as_it_was_given() -> None:
    for verb in (("unpack",), ("pack", "ls"), ("pack", "verify")):
        for url in ("s4://bucket/warm.kcp", "S3://bucket/warm.kcp"):
            code, line = refused(*verb, url)
            assert (code, f"{url}: {url[:5]} is not known; use one of s3://" in line) == (2, True), line


def test_a_pack_is_fetched_from_a_web_server(base: Path) -> None:
    fill(base / "caches", size=100)
    secret, public = key(base)
    packed(base / "caches", base / "warm.kcp", secret)
    handler = functools.partial(QuietHandler, directory=str(base))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{web.server_port}"
        assert "which is trusted" in kcachefs("pack", "verify", f"{url}/warm.kcp", "--trust", public).stdout
        code, line = refused("pack", "verify", f"{url}/none.kcp", "--trust", public)
        assert (code, "404" in line) == (3, True)
        web.shutdown()
    code, line = refused("pack", "verify", f"{url}/warm.kcp", "--trust", public)
    assert (code, "refused" in line) == (3, True)


class Answering:
    """A TCP server that gives every request one answer, and hangs up."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/warm.kcp"
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(self._answer)

    def __enter__(self) -> Answering:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (OK + b"Content-Length: 1000\r\n\r\nshort", 3, "sent 5 of 1,000 bytes"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n100\r\nshort", 3, "is not HTTP"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", 3, "is not HTTP"),
        (b"SSH-2.0-OpenSSH\r\n", 3, "is not HTTP"),
        (b"", 3, "closed connection"),
        (OK + b"A: " + b"x" * 100_000 + b"\r\n\r\n", 3, "is not HTTP"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://a..b/\r\n\r\n", 3, "warm.kcp"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://[::1/x\r\n\r\n", 3, "warm.kcp"),
        (b"HTTP/1.1 500 red \x1b[31m\r\nContent-Length: 0\r\n\r\n", 3, "500"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", 6, "403"),
        (OK + b"Content-Length: 5\r\n\r\nshort", 1, "warm.kcp"),
    ],
    ids=[
        "short body",
        "short chunk",
        "bad chunk",
        "another protocol",
        "nothing",
        "long header",
        "on to a bad name",
        "on to a bad URL",
        "odd words",
        "forbidden",
        "no pack",
    ],
)
def test_a_web_server_that_answers_nonsense_is_told_in_one_line(answer: bytes, code: int, words: str) -> None:
    with Answering(answer) as server:
        got, line = refused("pack", "ls", server.url)
        assert (got, words in line, server.url in line) == (code, True, True), line
        assert "fetched.kcp" not in line


def test_what_is_no_url_of_a_web_server_is_wrong_usage() -> None:
    urls = ("http://[::1/x", "http://h:port/x", "http://h:99999/x", "http:///x", "http://a..b/x", "http://a b/x")
    for url in (*urls, "http://user:secret@h/x"):
        code, line = refused("pack", "ls", url)
        assert (code, "secret" in line) == (2, False), line


def test_a_name_on_a_web_server_is_quoted(base: Path) -> None:
    fill(base / "caches", size=100)
    packed(base / "caches", base / "ü 1.kcp", key(base)[0])
    handler = functools.partial(QuietHandler, directory=str(base))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        for name in ("ü 1.kcp", "%C3%BC%201.kcp"):
            assert "triton/KEY0" in kcachefs("pack", "ls", f"http://127.0.0.1:{web.server_port}/{name}").stdout
        web.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_what_nobody_trusted_signed_is_neither_listed_nor_pulled(base: Path) -> None:
    fill(base / "caches", size=100)
    (_, public), (other, _) = key(base), key(base, "other")
    node = Node(base / "node", bucket_folder(base), other)
    node.publish(base / "caches")
    fill(base / "more", kernels=4, size=100)
    node.publish(base / "more")
    trusting = ("--trust", public, "--scope", SCOPE)
    assert told("ls", node.storage.url, *trusting) == []
    _, line = refused("fleet", "ls", node.storage.url, *trusting)
    assert "ignored: is signed by " in line
    assert "; in all, 2 objects are ignored" in line
    (scope,) = told("status", node.storage.url, "--trust", public)["scopes"]
    assert (scope["packs"], scope["trusted_packs"]) == (2, 0)
    code, line = refused("fleet", "ls", node.storage.url, "--scope", SCOPE)
    assert (code, "needs a key that is trusted" in line) == (2, True)


def test_the_bucket_of_the_configuration_is_the_one_that_is_meant(base: Path) -> None:
    fill(base / "caches", size=100)
    secret, public = key(base)
    node = Node(base / "node", bucket_folder(base), secret)
    node.publish(base / "caches")
    trusting, places = ("--trust", public, "--scope", SCOPE), {"XDG_CONFIG_HOME": str(base / "config")}
    code, line = refused("fleet", "ls", *trusting, env=places)
    assert (code, "no bucket given" in line) == (2, True)
    (base / "config" / "kcachefs").mkdir(parents=True)
    (base / "config" / "kcachefs" / "config.toml").write_text(f'fleet = "{node.storage.url}"\n')
    (row,) = told("ls", *trusting, env=places)
    assert "triton/KEY0" in kcachefs("fleet", "ls", row["pack"][:6], *trusting, env=places).stdout
    assert told("status", "--trust", public, env=places)["url"] == node.storage.url


@pytest.mark.parametrize(
    "url", ["s3://bucket/some/prefix", "gs://bucket", "az://container/prefix", "file:///srv/fleet"]
)
def test_init_tells_the_rule_and_the_least_rights(base: Path, url: str) -> None:
    environment = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S", "AZURE_STORAGE_ACCOUNT_NAME": "account"}
    if url.startswith("file:"):
        url = bucket_folder(base)
    rules = told("init", url, "--days", "20", "--print-only", env=environment)["rules"]
    assert [any(word in one["title"] for word in ("rule", "readers", "publishers")) for one in rules] == [True] * 3
    assert "20" in rules[0]["content"]
    assert "v1/" in rules[0]["content"]
    for one in rules:
        if one["content"].startswith("{"):
            json.loads(one["content"])
    assert not any("delete" in one["content"].lower() for one in rules[1:]), "nobody needs to delete"


def test_init_writes_settings_that_others_read(base: Path) -> None:
    url = bucket_folder(base)
    said = kcachefs("fleet", "init", url, "--days", "7").stdout
    assert f"next: kcachefs fleet check {url}" in said
    assert json.loads((base / "bucket" / "settings.json").read_text()) == {"days": 7}
    assert told("status", url)["days"] == 7
    assert refused("fleet", "init", url, "--days", "1")[0] == 2


def test_init_makes_no_folder_and_says_how_to(base: Path) -> None:
    code, line = refused("fleet", "init", f"file://{base}/no%20disk/fleet")
    assert (code, f"make it with: mkdir -p '{base}/no disk/fleet'" in line) == (3, True), line
    assert not (base / "no disk").exists()


def test_check_tells_what_credentials_are_enough_for(server: Server) -> None:
    url = server.fresh()
    enough = told("check", url, "--for", "gc", env=server.writer)
    assert enough["missing"] == []
    assert all(one["works"] for one in enough["operations"])
    assert "enough to read" in kcachefs("fleet", "check", url, "--for", "read", env=server.reader).stdout
    lacking = kcachefs("fleet", "check", url, env=server.reader, check=False)
    assert (lacking.returncode, lacking.stderr) == (1, "")
    assert "FAILS  write: " in lacking.stdout
    assert "not enough to publish: missing write" in lacking.stdout
    wrong = kcachefs("fleet", "check", url, env={**server.reader, "AWS_SECRET_ACCESS_KEY": "x"}, check=False)
    assert (wrong.returncode, "refuses these credentials" in wrong.stdout) == (1, True)
    nowhere = kcachefs("fleet", "check", f"s3://nobody-made-this{server.options}", env=server.reader, check=False)
    assert (nowhere.returncode, "is the bucket's name right" in nowhere.stdout) == (1, True)


def test_gc_deletes_what_is_old_or_of_no_use_and_nothing_else(base: Path) -> None:
    fill(base / "caches", size=100)
    secret, _ = key(base)
    node = Node(base / "node", bucket_folder(base), secret)
    node.publish(base / "caches")
    root = base / "bucket" / LAYOUT.root

    def aged(name: str, days: float) -> Path:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (time.time() - days * 86400,) * 2)
        return path

    useful = [path for path in root.rglob("*") if path.is_file()]
    young = aged(f"packs/2026-01-01/{'1' * 32}.kcp", 0.5)
    best = aged("snapshots/day/2026-01-01/00000016-0123456789abcdef", 2)
    gone = [
        aged(f"packs/2026-01-01/{'2' * 32}.kcp", 2),
        aged(f"records/2026-01-01/{'3' * 32}", 31),
        aged(f"records/2026-01-01/{'4' * 32}", 0),
        aged("claims/0123.0", 2),
        aged("snapshots/day/2026-01-01/00000008-0123456789abcdef", 2),
    ]
    said = kcachefs("fleet", "gc", node.storage.url, "--dry-run").stdout
    assert "5 objects would be deleted" in said
    assert all(path.exists() for path in (*gone, *useful))
    assert {one["why"] for one in told("gc", node.storage.url)["objects"]} == {
        "no record names it",
        "its pack is gone",
        "older than 30 days",
        "a claim that is over",
        "replaced by a newer snapshot",
    }
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in (*useful, young, best))


def test_gc_leaves_a_record_alone_whose_pack_was_written_after_the_listing_came_there() -> None:
    at = ("2026-01-01", "1" * 32)
    record = Stored(LAYOUT.record(*at), 100, 1000.0)
    assert collecting.garbage(LAYOUT, [record], 1001.0, 30, {LAYOUT.pack(*at)}.__contains__) == []
    assert [one.stored for one in collecting.garbage(LAYOUT, [record], 1001.0, 30, lambda key: False)] == [record]


def test_the_commands_refuse_in_one_line(base: Path) -> None:
    trusting = ("--trust", key(base)[1])
    cases: list[tuple[tuple[str | Path, ...], int, str]] = [
        (("fleet", "status", "nonsense"), 2, "is not a bucket"),
        (("fleet", "status", f"file://{base}/none"), 3, "no such folder"),
        (("fleet", "status", "s3://bucket?endpoint=http://127.0.0.1:1"), 3, "connection refused"),
        (("fleet", "ls", f"file://{base}", *trusting, "--scope", "a/b"), 2, "is not a scope"),
        (("fleet", "ls", f"file://{base}", "abcdef", *trusting), 2, "has no such pack"),
        (("fleet", "check", f"file://{base}", "--for", "nothing"), 2, "choose one of"),
        (("fleet", "push", f"file://{base}", "--key", base / "none"), 2, "holds no secret key"),
    ]
    environment = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"}
    for arguments, code, words in cases:
        got, line = refused(*arguments, env=environment)
        assert (got, words in line) == (code, True), line
