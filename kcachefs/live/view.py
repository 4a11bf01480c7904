"""A person's view of a mount, as records. Every live view (page, report, terminal) shows these and nothing else.

    watch = Watch.of(Path("/mnt/kernels"))     # kcachefs/live/watching.py
    glance = watch.glance()                    # cheap: once a second
    series = watch.series("14d")               # cheap: kept, and brought up to date
    with Look(watch) as look:                  # expensive: on demand (kcachefs/live/looking.py)
        filling = look.filling()

Times are seconds since 1970, durations are seconds, sizes are bytes. None means unknown. Names come from files that
anybody may have written: a view must make them harmless before it shows them (`printable`, `textContent`).
"""

from __future__ import annotations

import msgspec

from kcachefs.core.insight_info import Event, RunInfo
from kcachefs.core.report import FleetNumbers, Numbers
from kcachefs.insight.explaining import Explanation, Told
from kcachefs.insight.listing import KernelRow

RANGES = {"6h": 6 * 3600, "14d": 14 * 86400, "2y": 730 * 86400}
"""How far back a series looks, by its name."""

# --- the quick part ---------------------------------------------------------------------------------------------------


class UserRow(msgspec.Struct, frozen=True, kw_only=True):
    """One user's activity within the last week."""

    uid: int
    name: str
    hits: int = 0
    misses: int = 0
    bytes_served: int = 0
    seconds_compiled: float = 0.0
    seconds_saved: float = 0.0


class Week(msgspec.Struct, frozen=True, kw_only=True):
    """The mount's activity within the last seven days, or since the counters were reset if that is more recent."""

    since: float = 0.0
    hits: int = 0
    misses: int = 0
    bytes_served: int = 0
    evictions: int = 0
    remade: int = 0
    """Entries compiled again after they had been evicted to make room."""
    seconds_compiled: float = 0.0
    seconds_saved: float = 0.0
    """Seconds of compiling that were not repeated."""
    users: list[UserRow] = []
    """The heaviest users first."""


class Concern(msgspec.Struct, frozen=True):
    """Something that somebody should look at."""

    kind: str
    """silent, damage, thrashing, full, restarts or fleet."""
    words: str
    grave: bool = False


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """A mount in one line. While the daemon does not answer, the numbers are the last known ones."""

    mountpoint: str
    state: str
    """`served`; `unsupervised`: a worker that dies will not be replaced; `silent`: the daemon does not answer;
    `dead`: it is gone; `at rest`: a store that is not mounted."""
    why: str = ""
    """The problem when the daemon was asked last."""
    heard: float = 0.0
    """When the daemon last answered."""
    whole: bool = True
    """Whether the numbers cover the whole mount; otherwise only the current user, as on somebody else's mount."""
    store: str = ""
    engine: str = ""
    policy: str = ""
    version: str = ""
    started: float = 0.0
    restarts: int = 0
    reloads: int = 0
    last_exit: str = ""
    used_bytes: int = 0
    max_bytes: int = 0
    is_full: bool = False
    """Whether each new entry takes the place of an old one."""
    bytes_saved: int = 0
    damaged: int = 0
    trouble: str = ""
    """Why nothing can be written to the store; empty if all is well."""
    objects: int = 0
    dedup_ratio: float = 1.0
    total: Numbers | None = None
    """None before the daemon has ever answered."""
    counted_since: float = 0.0
    """When hits, misses and evictions were last reset to 0; 0 if not since the store was made."""
    week: Week = Week()
    concerns: list[Concern] = []


