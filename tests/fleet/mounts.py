"""Nodes of a fleet for the tests: mounts with stores of their own over one bucket, which is a folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kcachefs.fleet import finding, signing
from kcachefs.fleet.bucket import Bucket
from kcachefs.fleet.claims import Claims
from kcachefs.fleet.object_storage import open_storage
from kcachefs.fleet.publishing import Publisher
from kcachefs.fleet.views import FolderView
from tests.engines.mounting import Mount
from tests.fleet.caches import key
from tests.forked_daemons import constants
from tests.waiting import until

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}
SCOPE = "tests"
HASTY = {
    "kcachefs.daemon.bucket_folder.LOOK_SECONDS": 0.1,
    "kcachefs.fleet.claims.SETTLE_SECONDS": 0.05,
    "kcachefs.fleet.client.HUNG_SECONDS": 0.5,
}
"""What daemons wait for is all in this process, or beside it."""


class Fleet:
    """A bucket and a key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = folder / "bucket"
        self.bucket.mkdir()
        self.secret, self.public = key(folder)

    @property
    def url(self) -> str:
        return f"file://{self.bucket}"

    @contextmanager
    def node(self, name: str, engine: str = "direct", *options: str, url: str = "") -> Iterator[Mount]:
        """A mounted node that takes from the fleet."""
        fleet = ("--fleet", url or self.url, "--trust", self.public, "--fleet-scope", SCOPE)
        mount = Mount(self.folder / name / "mount", self.folder / name / "store", engine, *fleet, *options)
        with ExitStack() as stack:
            with constants(HASTY):
                stack.enter_context(mount)
            yield mount

    @contextmanager
    def publisher(self, name: str, engine: str = "direct", *options: str) -> Iterator[Mount]:
        """A mounted node that publishes: what was written there is in the bucket once it is unmounted."""
        publishes = ("--fleet-mode", "publish", "--fleet-key", str(self.secret), *options)
        with self.node(name, engine, *publishes) as mount:
            wait_for_agent(mount)
            yield mount

    def push(self, folder: Path, *, run: str, compile_ms: int) -> str:
        """Publish a folder of namespaces as one pack; returns its name."""
        signer, view = signing.Signer(self.secret), FolderView(folder)
        bucket = Bucket(open_storage(self.url), SCOPE, {signer.public}, self.folder / "pushing")
        entries = finding.find(view, [], lambda line: None)
        claims = Claims(bucket.storage, bucket.layout, settle=0.0)
        (pack,) = Publisher(bucket, signer, claims).publish(view, entries, run=run, compile_ms=compile_ms).packs
        return pack.pack

    def take(self, other: Fleet) -> None:
        """Have what the bucket of another holds, and its key."""
        self.secret, self.public = other.secret, other.public
        shutil.copytree(other.bucket, self.bucket, dirs_exist_ok=True)

    def packs(self) -> list[Path]:
        return sorted(self.bucket.rglob("*.kcp"))


def told(mount: Mount) -> dict[str, Any]:
    """The statistics of a mount."""
    numbers: dict[str, Any] = json.loads((mount.mountpoint / ".kcachefs" / "settled.json").read_bytes())
    return numbers


def fleet_of(mount: Mount) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads((mount.mountpoint / ".kcachefs" / "stats.json").read_bytes())["fleet"]
    return numbers


def wait_for_index(mount: Mount) -> None:
    until(lambda: fleet_of(mount)["state"] == "ready" and fleet_of(mount)["index_keys"], "the index is loaded")


def wait_for_agent(mount: Mount) -> None:
    until(lambda: fleet_of(mount)["index_age"] >= 0, "the agent has loaded an index")


def agent_of(mount: Mount) -> int:
    """The process that is the agent of a mount."""
    supervisor = mount.daemon()[0]
    for child in Path("/proc").iterdir():
        if child.name.isdigit() and is_agent(int(child.name), supervisor):
            return int(child.name)
    return 0


def is_agent(pid: int, supervisor: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return False
    return b"kcachefs.daemon.fleet_agent" in words and parent == supervisor


def log_of(mount: Mount) -> str:
    folder = Path(os.environ["KCACHEFS_LOG_DIR"])
    return "".join(path.read_text() for path in folder.iterdir() if str(mount.mountpoint) in path.read_text())
