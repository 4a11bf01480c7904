"""Nodes of a fleet in this process: each with a key index of its own, over one bucket."""

from __future__ import annotations

from pathlib import Path

from kcachefs.fleet import finding, signing
from kcachefs.fleet.bucket import Bucket
from kcachefs.fleet.claims import Claims
from kcachefs.fleet.key_index import KeyIndex
from kcachefs.fleet.object_storage import Storage, open_storage
from kcachefs.fleet.publishing import Published, Publisher
from kcachefs.fleet.views import FolderView
from tests.fleet.caches import key

SCOPE = "x86_64-cuda90"


class Node:
    """What one node of a fleet does with a bucket."""

    def __init__(
        self,
        folder: Path,
        storage: Storage | str,
        secret: Path,
        trusted: frozenset[bytes] | None = None,
        *,
        settle: float = 0.0,
        patience: float = 60.0,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.storage = open_storage(storage) if isinstance(storage, str) else storage
        self.signer = signing.Signer(secret)
        self.bucket = Bucket(self.storage, SCOPE, trusted or frozenset({self.signer.public}), folder)
        self.claims = Claims(self.storage, self.bucket.layout, settle=settle, patience=patience)

    def publish(self, root: Path, *, compile_ms: int = 0) -> Published:
        view = FolderView(root)
        entries = finding.find(view, [], lambda line: None)
        return Publisher(self.bucket, self.signer, self.claims).publish(view, entries, compile_ms=compile_ms)

    @property
    def index(self) -> KeyIndex:
        self.bucket.load_index()
        found = KeyIndex.open(self.bucket.index_path)
        assert found is not None
        return found


def bucket_folder(tmp_path: Path) -> str:
    """The URL of an empty bucket in a folder."""
    (tmp_path / "bucket").mkdir()
    return f"file://{tmp_path / 'bucket'}"


def secret_in(tmp_path: Path) -> Path:
    return key(tmp_path)[0]
