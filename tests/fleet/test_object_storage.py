"""The protocol layer against real servers: what the fleet needs of a store, each of them does or refuses clearly."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from kcachefs.errors import (
    FleetError,
    FleetMissing,
    FleetRefused,
    FleetTooSlow,
    FleetUnreachable,
    PackError,
    UsageError,
)
from kcachefs.fleet import bucket_urls
from kcachefs.fleet.object_storage import PAGE, Patience, Storage, open_storage
from tests.engines.mounting import temporary_folder
from tests.fleet import servers
from tests.fleet.servers import Rclone, Server, azurite, environment, storage
from tests.waiting import PATIENCE, ending_soon

KINDS = ("file", "SeaweedFS", "rclone", "Azurite")


@pytest.fixture(scope="module")
def folder(surroundings: Path) -> Iterator[Path]:
    with temporary_folder() as folder:
        yield folder


@pytest.fixture(scope="module", params=KINDS)
def any_server(request: pytest.FixtureRequest, folder: Path) -> Iterator[Server]:
    kind = request.param
    if kind == "file":
        (folder / "bucket").mkdir()
        yield Server("file", f"file://{folder}/bucket", "", {}, {})
    elif kind == "SeaweedFS":
        yield request.getfixturevalue("server")
    elif kind == "rclone":
        with Rclone(folder / "rclone") as rclone:
            yield rclone.server
    else:
        with azurite(folder / "azurite") as running:
            yield running


@pytest.fixture
def store(any_server: Server) -> Storage:
    url = any_server.fresh()
    if any_server.kind == "file":
        Path(url.removeprefix("file://")).mkdir()
    return storage(any_server, url)


def test_objects_are_written_read_listed_copied_and_deleted(store: Storage, tmp_path: Path) -> None:
    assert (list(store.objects("a/")), store.folders("a/")) == ([], [])
    before = time.time()
    store.put("a/2026-01-01/one", b"1" * 100_000)
    (tmp_path / "file").write_bytes(b"2" * 7)
    store.put("a/2026-01-02/two", tmp_path / "file")
    assert {(one.key, one.size) for one in store.objects("a/")} == {
        ("a/2026-01-01/one", 100_000),
        ("a/2026-01-02/two", 7),
    }
    assert [one.key for one in store.objects("a/2026-01-02/")] == ["a/2026-01-02/two"]
    assert store.folders("a/") == ["2026-01-01", "2026-01-02"]
    got = store.get("a/2026-01-01/one", limit=100_000)
    assert got.content == b"1" * 100_000
    assert abs(got.modified - before) < 3600
    assert store.head("a/2026-01-02/two").size == 7
    store.copy("a/2026-01-01/one", "b/copy")
    assert b"".join(store.stream("b/copy", limit=1 << 20)) == got.content
    store.delete(["a/2026-01-01/one", "a/never"])
    assert {one.key for one in store.objects("")} == {"a/2026-01-02/two", "b/copy"}


def test_what_is_missing_or_too_large_is_an_error_of_its_own(store: Storage) -> None:
    for ask in (lambda: store.get("none", limit=10), lambda: store.head("none"), lambda: store.copy("none", "other")):
        with pytest.raises(FleetMissing):
            ask()
    store.put("large", b"x" * 1001)
    with pytest.raises(PackError, match="1,001 bytes; at most 1,000"):
        store.get("large", limit=1000)


def test_a_conditional_write_has_one_winner_where_the_store_knows_conditions(
    store: Storage, any_server: Server
) -> None:
    # rclone's server fails some of those who write the same object at the same moment.
    with ThreadPoolExecutor(1 if any_server.kind == "rclone" else 16) as pool:
        won = list(pool.map(lambda number: store.put("claim", b"%d" % number, if_absent=True), range(16)))
    standing = int(store.get("claim", limit=10).content)
    assert won[standing]
    assert any_server.kind == "rclone" or won.count(True) == 1
    assert store.put("claim", b"other", if_absent=True) is (any_server.kind == "rclone")


def test_wrong_credentials_are_refused_in_one_line(any_server: Server) -> None:
    if any_server.kind == "file":
        pytest.skip("a folder knows no credentials")
    wrong = {"AWS_SECRET_ACCESS_KEY": "wrong", "AZURE_STORAGE_ACCOUNT_KEY": "d3Jvbmc="}
    with environment({**any_server.writer, **wrong}):
        stranger = open_storage(any_server.fresh())
    for ask in (
        lambda: stranger.get("a", limit=1),
        lambda: stranger.put("a", b""),
        lambda: list(stranger.objects("a/")),
    ):
        with pytest.raises(FleetRefused, match=r"^[^\n]*refuses these credentials: [^\n]+$"):
            ask()


def test_a_reader_reads_and_cannot_write(server: Server) -> None:
    url = server.fresh()
    storage(server, url).put("a/b", b"1")
    reader = storage(server, url, reader=True)
    assert reader.get("a/b", limit=1).content == b"1"
    assert [one.key for one in reader.objects("a/")] == ["a/b"]
    for ask in (lambda: reader.put("a/c", b""), lambda: reader.copy("a/b", "a/c"), lambda: reader.delete(["a/b"])):
        with pytest.raises(FleetRefused):
            ask()
    with pytest.raises(FleetMissing), environment(server.writer):
        list(open_storage(f"s3://nobody-made-this{server.options}").objects("a/"))


# --- networks that fail -----------------------------------------------------------------------------------------------


class Odd:
    """A TCP server that waits for a request, says what it is told to, and then no more."""

    def __init__(self, *parts: tuple[float, bytes]) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"s3://fleet?endpoint=http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._parts = parts
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        open_connections = []
        while not self._ended.is_set():
            try:
                connection, _ = self._socket.accept()
                connection.settimeout(5)
            except OSError:
                break
            open_connections.append(connection)
            try:
                connection.recv(65536)
                for pause, part in self._parts:
                    self._ended.wait(pause)
                    connection.sendall(part)
            except OSError:
                continue
        for connection in open_connections:
            connection.close()

    def __enter__(self) -> Odd:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


HEADERS = (
    b'HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nLast-Modified: Mon, 16 Nov 2026 06:00:00 GMT\r\nETag: "1"\r\n\r\n'
)


@pytest.fixture
def credentials() -> Iterator[None]:
    with environment({"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S"}):
        yield


def test_a_server_that_refuses_connections_is_unreachable(credentials: None) -> None:
    (port,) = servers.free_ports(1)
    with pytest.raises(FleetUnreachable, match="connection refused"):
        open_storage(f"s3://fleet?endpoint=http://127.0.0.1:{port}").get("a", limit=1)


class Repeating(BaseHTTPRequestHandler):
    """A store that sends the first page of a listing whatever it is asked, and says that there are more."""

    page = 0

    def do_GET(self) -> None:
        moment = "<LastModified>2026-11-16T06:00:00.000Z</LastModified><ETag>1</ETag><Size>1</Size>"
        rows = "".join(f"<Contents><Key>a/{number:04}</Key>{moment}</Contents>" for number in range(self.page))
        more = "<IsTruncated>true</IsTruncated><NextContinuationToken>more</NextContinuationToken>"
        body = f"<ListBucketResult><Name>fleet</Name>{more}{rows}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.parametrize("page", [7, 700, PAGE, 1300])
def test_a_store_that_lists_the_same_page_over_and_over_is_told(
    credentials: None, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(Repeating, "page", page)
    with HTTPServer(("127.0.0.1", 0), Repeating) as repeating, ending_soon():
        thread = threading.Thread(target=repeating.serve_forever, args=(0.05,))
        thread.start()
        try:
            store = open_storage(f"s3://fleet?endpoint=http://127.0.0.1:{repeating.server_address[1]}")
            with pytest.raises(FleetUnreachable, match="lists the same objects again and again"):
                deque(store.objects("a/"), maxlen=0)
        finally:
            repeating.shutdown()
            thread.join()


def test_a_server_that_hangs_costs_one_deadline(credentials: None) -> None:
    with Odd() as odd:
        hanging = open_storage(odd.url, timeout=0.3)
        began = time.monotonic()
        with pytest.raises(FleetUnreachable, match=r"no answer within 0.2 s"):
            hanging.get("a", limit=1, patience=Patience(first_byte=0.2))
        with pytest.raises(FleetUnreachable, match=r"no answer within 0.3 s"):
            hanging.head("a")
        assert time.monotonic() - began < PATIENCE, "neither waits for the network's own timeouts"


def test_a_transfer_that_would_take_too_long_is_given_up(credentials: None) -> None:
    trickle = [(0.05, b"x" * 100)] * 200
    with Odd((0.0, HEADERS), *trickle) as odd:
        with pytest.raises(FleetTooSlow, match=r"would take longer than 2\.0 s"):
            open_storage(odd.url).get("a", limit=1_000_000, patience=Patience(first_byte=5.0, budget=2.0))
    with Odd((0.0, HEADERS)) as odd:
        with pytest.raises(FleetTooSlow, match="had not arrived after"):
            open_storage(odd.url).get("a", limit=1_000_000, patience=Patience(first_byte=5.0, overall=0.3))


@pytest.mark.parametrize("announced", [0, 1 << 16, 1 << 17])
def test_an_answer_that_never_ends_is_given_up(credentials: None, announced: int) -> None:
    """With a length and yet in chunks: as many bytes as are handed on at a time, and no end."""
    head = HEADERS.replace(b"1000000", b"%d\r\nTransfer-Encoding: chunked" % announced)
    with Odd((0.0, head + b"10000\r\n" + bytes(1 << 16) + b"\r\n")) as odd, ending_soon():
        endless = open_storage(odd.url)
        for patience in (Patience(first_byte=5.0, overall=0.3), Patience(first_byte=5.0, budget=0.3)):
            with pytest.raises(FleetTooSlow, match=r"had not arrived after|would take longer"):
                endless.get("a", limit=1_000_000, patience=patience)


def test_a_stores_own_words_are_short_and_printable(credentials: None) -> None:
    words = b"<Error><Message>red \x1b[31m " + b"x" * 100_000 + b"</Message></Error>"
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(words)
    with Odd((0.0, head + words)) as odd:
        with pytest.raises(FleetError) as refused:
            open_storage(odd.url).get("a", limit=1, patience=Patience(first_byte=5.0))
    assert r"red \x1b[31m xxx" in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000


def test_a_panic_of_the_client_is_an_error_in_one_line(credentials: None) -> None:
    broken = open_storage("s3://a b?endpoint=http://127.0.0.1:1")
    for ask in (lambda: broken.head("a"), lambda: broken.get("a", limit=1), lambda: list(broken.objects("a/"))):
        with pytest.raises(FleetError, match=r"^[^\n]*a/?: obstore failed: [^\n]+$"):
            ask()


def self_signed(file: Path) -> Path:
    """A key and a certificate that nobody else signed."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, secret.public_key(), x509.random_serial_number())
    made = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1)).sign(secret, SHA256())
    plain = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(secret.private_bytes(*plain) + made.public_bytes(Encoding.PEM))
    return file


