"""The fleet agent: one process per mount that talks to the bucket, because the worker must not reach the network.

It loads the index, fetches and checks packs that lookups wait for, and publishes what the worker offers. The supervisor
starts it, starts it again when it dies, and gives it a socket to each worker. The mount does not depend on it: a worker
without an agent serves what its store holds.

Nothing here is tried twice while a lookup waits. After a network fault the bucket is left alone for a while.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from kcachefs.daemon import bucket_folder, logs
from kcachefs.daemon.agent_preparation import AgentConfig, Preparation, prepare
from kcachefs.daemon.worker_protocol import REFUSED, REPLACED
from kcachefs.errors import FleetError, FleetMissing, FleetTooSlow, FleetTrickles, KcachefsError, PackError
from kcachefs.fleet import agent_protocol as protocol
from kcachefs.fleet import packfile, unwrapping
from kcachefs.fleet.agent_protocol import Alive, Fetch, IndexReady, Lost, Offer, Parcel, Refresh, Used
from kcachefs.fleet.breaker import Breaker
from kcachefs.fleet.bucket import Bucket
from kcachefs.fleet.index_loading import Loaded
from kcachefs.fleet.key_index import KeyIndex
from kcachefs.fleet.object_storage import Patience
from kcachefs.fleet.pack_records import PackReference
from kcachefs.fleet.timed_storage import TimedStorage
from kcachefs.fleet.uploads import Uploads

log = logging.getLogger("kcachefs.daemon.fleet_agent")  # as a program this module is __main__

FINISH = b"finish"
"""The supervisor's message when the mount is gone."""
FINISH_SECONDS = 1.5
"""How long uploads may still take then: the worker has already waited for them, and for longer."""
FIRST_BYTE_SECONDS = 0.25
USUAL_TIMES = 5
"""A first byte may take this many times as long as usual, or `FIRST_BYTE_SECONDS` if that is longer."""
WORTH_SHARE = 0.5
"""A transfer may take this share of the time that compiling took."""
AHEAD_BYTES = 256 << 20
"""Packs of one run that are fetched ahead have at most this many bytes together."""
AHEAD_PLAIN_BYTES = 1 << 30
"""The same limit for their size when decoded: they stay in memory until the worker has brought them in."""
LOST_SECONDS = 60.0
SLOW_SECONDS = 600.0
"""How long to wait before asking again for a pack that is not worth its transfer."""
GONE_SECONDS = 1e9
INDEX_RETRY_SECONDS = 30.0
REFRESH_SECONDS = 60.0
_FETCHES = 4


class SharedBucket(Bucket):
    """A bucket whose index is loaded for lookups and for publishing, by one thread at a time."""

    def __init__(
        self,
        storage: TimedStorage,
        scope: str,
        trusted: frozenset[bytes],
        folder: Path,
        check: Callable[[], None],
        on_loaded: Callable[[], None],
    ) -> None:
        """`check` raises FleetError if the bucket must not be read or published to, whatever the storage says."""
        super().__init__(storage, scope, trusted, folder)
        self._loading = threading.Lock()
        self._check = check
        self._on_loaded = on_loaded

    def load_index(self) -> Loaded:
        with self._loading:
            self._check()
            loaded = super().load_index()
        self._on_loaded()
        return loaded


