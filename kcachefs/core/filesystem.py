"""The filesystem as an engine sees it: the requests, and the work at mount and at unmount.

The engine's thread calls the methods of `NameRequests` and `FileRequests`, with the caller as the first argument where
the answer depends on the caller. Meanwhile the daemon calls `sealer.seal_next`, `sealer.seal_quiet`, `write_down`,
`evictor.turn`, `reaper.reap` and `clear_orphans` from other threads.
"""

from __future__ import annotations

import contextlib
import logging
import stat
import time

from kcachefs.bounded import BoundedDict
from kcachefs.core.arrivals import Arrivals
from kcachefs.core.caller import Caller
from kcachefs.core.eviction import Evictor
from kcachefs.core.file_requests import FileRequests
from kcachefs.core.kernel import Kernel
from kcachefs.core.layouts import NAMESPACES
from kcachefs.core.limits import Limits
from kcachefs.core.metrics import About, as_metrics
from kcachefs.core.options import FsOptions
from kcachefs.core.parts import Parts
from kcachefs.core.policies import policy_class
from kcachefs.core.probing import Prober
from kcachefs.core.reaping import Reaper
from kcachefs.core.recovery import recover
from kcachefs.core.remote import Elsewhere, Remote
from kcachefs.core.report import Activity, RoomNumbers, Statistics, as_json, counted_since, statistics, statistics_of
from kcachefs.core.report_folder import ReportFolder
from kcachefs.core.sharing import groups_of
from kcachefs.core.tree import DOTDOT
from kcachefs.core.user_eviction import HIGH_WATER, LOW_WATER
from kcachefs.core.user_quotas import UserQuotas
from kcachefs.errors import NoSpace
from kcachefs.store import Store
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.records import Inode

log = logging.getLogger(__name__)

_REPORTS = 64
FULL_TRIES = 8
"""After this many failures in a row on a full disk, the files that still wait are left unsealed."""
_PAUSE_TIMES = 20
"""A report is reused for this many times as long as it took to make."""
COUNT_SECONDS = 0.2
"""How long a mount counts its users' inodes before it answers; the evictor counts the rest."""