def test_what_is_wrong_with_an_encrypted_connection_is_told(credentials: None, tmp_path: Path) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(self_signed(tmp_path / "certificate"))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError), server.wrap_socket(connection, server_side=True):
                pass

        thread = threading.Thread(target=answer)
        thread.start()
        port = listening.getsockname()[1]
        with pytest.raises(FleetUnreachable, match=r"the certificate of the server is not accepted: \w+$"):
            open_storage(f"s3://fleet/{'long' * 50}?endpoint=https://127.0.0.1:{port}").head("a")
        thread.join()
    with Odd((0.0, b"HTTP/1.1 400 Bad Request\r\n\r\n")) as odd:
        with pytest.raises(FleetUnreachable, match="does not speak TLS there; is it http://"):
            open_storage(odd.url.replace("http://", "https://")).head("a")


def test_a_server_that_only_sends_us_on_is_told(credentials: None) -> None:
    with Odd((0.0, b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")) as odd:
        with pytest.raises(FleetUnreachable, match=r"a: HTTP error: error following redirect$"):
            open_storage(f"{odd.url.replace('fleet', 'fleet/' + 'long' * 50)}").head("a")


@pytest.mark.parametrize("code", [b"ExpiredToken", b"InvalidToken"])
def test_a_token_that_is_over_is_refused_credentials(credentials: None, code: bytes) -> None:
    words = b"<Error><Code>%s</Code><Message>The provided token has expired.</Message></Error>" % code
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(words)
    with Odd((0.0, head + words)) as odd:
        with pytest.raises(FleetRefused, match="refuses these credentials: The provided token has expired"):
            open_storage(odd.url).get("a", limit=1, patience=Patience(first_byte=5.0))


def test_a_body_that_ends_early_is_no_object(credentials: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"s3://fleet?endpoint=http://127.0.0.1:{listening.getsockname()[1]}"

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(HEADERS + b"x" * 1000)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(FleetUnreachable):
            open_storage(url).get("a", limit=1_000_000)
        thread.join()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://host/x", "is not a bucket"),
        ("bucket", "is not a bucket"),
        ("s3:///x", "names no bucket"),
        ("file://relative/x", "three slashes"),
        ("s3://bucket?endpont=x", "endpont: is not an option"),
        ("s3://bucket?endpoint=", "endpoint: needs one value"),
        ("s3://bucket?endpoint", "endpoint: needs one value"),
        ("s3://bucket?region=a&region=b", "region: needs one value"),
        ("gs://bucket?region=a", "region: is not an option of a bucket; gs:// has none"),
        ("s3://bucket/a?", "write %3F"),
        ("file:///tmp?", "write %3F"),
        ("file:///tmp?2", "2: is not an option"),
        ("file:///tmp#2", "write %23"),
        ("file:///tmp#", "write %23"),
        ("s3://bucket/a#b?region=c", "write %23"),
        ("file:///tmp/%ff", "not UTF-8"),
        ("file:///tmp/a%00b", "control character"),
        ("file:///tmp/a\nb", "control character"),
        ("s3://[bucket", "is not a bucket"),
        ("s3://bucket?endpoint=127.0.0.1:8333", "is not an endpoint; write http://"),
        ("s3://bucket?endpoint=http://", "is not an endpoint"),
        ("s3://bucket?endpoint=http://host:port", "is not an endpoint"),
        ("az://bucket?endpoint=http://a%20b", "is not an endpoint"),
        ("s3://KEY:SECRET@bucket/a", "has an @"),
        ("s3://bucket?endpoint=http://user:SECRET@host", "has an @"),
        ("s3://bucket?endpoint=user:SECRET%40host&nonsense=1", "has an @"),
        ("s3://bucket?endpoint=http://user:SEC/RET@host", "has an @"),
        ("s3://bucket?endpoint=http:/user:SECRET@host/a", "has an @"),
        ("s3://bucket?SECRET@host", "has an @"),
        ("http://user:SECRET@host", "has an @"),
    ],
)
def test_what_is_no_bucket_is_wrong_usage(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        open_storage(url)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("HTTPS://Host/a", "https://Host/a"),
        ("Http://host:1", "http://host:1"),
        ("https://x/%40tenant", "https://x/@tenant"),
    ],
)
def test_an_endpoint_is_any_address_of_a_server(given: str, meant: str) -> None:
    assert bucket_urls.endpoint(bucket_urls.parse(f"s3://bucket?endpoint={given}")) == meant
    open_storage(f"s3://bucket?endpoint={given}")