class Agent:
    """One agent, for as long as its process lives."""

    def __init__(self, mountpoint: Path, prepared: Preparation) -> None:
        self._mountpoint = mountpoint
        self._storage = prepared.storage
        self._bucket_folder = prepared.bucket_folder
        self._bucket = SharedBucket(
            prepared.storage,
            prepared.scope,
            prepared.trusted,
            prepared.folder,
            self._bucket_folder.check,
            self._index_is_new,
        )
        self._uploads = Uploads(self._bucket, prepared.signer, self._fail) if prepared.signer is not None else None
        self._breaker = Breaker()
        self._channel: socket.socket | None = None
        self._lock = threading.Lock()
        self._underway: set[tuple[str, str]] = set()
        self._busy: list[None] = []
        """One item for each thread that fetches: a list can be appended to and popped without a lock."""
        self._pool = ThreadPoolExecutor(_FETCHES, thread_name_prefix="kcachefs-pack")
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="kcachefs-ahead")
        self._wanted_index: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._has_index = False
        self._fetched_bytes = 0

    # --- the supervisor and workers -----------------------------------------------------------------------------------

    def run(self, control: socket.socket) -> None:
        """Serve until the supervisor says finish, or until it and its worker are both gone."""
        threading.Thread(target=self._keep_index, name="kcachefs-index", daemon=True).start()
        threading.Thread(target=self._keep_alive, name="kcachefs-alive", daemon=True).start()
        if self._bucket_folder.path:
            threading.Thread(target=self._watch_folder, name="kcachefs-folder", daemon=True).start()
        if self._uploads is not None:
            self._uploads.start(self._taken)
        listener: threading.Thread | None = None
        while True:
            try:
                message, fds, _, _ = socket.recv_fds(control, 64, 1)
            except OSError:
                message, fds = b"", []
            if fds:
                channel = socket.socket(fileno=fds[0])
                listener = threading.Thread(target=self._serve, args=(channel,), name="kcachefs-worker", daemon=True)
                listener.start()
            elif message == FINISH:
                break
            elif not message:
                if listener is not None:
                    listener.join()  # a worker goes on without a supervisor
                break
        if self._uploads is not None:
            self._uploads.finish(FINISH_SECONDS)

    def _serve(self, channel: socket.socket) -> None:
        """Talk to one worker until it is gone."""
        with channel:
            self._channel = channel
            self._tell_state()
            if self._has_index:
                protocol.send(channel, IndexReady(str(self._bucket.index_path)))
            while True:
                message, fd = protocol.receive_from_worker(channel)
                if message is None:
                    break
                if isinstance(message, Fetch):
                    self._wanted(message)
                elif isinstance(message, Offer) and self._uploads is not None:
                    self._uploads.add(message, fd)  # the uploads own the descriptor now
                    continue
                elif isinstance(message, Refresh):
                    self._wanted_index.put(None)
                elif isinstance(message, Used) and self._uploads is not None:
                    self._uploads.renew(message.keys)
                if fd >= 0:
                    os.close(fd)
            if self._channel is channel:
                self._channel = None

    def _send(self, message: protocol.ToWorker, fd: int = -1) -> None:
        channel = self._channel
        if channel is not None:
            protocol.send(channel, message, fd)

    def _tell_state(self) -> None:
        published = self._uploads.published if self._uploads is not None else 0
        breaker = self._breaker
        self._send(Alive(breaker.open_for, breaker.why, self._storage.requests, self._fetched_bytes, published))

    def _taken(self, taken: protocol.Taken) -> None:
        self._send(taken)
        self._tell_state()

    def _keep_alive(self) -> None:
        """Say that we are alive while somebody may wait for us."""
        while True:
            time.sleep(protocol.ALIVE_SECONDS)
            if self._busy:
                self._tell_state()

    def _watch_folder(self) -> None:
        """Exit when another folder has taken the bucket's place: only another agent can write there."""
        while not self._bucket_folder.is_another():
            try:
                self._bucket_folder.check()
            except FleetMissing as error:
                self._fail(error)
            time.sleep(bucket_folder.LOOK_SECONDS)
        log.info("%s: was replaced by another folder; another agent takes over", self._bucket_folder.path)
        logging.shutdown()
        os._exit(REPLACED)

    # --- the index ----------------------------------------------------------------------------------------------------

    def _keep_index(self) -> None:
        if KeyIndex.open(self._bucket.index_path) is not None:
            self._index_is_new()  # from an earlier mount: most of it is still valid
        pause = INDEX_RETRY_SECONDS
        while True:
            is_loaded = self._load_index()
            if not is_loaded:
                time.sleep(pause)
                pause = min(600.0, 2 * pause)
                continue
            pause = INDEX_RETRY_SECONDS
            loaded = time.monotonic()
            self._wanted_index.get()
            time.sleep(max(0.0, loaded + REFRESH_SECONDS - time.monotonic()))
            while not self._wanted_index.empty():
                self._wanted_index.get()

    def _load_index(self) -> bool:
        began = time.monotonic()
        try:
            loaded = self._bucket.load_index()
        except Exception as error:  # this thread is the only one that tries again
            known = isinstance(error, KcachefsError | OSError)
            log.warning("the index of the fleet cannot be loaded now: %s", error, exc_info=not known)
            self._breaker.failed(str(error))
            self._tell_state()
            return False
        seconds = time.monotonic() - began
        log.info("the index of the fleet names %d packs, %d of them new (%.2f s)", loaded.packs, loaded.new, seconds)
        self._breaker.succeeded(began)
        self._tell_state()
        return True

    def _index_is_new(self) -> None:
        self._has_index = True
        self._send(IndexReady(str(self._bucket.index_path)))

    # --- packs --------------------------------------------------------------------------------------------------------

    def _wanted(self, message: Fetch) -> None:
        if self._begin(message.reference):
            self._pool.submit(self._fetch, message.reference, time.monotonic())
        if message.ahead:
            self._ahead.submit(self._fetch_ahead, message.reference)

    def _begin(self, reference: PackReference) -> bool:
        with self._lock:
            if reference.place in self._underway:
                return False
            self._underway.add(reference.place)
            return True

    def _end(self, reference: PackReference) -> None:
        with self._lock:
            self._underway.discard(reference.place)

    def _fetch(self, reference: PackReference, asked: float) -> bool:
        """Fetch, check and hand over a pack that was asked for at the time `asked`; returns whether that succeeded."""
        began = time.monotonic()
        self._busy.append(None)
        try:
            if self._breaker.open_for:
                self._send(Lost(reference, self._breaker.why, self._breaker.open_for))
                return False
            # A pack that is fetched ahead has a deadline, too: a lookup may begin to wait for it.
            path = self._bucket.fetch_pack(reference, self._patience(reference, began - asked))
            try:
                # First: if a new worker asks from now on, the pack is fetched again. Otherwise that worker would never
                # get it.
                self._end(reference)
                self._hand_over(reference, path)
            finally:
                path.unlink(missing_ok=True)
        except PackError as error:  # the bucket has banned the pack and logged that
            self._send(Lost(reference, str(error), GONE_SECONDS))
            return False
        except FleetMissing as error:  # the next index tells whether the pack is gone for good
            self._send(Lost(reference, str(error), LOST_SECONDS))
            return False
        except FleetTooSlow as error:
            if isinstance(error, FleetTrickles):
                self._fail(error)
            else:  # other packs may be worth their time
                log.info("a pack of the fleet is not worth waiting for: %s", error)
            self._send(Lost(reference, str(error), SLOW_SECONDS))
            return False
        except FleetError as error:
            self._fail(error)
            self._send(Lost(reference, str(error), LOST_SECONDS))
            return False
        except Exception as error:  # a known error, such as a full disk, needs no traceback
            known = isinstance(error, KcachefsError | OSError)
            log.error("a pack of the fleet could not be fetched: %s", error, exc_info=not known)
            self._send(Lost(reference, str(error), LOST_SECONDS))
            return False
        finally:
            self._end(reference)
            self._busy.pop()
        self._breaker.succeeded(began)
        self._fetched_bytes += reference.size
        log.info("fetched the pack %s: %d bytes in %.2f s", reference.pack, reference.size, time.monotonic() - began)
        self._tell_state()
        return True

    def _fail(self, error: FleetError) -> None:
        """Note that something is wrong with the bucket or the way to it."""
        if self._breaker.failed(str(error)):
            log.warning("the fleet's bucket is left alone for %.0f s: %s", self._breaker.open_for, error)
        self._tell_state()

    def _patience(self, reference: PackReference, waited: float) -> Patience:
        """How long a transfer may take. The lookup has waited already while packs before this one were fetched."""
        first_byte = max(FIRST_BYTE_SECONDS, USUAL_TIMES * self._storage.usual_seconds)
        worth = WORTH_SHARE * reference.compile_ms / 1000
        left = max(first_byte, worth) - waited
        if left <= 0:
            raise FleetTooSlow(f"the pack {reference.pack} waited {waited:.1f} s for others, more than it is worth")
        return Patience(first_byte=min(first_byte, left), overall=left, budget=left)

    def _hand_over(self, reference: PackReference, path: Path) -> None:
        with packfile.opened(path, self._bucket.trusted) as pack:
            left = len(pack.manifest.frames)
            for frame, plain in pack.decoded():
                left -= 1
                fd = unwrapping.parcel(frame, plain, self._mountpoint)
                try:
                    self._send(Parcel(reference, left == 0), fd)
                finally:
                    os.close(fd)

    def _fetch_ahead(self, reference: PackReference) -> None:
        index = KeyIndex.open(self._bucket.index_path)
        left, left_plain = AHEAD_BYTES, AHEAD_PLAIN_BYTES
        for other in index.same_run(reference) if index is not None else ():
            left -= other.size
            left_plain -= other.plain
            if min(left, left_plain) < 0 or self._breaker.open_for:
                return
            if self._begin(other) and not self._fetch(other, time.monotonic()):
                return


def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=AgentConfig)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
    control = socket.socket(fileno=int(sys.argv[2]))
    with contextlib.suppress(OSError):
        os.nice(5)  # programs come first
    prepared: Preparation | None = None
    failure = ""
    try:
        prepared = prepare(config)
    except (KcachefsError, OSError) as error:
        failure = str(error)
    logs.start(config.log, "agent", config.log_format, level=config.log_level)
    if prepared is None:
        log.error("the fleet cannot be used: %s", failure)
        protocol.tell_failure(control, failure)
        logging.shutdown()
        sys.exit(REFUSED)
    for gap in prepared.gaps:
        log.warning("%s", gap)
    log.info("the fleet is %s, scope %s", config.fleet.url, prepared.scope)
    Agent(Path(config.mountpoint), prepared).run(control)
    logging.shutdown()
    os._exit(0)  # threads may wait for the network


if __name__ == "__main__":
    main()
