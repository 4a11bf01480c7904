"""Publishes what a worker offers, one offer after another, in a thread of the agent."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kcachefs.errors import FleetError, FleetFails, FleetUnreachable, KcachefsError, NoSpace
from kcachefs.fleet.agent_protocol import Offer, Taken
from kcachefs.fleet.bucket import Bucket
from kcachefs.fleet.finding import FoundEntry
from kcachefs.fleet.parcels import OpenParcel, ParcelFile
from kcachefs.fleet.publishing import Publisher
from kcachefs.fleet.renewing import renew
from kcachefs.fleet.signing import Signer
from kcachefs.fleet.views import Child, Seen
from kcachefs.frameworks.copying import Skipped

log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """An offer; or, if that is None, the keys of entries to publish again."""

    offer: Offer | None
    fd: int = -1
    used: Sequence[int] = ()


class Uploads:
    """The offers of one mount."""

    def __init__(self, bucket: Bucket, signer: Signer, failed: Callable[[FleetError], None]) -> None:
        """`failed` is called when the bucket cannot be reached."""
        self._bucket = bucket
        self._failed = failed
        self._publisher = Publisher(bucket, signer)
        self._offers: queue.SimpleQueue[_Waiting] = queue.SimpleQueue()
        self._busy = threading.Event()
        self.published = 0
        """How many packs were put into the bucket."""

    def start(self, taken: Callable[[Taken], None]) -> None:
        """Start the thread, which calls `taken` with what became of each offer."""
        threading.Thread(target=self._run, args=(taken,), name="kcachefs-upload", daemon=True).start()

    def add(self, offer: Offer, fd: int) -> None:
        self._busy.set()
        self._offers.put(_Waiting(offer, fd))

    def renew(self, used: Sequence[int]) -> None:
        """Publish these entries again before they age out of the bucket."""
        self._offers.put(_Waiting(None, used=used))

    def finish(self, seconds: float) -> None:
        """Wait until everything is published, but not for long: the rest is offered again by the next mount."""
        until = time.monotonic() + seconds
        while self._busy.is_set() and time.monotonic() < until:
            time.sleep(0.02)

    def _run(self, taken: Callable[[Taken], None]) -> None:
        while True:
            if self._offers.empty():
                self._busy.clear()
            offer, fd, used = self._offers.get()
            if offer is None:
                self._renew(used)
                continue
            self._busy.set()
            try:
                told = self._publish(offer, fd)
            except (FleetError, NoSpace, OSError) as error:
                log.warning("entries could not be published and will be offered again: %s", error)
                self._note(error)
                told = Taken(offer.batch, False, str(error), is_fault=True)
            except KcachefsError as error:
                log.error("entries are not published: %s", error)
                told = Taken(offer.batch, True, str(error))
            except Exception as error:
                log.exception("entries are not published")
                told = Taken(offer.batch, True, str(error))
            finally:
                if fd >= 0:  # no descriptor comes if too many are open
                    os.close(fd)
            taken(told)

    def _note(self, error: Exception) -> None:
        """Report only faults that hit every request: where nothing can be written, reading may still work."""
        if isinstance(error, FleetUnreachable) and not isinstance(error, FleetFails):
            self._failed(error)

    def _renew(self, used: Sequence[int]) -> None:
        try:
            self._bucket.load_index()
            done = renew(self._bucket, self._publisher, used)
        except (KcachefsError, OSError) as error:
            log.warning("recently used entries could not be republished: %s", error)
            self._note(error)
        except Exception:
            log.exception("recently used entries could not be republished")
        else:
            if done.copied or done.repacked:
                log.info(
                    "published %d packs again, %d of them made anew",
                    len(done.copied + done.repacked),
                    len(done.repacked),
                )

    def _publish(self, offer: Offer, fd: int) -> Taken:
        view = ParcelView(OpenParcel(fd))
        began = time.monotonic()
        done = self._publisher.publish(
            view, view.entries, run=offer.run, compile_ms=offer.compile_ms, say=lambda skipped: log.info("%s", skipped)
        )
        self.published += len(done.packs)
        seconds = time.monotonic() - began
        log.info(
            "published %d packs of %d entries in %.2f s; the bucket had %d of them, %d are being published by others",
            len(done.packs),
            len(view.entries),
            seconds,
            done.present,
            len(done.waiting),
        )
        return Taken(offer.batch, not done.waiting, "others are publishing the same" if done.waiting else "")


class ParcelView:
    """The entries of a parcel as a tree that packs are made from (`views.View`)."""

    def __init__(self, parcel: OpenParcel) -> None:
        self._parcel = parcel
        self._files: dict[tuple[str, ...], ParcelFile] = {}
        self.entries: list[FoundEntry] = []
        for entry in parcel.entries:
            for file in entry.files:
                self._files[(entry.namespace, *entry.path, *file.name.split("/"))] = file
            names, size = sorted(file.name for file in entry.files), sum(file.size for file in entry.files)
            found = FoundEntry(
                namespace=entry.namespace, path_in=entry.path, group=entry.group, files=names, bytes=size
            )
            self.entries.append(found)

    def children(self, path: tuple[str, ...]) -> list[Child]:
        depth = len(path)
        below = {place[depth]: len(place) == depth + 1 for place in self._files if place[:depth] == path}
        return [Child(name, not is_file, is_file) for name, is_file in sorted(below.items())]

    def size(self, path: tuple[str, ...]) -> int:
        return self._at(path).size

    def read(self, path: tuple[str, ...]) -> Seen:
        file = self._at(path)
        return Seen(file.mode & 0o777, file.mtime, self._parcel.content(file))

    def _at(self, path: tuple[str, ...]) -> ParcelFile:
        file = self._files.get(path)
        if file is None:
            raise Skipped(f"{'/'.join(path)}: is gone")
        return file