@pytest.mark.parametrize(("scheme", "name"), [("s3", "AWS_ENDPOINT_URL"), ("az", "AZURE_STORAGE_ENDPOINT")])
def test_an_endpoint_of_the_environment_is_looked_at_too(
    monkeypatch: pytest.MonkeyPatch, scheme: str, name: str
) -> None:
    monkeypatch.setenv(name, "127.0.0.1:8333")
    with pytest.raises(UsageError, match=f"^{name}=127.0.0.1:8333: is not an endpoint"):
        open_storage(f"{scheme}://bucket")
    monkeypatch.setenv(name, "http://user:SECRET@host")
    with pytest.raises(UsageError, match=f"^{name}: has an @"):
        open_storage(f"{scheme}://bucket")


def test_names_in_a_url_may_be_quoted(any_server: Server, tmp_path: Path) -> None:
    name = "a b#1?2%20ü"
    if any_server.kind == "file":
        (tmp_path / name).mkdir()
        any_server = any_server._replace(url=f"file://{tmp_path}")
    quoted = storage(any_server, any_server.at("a%20b%231%3F2%2520%C3%BC"))
    quoted.put("one", b"1")
    assert quoted.get("one", limit=1).content == b"1"
    assert [one.key for one in quoted.objects("")] == ["one"]
    above = storage(any_server, f"{any_server.url}{any_server.options}")
    assert above.get(f"{name}/one", limit=1).content == b"1"
    if any_server.kind == "file":
        assert (tmp_path / name / "one").read_bytes() == b"1"