class Glance(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that may change from one second to the next."""

    now: float
    revision: int
    """Goes up whenever anything other than `now` changes."""
    headline: Headline
    namespaces: dict[str, Numbers] = {}
    """As in `kcachefs stats --json`, largest first."""
    runs: list[RunInfo] = []
    """The newest first; the last 50."""
    events: list[Event] = []
    """The newest first; the last 100."""
    fleet: FleetNumbers | None = None


# --- the past ---------------------------------------------------------------------------------------------------------


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """An event at a moment of a series."""

    when: float
    kind: str
    """evicted, damaged, failover, reloaded or reset."""
    count: int
    words: str


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Hits, misses and the others over time, in columns: item n covers the `step` seconds that begin at
    `start + n * step`."""

    range: str
    start: float
    step: int
    hits: list[int]
    misses: list[int]
    bytes_served: list[int]
    evictions: list[int]
    remade: list[int]
    seconds_saved: list[float]
    seconds_compiled: list[float]
    used_bytes: list[int | None]
    """The store's size at the end of the step; None where nothing was recorded."""
    marks: list[Mark]


# --- the expensive parts ----------------------------------------------------------------------------------------------


class EntryRow(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in a list."""

    path: str
    name: str
    namespace: str
    group: str
    kind: str
    """kernel, graph, autograd, model, driver or other."""
    bytes: int
    """Its size on disk."""
    files: int
    hits: int
    used: float
    made: float
    cost: float | None
    pinned: bool
    uid: int
    run: int


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of a namespace that belong together: to a model's line, else to a kernel's name, else to a folder."""

    name: str
    what: str
    """model, kernel, folder, or rest: everything that did not fit into the list."""
    entries: int
    bytes: int
    hits: int
    cost: float
    """Seconds that it took to make its entries, as far as known."""


class NamespacePart(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace with its groups, the largest first."""

    name: str
    entries: int
    bytes: int
    hits: int
    cost: float
    groups: list[Group]


class Filling(msgspec.Struct, frozen=True, kw_only=True):
    """What fills a mount."""

    when: float
    complete: bool
    """Whether all names are known; if not, another look gets further."""
    namespaces: list[NamespacePart]
    biggest: list[EntryRow]
    costliest: list[EntryRow]


class CauseRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of misses."""

    kind: str
    words: str
    certain: bool
    counts: str
    """What was compiled because of it: 2 graphs, 1 kernel."""
    entries: int
    seconds: float | None
    names: str
    paths: list[str]
    """A few of the entries."""


class Causes(msgspec.Struct, frozen=True, kw_only=True):
    """Why something had to be compiled: during a run, or within a time."""

    run: RunInfo | None
    since: float | None
    rows: list[CauseRow]
    """Ordered by the number of entries, largest first."""
    advice: list[str]
    explained: int
    total: int
    """How many kernels and graphs were compiled; more than `explained` where there are very many."""


class Kernels(msgspec.Struct, frozen=True, kw_only=True):
    """Compiled kernels: the most recently used, the costliest and the largest, or the results of a search."""

    rows: list[KernelRow]
    total: int
    complete: bool


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A text whose lines belong to lines of a source file."""

    title: str
    first: int
    """The number of the first line."""
    lines: list[str]
    places: list[int]
    """For each line, the line of the source file that it comes from; 0 if none. Equal numbers belong together."""
    note: str = ""


class Sibling(msgspec.Struct, frozen=True, kw_only=True):
    """Another kernel of the same name, or graph of the same kind, and how it differs."""

    path: str
    differs: list[Told]
    hits: int
    used: float


class EntryPage(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one entry."""

    path: str
    name: str
    kind: str
    facts: dict[str, str]
    pinned: bool = False
    why: Explanation | None = None
    source: Listing | None = None
    code: Listing | None = None
    """The PTX of a kernel."""
    graph: str = ""
    """The path of the graph that runs a kernel."""
    graph_text: str = ""
    model: str = ""
    siblings: list[Sibling] = []
    problem: str = ""
    """Why its files cannot be read."""


class MountRow(msgspec.Struct, frozen=True, kw_only=True):
    """A mount of this host."""

    mountpoint: str
    state: str
    """As in `Headline`, or `another user's`."""
    own: bool
    store: str = ""
    engine: str = ""
    policy: str = ""
    version: str = ""
    restarts: int = 0
    started: float = 0.0
    used_bytes: int | None = None
    max_bytes: int | None = None
    hit_rate: float | None = None
