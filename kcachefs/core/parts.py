"""The parts of a filesystem, put together. Each is given what it needs when it is made, and knows no later part."""

from __future__ import annotations

from kcachefs.core.accounts import Accounts
from kcachefs.core.distrust import Distrust
from kcachefs.core.entry_counts import EntryCounts
from kcachefs.core.files import Files
from kcachefs.core.fresh_entries import FreshEntries
from kcachefs.core.future_uses import FutureUses
from kcachefs.core.history import History
from kcachefs.core.kept_listings import KeptListings
from kcachefs.core.kernel import Kernel
from kcachefs.core.lifetimes import Lifetimes
from kcachefs.core.makings import Makings
from kcachefs.core.membership import Membership
from kcachefs.core.namespaces import Namespaces
from kcachefs.core.nodes import Nodes
from kcachefs.core.options import FsOptions
from kcachefs.core.placement import Placement
from kcachefs.core.publishers import Publishers
from kcachefs.core.read_ahead import ReadAhead
from kcachefs.core.removal import Remover
from kcachefs.core.replay import ReplayGuard
from kcachefs.core.room import Room
from kcachefs.core.runs import Runs
from kcachefs.core.seal_queue import SealQueue
from kcachefs.core.sealing import Sealer
from kcachefs.core.start_profiles import StartProfiles
from kcachefs.core.syncing import Syncer
from kcachefs.core.temporaries import Temporaries
from kcachefs.core.tree import Tree
from kcachefs.core.unsealed import Unsealed
from kcachefs.core.uses import Uses
from kcachefs.core.walk import Walk
from kcachefs.store import Store
from kcachefs.store.entry_table import EntryTable


class Parts:
    """Everything that a policy and the filesystem are built on."""

    def __init__(self, store: Store, options: FsOptions, kernel: Kernel, *, first_publisher_owns: bool) -> None:
        """`first_publisher_owns` is what the policy's class says: the policy itself is made of these parts, later."""
        self.store = store
        self.options = options
        self.kernel = kernel
        self.nodes = Nodes(store, kernel)
        self.accounts = _accounts(store, options, self.nodes)
        self.table = EntryTable(store.catalog)
        self.namespaces = Namespaces(store, self.nodes, self.table)
        self.placement = Placement(self.nodes, self.namespaces, self.table)
        self.temporaries = Temporaries(store)
        self.history = History(store, self.namespaces)
        self.profiles = StartProfiles(store)
        self.runs = Runs(store, self.profiles)
        self.makings = Makings(store, self.nodes, self.namespaces, self.history, self.runs, self.profiles)
        future = FutureUses(store, self.nodes, self.table)
        self.uses = Uses(self.nodes, self.table, self.runs, self.makings, future)
        self.fresh = FreshEntries()
        self.walk = Walk(store, self.nodes, self.table)
        self.read_ahead = ReadAhead(store, self.nodes, self.walk, self.profiles)
        self.publishers = Publishers(self.nodes, self.table, self.temporaries, self.walk)
        self.counts = EntryCounts(
            store,
            self.nodes,
            self.namespaces,
            self.placement,
            self.table,
            self.uses,
            self.makings,
            self.fresh,
            self.publishers if first_publisher_owns else None,
        )
        self.membership = Membership(
            store, self.nodes, self.namespaces, self.placement, self.counts, self.temporaries, self.uses
        )
        queue = SealQueue(store.catalog.lock)
        self.unsealed = Unsealed(store, self.nodes, self.counts, self.uses, queue)
        self.files = Files(store, self.nodes, self.counts, self.unsealed, queue, self.accounts)
        self.sealer = Sealer(store, self.nodes, self.counts, self.unsealed, self.files, queue)
        self.lifetimes = Lifetimes(store.catalog, self.nodes, self.files)
        self.replay = ReplayGuard(store, resumed=options.resumed)
        self.tree = Tree(
            store,
            self.nodes,
            self.namespaces,
            self.membership,
            self.temporaries,
            self.lifetimes,
            self.counts,
            self.table,
            self.replay,
        )
        self.distrust = Distrust(store, self.nodes, self.tree)
        self.syncer = Syncer(
            store,
            self.nodes,
            self.tree,
            self.walk,
            self.temporaries,
            self.files,
            self.unsealed,
            self.sealer,
            queue,
        )
        self.remover = Remover(
            store, self.nodes, self.table, self.membership, self.lifetimes, self.tree, self.walk, kernel
        )
        self.room = Room(store, self.namespaces, options.limits)
        self.kept_listings = KeptListings(store, self.nodes, self.tree, self.room)


def _accounts(store: Store, options: FsOptions, nodes: Nodes) -> Accounts | None:
    """The accounts of a mount with a quota per user. Other mounts keep none, and pay nothing for them."""
    if not options.limits.max_size_per_uid:
        return None
    accounts = Accounts(store, options.limits.account_of)
    accounts.start(nodes.next_ino)
    store.slots.keep_little()
    return accounts