def test_what_no_fleet_puts_into_a_folder_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "bucket" / "a" / "day").mkdir(parents=True)
    store = open_storage(f"file://{tmp_path}/bucket")
    store.put("a/day/one", b"1")
    (tmp_path / "bucket" / "a" / "line\nfeed").write_bytes(b"")
    (tmp_path / "bucket" / "a" / "folder\nfeed").mkdir()
    Path(os.fsdecode(bytes(tmp_path / "bucket" / "a") + b"/\xff")).write_bytes(b"")
    (tmp_path / "bucket" / "a" / "loop").symlink_to("loop")
    (tmp_path / "bucket" / "a" / "up").symlink_to("..")
    (tmp_path / "bucket" / "a" / "nowhere").symlink_to("none")
    (tmp_path / "bucket" / "a" / "elsewhere").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "two").write_bytes(b"22")
    assert {(one.key, one.size) for one in store.objects("a/")} == {("a/day/one", 1), ("a/elsewhere/two", 2)}
    assert store.folders("a/") == ["day", "elsewhere", "up"]
    assert [one.key for one in store.objects("a/day/")] == ["a/day/one"]


def test_a_folder_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FleetMissing, match="no such folder"):
        open_storage(f"file://{tmp_path}/none")
    assert os.listdir(tmp_path) == []


def test_azure_needs_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(UsageError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_storage("az://container")