class Filesystem(FileRequests):
    """One mounted tree over one store."""

    def __init__(
        self,
        store: Store,
        options: FsOptions = FsOptions(),  # noqa: B008
        kernel: Kernel | None = None,
        about: About | None = None,
        remote: Remote | None = None,
    ) -> None:
        """`remote` is asked about misses, and the statistics include its numbers."""
        policy = policy_class(options.sharing)
        parts = Parts(store, options, kernel or Kernel(), first_publisher_owns=policy.first_publisher_owns)
        parts.tree.make_root(options.uid, options.gid)
        quotas = None
        if parts.accounts is not None:
            trusted = frozenset((0, options.uid))
            quotas = UserQuotas(store, parts.nodes, parts.files, parts.room, parts.accounts, trusted)
        report = ReportFolder(options.uid, options.gid)
        report.add(
            {b"stats.json": lambda caller: as_json(self.report_for(caller)), b"metrics": self._metrics_for},
            slow={b"settled.json": self._settled_for},
        )
        self._about = about
        """What the metrics say about the daemon."""
        self._remote = remote
        super().__init__(parts, policy(parts), report, quotas)
        self.table = parts.table
        self.namespaces = parts.namespaces
        self.walk = parts.walk
        self.uses = parts.uses
        self.history = parts.history
        self.runs = parts.runs
        self.profiles = parts.profiles
        self.read_ahead = parts.read_ahead
        self.makings = parts.makings
        self.fresh = parts.fresh
        self.temporaries = parts.temporaries
        self.unsealed = parts.unsealed
        self.sealer = parts.sealer
        self.lifetimes = parts.lifetimes
        self._remover = parts.remover
        self.arrivals = Arrivals(parts, self.name_gone)
        if remote is not None:
            self.elsewhere = Elsewhere(parts, self.arrivals, remote, self.name_gone)
            self.has_remote = True
        prober = Prober(parts.nodes, self.name_gone)
        self.evictor = Evictor(
            store,
            parts.nodes,
            parts.tree,
            parts.walk,
            parts.table,
            parts.namespaces,
            parts.uses,
            parts.sealer,
            parts.room,
            parts.remover,
            parts.counts,
            parts.temporaries,
            prober,
            self.name_gone,
            parts.history,
            parts.accounts,
        )
        self.reaper = Reaper(
            parts.nodes,
            parts.tree,
            parts.walk,
            parts.files,
            parts.temporaries,
            parts.remover,
            prober,
            self.name_gone,
        )
        self._reports: BoundedDict[int | None, tuple[float, Statistics]] = BoundedDict(_REPORTS)
        """By user (None: all users): the time until which a report is reused, and the report."""
        self._make_namespaces()
        if self._has_policy:
            self._mark_kept_files()
        if options.resumed:
            self.nodes.resume()
            self.lifetimes.recall_names()
            self._tell_names()
        else:
            with contextlib.suppress(NoSpace):  # then the orphans go later
                self.lifetimes.remove_all_unused(list(self.nodes.orphans))
        if store.lost_power:
            recover(parts)
        self.sealer.queue_unsealed()
        if parts.accounts is not None:
            parts.accounts.count(COUNT_SECONDS)

    def set_limits(self, limits: Limits) -> None:
        """Apply new limits from now on; the next turns evict whatever exceeds them."""
        self.room.set_limits(limits)

    def statistics(self) -> Statistics:
        max_size, nameless = self.room.limits.max_size, len(self.nodes.orphans)
        requests = self._kernel.requests()
        fleet = self._remote.report() if self._remote is not None else None
        room, activity = self._room_numbers(), self._activity()
        return statistics(self.store, self.namespaces, max_size, nameless, room, requests, fleet, activity)

    def _room_numbers(self) -> RoomNumbers:
        limits, of_owner = self.room.limits, None
        if self.quotas is not None:
            accounts = self.quotas.accounts
            of_owner = int(limits.max_size_per_uid * HIGH_WATER) - accounts.total(accounts.of(self.options.uid))
        # Room in free slots is given back before anything is evicted; eviction then goes on down to the low mark.
        return RoomNumbers(
            max(-self.room.excess(HIGH_WATER), self.store.slots.slack_bytes() - self.room.excess(LOW_WATER)),
            -self.room.excess_files(HIGH_WATER) if limits.max_files else None,
            of_owner,
            self.room.below_ceilings(),
        )

    def _activity(self) -> Activity:
        frames, frame_bytes = self.store.objects.cache.statistics()
        so_far = self.history.since_start
        return Activity(
            latencies=self._kernel.latencies(),
            evictions=dict(self.history.gone),
            remade=so_far.remade,
            seconds_compiled=so_far.compiled / 1e9,
            seconds_saved=so_far.saved / 1e9,
            store_bytes=self.store.bytes_by_kind(),
            frames_cached=frames,
            frames_cached_bytes=frame_bytes,
            waiting_for_sealing=self.sealer.waiting(),
        )

    def sees_all(self, caller: Caller) -> bool:
        """Whether a caller may see the numbers of the whole mount: its owner and root may."""
        return caller.uid in (0, self.options.uid)

    def report_for(self, caller: Caller) -> Statistics:
        """The statistics that a caller may see: of everything, or only their own.

        They may be a moment old, because anybody may ask all the time.
        """
        return self._report_of(None if self.sees_all(caller) else caller.uid)

    def _report_of(self, uid: int | None) -> Statistics:
        """The statistics of one user, or (None) of all; the previous ones if they were made just now."""
        last, begin = self._reports.get(uid), time.monotonic()
        if last is not None and begin < last[0]:
            return last[1]
        numbers = self.statistics() if uid is None else self._statistics_of(uid)
        end = time.monotonic()
        self._reports[uid] = end + _PAUSE_TIMES * (end - begin), numbers
        return numbers

    def _statistics_of(self, uid: int) -> Statistics:
        limits = self.room.limits
        unsealed = self.sealer.unsealed_bytes(uid)
        quota = limits.max_size_per_uid or limits.max_size
        return statistics_of(uid, self.namespaces, quota, unsealed, counted_since(self.store))

    def reset_statistics(self) -> float:
        """Count hits, misses and evictions from 0 again; returns the time of the reset. History and entries stay."""
        self.write_down()
        with self.nodes.change() as txn:
            now = self.table.reset(txn)
        self._reports.clear()
        self.history.note_event("reset")
        return now / 1e9

    def _metrics_for(self, caller: Caller) -> bytes:
        gid = self.options.metrics_gid
        is_member = gid is not None and caller.is_known and (caller.gid == gid or gid in groups_of(caller.pid))
        return self.metrics() if is_member else as_metrics(self.report_for(caller), self._about)

    def metrics(self) -> bytes:
        """The metrics of the whole mount, a moment old at most."""
        return as_metrics(self._report_of(None), self._about)

    def _settled_for(self, caller: Caller) -> bytes:
        """The statistics, including everything that the caller has done until now."""
        self.settle_for(caller)
        return as_json(self.report_for(caller))

    def settle_for(self, caller: Caller) -> None:
        """Count what a caller has written and used until now: seal their waiting files, and write down their uses."""
        if self.sees_all(caller):
            self.settle()
        else:
            self.runs.catch_up()
            self.sealer.seal_of(caller.uid, self.uses.hit_by(caller.uid))
            self.write_down()
            self.store.fold()
        self._reports.clear()

    def settle(self) -> None:
        """Seal every file that waits and put it all on disk. An unmount waits for this.

        A file that cannot be sealed, because its record is damaged or the disk is full, stays as it is.
        """
        self.runs.catch_up()
        failed = 0
        for _ in range(self.sealer.waiting()):
            try:
                self.sealer.seal_next(0)
                failed = 0
            except NoSpace as error:
                failed += 1
                if failed == FULL_TRIES:
                    log.error(
                        "%d files could not be sealed, and are left as they are: %s", self.sealer.waiting(), error
                    )
                    break
            except Exception as error:
                log.error("a file could not be sealed, and is left as it is: %s", error)
        self.sealer.finish()
        self.write_down()
        self.store.fold()

    def write_down(self) -> None:
        """Write down uses, what they saved, the records of runs, and listings. The caller holds no lock."""
        self.uses.flush()
        self.runs.flush()
        self.profiles.flush()
        self.history.flush()
        self._kept_listings.keep()

    def clear_orphans(self) -> None:
        """Remove inodes without a name that nobody uses, and finish the removals that an earlier worker began."""
        try:
            self._remover.clear_out()
        finally:
            self._tell_names()
            self.lifetimes.clear_orphans()

    def _tell_names(self) -> None:
        """Tell the kernel about names that chores took away, here or in the last worker, which may have died first."""
        for parent, name in self.lifetimes.take_untold():
            self.name_gone(parent, name)

    # --- at mount -----------------------------------------------------------------------------------------------------

    def _make_namespaces(self) -> None:
        owner = Caller(self.options.uid, self.options.gid)
        for name in NAMESPACES:
            ino = self.tree.find(ROOT_INO, name.encode())
            if ino is None:
                ino, _ = self.tree.create(owner, ROOT_INO, name.encode(), stat.S_IFDIR | 0o1777)
            self.namespaces.protected.add(ino)

    def _mark_kept_files(self) -> None:
        """Give files that an older version took for locks, which everybody may write to, back to their owners."""
        folders = [found for root in self.namespaces.roots if (found := self.tree.find(root, b"ccache")) is not None]
        for _ in range(2):
            below = [row for folder in folders for row in self.tree.listing(folder, DOTDOT, 64) if len(row[1]) == 1]
            folders += [ino for _, _, ino, kind in below if kind == stat.S_IFDIR >> 12]
        places = [(folder, name) for folder in folders for name in (b"ccache.conf", b"CACHEDIR.TAG", b"stats")]
        drivers = [found for root in self.namespaces.roots if (found := self.tree.find(root, b"cuda")) is not None]
        for folder, name in (*places, *((folder, b"index") for folder in drivers)):
            ino = self.tree.find(folder, name)
            if ino is not None and not (node := self.nodes.get(ino)).flags & Inode.PUBLISHED and not node.entry:
                with self.nodes.change() as txn:
                    node.flags |= Inode.PUBLISHED
                    self.nodes.save(txn, ino, node)
