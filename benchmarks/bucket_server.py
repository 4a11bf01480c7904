"""A folder served as a bucket that can only be read, by a server that is as slow, silent or unwilling as it is told.

It speaks as much of S3 as a fleet's readers need. Publish into the folder with a `file://` URL first.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_DATE = "%a, %d %b %Y %H:%M:%S GMT"


class BucketServer:
    """One served folder. What it does with the next request can be changed at any time."""

    def __init__(self, folder: Path, seconds: float = 0.0) -> None:
        self.folder = folder
        self.seconds = seconds
        """How long every request, and every new connection, takes before anything happens."""
        self.behaviour = ""
        """Of packs only: `hang` sends nothing, `trickle` one byte after another, `slow` some 600 kB/s, `refuse` an
        error. Of everything: `portal` sends a web page."""
        self.well_behaved: set[str] = set()
        """The names of packs that it serves all the same."""
        self.asked: list[str] = []
        """The paths of all requests so far."""
        self.released = threading.Event()
        """Ends what hangs or trickles."""
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.bucket = self

    @property
    def url(self) -> str:
        return f"s3://bucket?endpoint=http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def packs_asked(self) -> list[str]:
        return [path for path in self.asked if path.endswith(".kcp")]

    @contextmanager
    def running(self) -> Iterator[BucketServer]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    bucket: BucketServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        time.sleep(self.server.bucket.seconds)
        super().setup()

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        bucket, parts = self.server.bucket, urlsplit(self.path)
        key = unquote(parts.path).removeprefix("/bucket").strip("/")
        bucket.asked.append(self.path)
        time.sleep(bucket.seconds)
        if bucket.behaviour == "portal":
            self._send(b"<!doctype html><title>Log in to this network</title>")
            return
        if not key:
            self._send(_listing(bucket.folder, {name: one[-1] for name, one in parse_qs(parts.query).items()}))
            return
        path = bucket.folder / key
        behaviour = bucket.behaviour if path.suffix == ".kcp" and path.name not in bucket.well_behaved else ""
        if behaviour == "refuse":
            self.send_error(503)
        elif behaviour == "hang":
            bucket.released.wait()
            self.close_connection = True
        elif not path.is_file():
            self.send_error(404)
        else:
            self._send(path.read_bytes(), path.stat().st_mtime, behaviour=behaviour)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(507)

    def _send(self, body: bytes, modified: float = 0.0, *, behaviour: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", time.strftime(_DATE, time.gmtime(modified)))
        self.send_header("ETag", '"etag"')
        self.end_headers()
        piece, pause = {"trickle": (1, 0.05), "slow": (1 << 16, 0.1)}.get(behaviour, (0, 0.0))
        if piece:
            for at in range(0, len(body), piece):
                self.wfile.write(body[at : at + piece])
                self.wfile.flush()
                if self.server.bucket.released.wait(pause):
                    break
            self.close_connection = True
        else:
            self.wfile.write(body)


def _listing(folder: Path, asked: dict[str, str]) -> bytes:
    prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
    keys = sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")
    )
    keys = [key for key in keys if key.startswith(prefix)]
    folders: set[str] = set()
    if delimiter:
        folders = {prefix + key[len(prefix) :].split("/")[0] + "/" for key in keys if "/" in key[len(prefix) :]}
        keys = [key for key in keys if "/" not in key[len(prefix) :]]
    rows = "".join(_row(folder, key) for key in keys)
    rows += "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders))
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>bucket</Name>'
        f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(keys)}</KeyCount><MaxKeys>1000</MaxKeys>"
        f"<IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
    ).encode()


def _row(folder: Path, key: str) -> str:
    found = os.stat(folder / key)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.st_mtime))
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{moment}</LastModified>"
        f"<ETag>&quot;etag&quot;</ETag><Size>{found.st_size}</Size></Contents>"
    )
