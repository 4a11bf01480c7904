"""A fleet's bucket: loads the index of its packs, fetches packs, and checks them.

Nothing that comes from a bucket is trusted until it proves to be signed by a trusted key. Used by the
agent of a mount and by `kcachefs fleet`; not by the worker, which only reads the local index (`key_index`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
from blake3 import blake3

from kcachefs.errors import FleetError, FleetMissing, FleetUnreachable, PackError, UsageError, or_no_space
from kcachefs.fleet import index_loading, pack_records, packfile
from kcachefs.fleet.asking import in_parallel
from kcachefs.fleet.bans import Bans
from kcachefs.fleet.bucket_layout import SETTINGS, Layout
from kcachefs.fleet.index_loading import Loaded, RecordReader
from kcachefs.fleet.object_storage import PATIENT, Patience, Storage, is_there
from kcachefs.fleet.pack_records import RECORD_MAX, PackReference

DAYS = 30
"""For how many days a bucket keeps objects that nobody publishes again, unless its settings say otherwise."""
PLAIN_MAX = 2 << 30
"""The most bytes that a pack of a bucket may decode to; publishers make packs of at most a fifth of that."""
_SETTINGS_MAX = 1 << 20
"""The most bytes read as settings: more than a web page has, so that one is recognized."""

log = logging.getLogger(__name__)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What `kcachefs fleet init` writes into a bucket. The settings are not signed: none of them matters for safety."""

    days: Annotated[int, msgspec.Meta(ge=3, le=3650)] = DAYS
    """After how many days the bucket's own rule deletes objects."""


class Bucket:
    """One scope of a bucket. Methods raise FleetError when the bucket cannot be used, and try nothing twice."""

    def __init__(self, storage: Storage, scope: str, trusted: Collection[bytes], folder: Path) -> None:
        """`folder` is local: it holds the index, the bans, and packs while they are checked."""
        self.storage = storage
        self.layout = Layout(scope)
        self.trusted = frozenset(trusted)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.bans = Bans(folder / "bans.json")
        self.reader = RecordReader(storage, self.layout, self.trusted)

    @property
    def index_path(self) -> Path:
        """The local index, which `key_index.KeyIndex.open` maps."""
        return self.folder / "index"

    def load_index(self) -> Loaded:
        """Fetch the records that are new since the index was last written, or all records, and replace the index."""
        source = index_loading.source_of(self.storage.url, self.layout.scope, self.trusted)
        return index_loading.load(
            self.reader, self.index_path, self.bans, source, lambda: self.settings.days, self.check_answers
        )

    def check_answers(self, patience: Patience = PATIENT) -> None:
        """Raise FleetUnreachable if the bucket only seems to be empty, because something else answers in its place."""
        read_settings(self.storage, patience)

    def fetch_pack(self, reference: PackReference, patience: Patience = PATIENT) -> Path:
        """Fetch a pack and check every byte of it; returns a local file, which the caller removes.

        A pack that does not match its record raises PackError. One that is gone although its record still exists
        raises FleetMissing. Both are banned. If the record is wrong too, FleetUnreachable is raised: something else
        answers, such as a proxy.
        """
        path = self.folder / f"{reference.pack}.{os.getpid()}.{_serial()}.kcp"
        try:
            try:
                self._receive(reference, path, patience)
            except PackError:
                self._check_answers_for(reference, patience)
                raise
            with packfile.opened(path, self.trusted) as pack:
                if pack.manifest.bytes > PLAIN_MAX:
                    raise PackError(f"its files have {pack.manifest.bytes:,} bytes; at most {PLAIN_MAX:,} are decoded")
                pack.check_frames()
        except BaseException as error:
            path.unlink(missing_ok=True)
            if isinstance(error, PackError) or (
                isinstance(error, FleetMissing) and self._has_record(reference, patience)
            ):
                self.ban(reference, str(error))
            raise
        return path

    def lost(self, references: Collection[PackReference]) -> list[PackReference]:
        """The references whose packs the bucket does not have. Takes one request for each."""

        def gone(reference: PackReference) -> list[PackReference]:
            key = self.layout.pack(reference.day, reference.pack)
            return [] if is_there(self.storage, key) else [reference]

        return in_parallel(gone, list(references))

    def ban(self, reference: PackReference, why: str) -> None:
        """Never ask for this pack again; it leaves the index with the next load."""
        log.warning("the pack %s of %s is not used any more: %s", reference.pack, reference.day, why)
        self.bans.add(reference, why)

    def _check_answers_for(self, reference: PackReference, patience: Patience) -> None:
        """Raise FleetUnreachable unless the server that answers has the pack's signed record: nobody can forge that."""
        if not self._has_record(reference, patience):
            self.check_answers(patience)
            key = self.layout.pack(reference.day, reference.pack)
            told = "neither the pack nor its record is what was published; is it the bucket that answers?"
            raise FleetUnreachable(f"{self.storage.url}: {key}: {told}")

    def _has_record(self, reference: PackReference, patience: Patience) -> bool:
        """Whether the bucket still has a pack's signed record. If not, the whole bucket may be away for a while."""
        key = self.layout.record(reference.day, reference.pack)
        try:
            raw = self.storage.get(key, limit=RECORD_MAX, patience=patience).content
            found = pack_records.read(raw, reference.day, self.layout.scope, self.trusted)
        except (FleetError, PackError):
            return False
        return found.record.pack == reference.pack

    @cached_property
    def settings(self) -> Settings:
        return read_settings(self.storage)

    def _receive(self, reference: PackReference, path: Path, patience: Patience) -> None:
        key, hasher, size = self.layout.pack(reference.day, reference.pack), blake3(), 0
        try:
            with open(path, "xb") as file:
                for chunk in self.storage.stream(key, limit=reference.size, patience=patience):
                    hasher.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
        except OSError as error:
            raise or_no_space(error, path) from None
        if size != reference.size or hasher.hexdigest()[:32] != reference.pack:
            raise PackError(f"{key}: is not the pack that was published")


def open_bucket(url: str, scope: str, trusted: Collection[bytes], folder: Path, **options: Any) -> Bucket:
    """Open a bucket by its URL. Makes no request. Raises UsageError if no key is trusted."""
    from kcachefs.fleet.object_storage import open_storage

    if not trusted:
        raise UsageError("a fleet needs a key that is trusted: name one with --trust, or put it into trusted/")
    return Bucket(open_storage(url, **options), scope, trusted, folder)


def read_settings(storage: Storage, patience: Patience = PATIENT) -> Settings:
    """The settings that `kcachefs fleet init` wrote, or the defaults; FleetUnreachable if a web page answers."""
    content = b""
    try:
        content = storage.get(SETTINGS, limit=_SETTINGS_MAX, patience=patience).content
        return msgspec.json.decode(content, type=Settings)
    except (FleetMissing, PackError, msgspec.DecodeError):
        if content.lstrip().startswith(b"<"):
            told = "a web page answers in the bucket's place; does this network want you to log in?"
            raise FleetUnreachable(f"{storage.url}: {told}") from None
        return Settings()


_counter = iter(range(1 << 62))


def _serial() -> int:
    return next(_counter)
