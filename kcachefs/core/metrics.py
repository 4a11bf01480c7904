"""Statistics in Prometheus' text format, each metric with its meaning and its type.

No label has an unbounded number of values: each framework's namespace has a value of its own, and so do the first few
folders that somebody made next to them. All further folders are added up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from kcachefs.core.layouts import NAMESPACES
from kcachefs.core.report import Activity, Numbers, Statistics, added
from kcachefs.core.request_times import BOUNDS
from kcachefs.printable import printable

OTHERS_MAX = 32
"""How many namespaces that belong to no framework have a label of their own."""
OTHERS = "(others)"
"""The label of all other namespaces, added up."""

_BY_NAMESPACE = {
    "entries": ("entries", "gauge", "Entries."),
    "files": ("files", "gauge", "Files in entries."),
    "plain_bytes": ("plain_bytes", "gauge", "Size of the files as readers see it."),
    "stored_bytes": ("stored_bytes", "gauge", "What the files take compressed; shared bytes count for each file."),
    "compression_ratio": ("compression_ratio", "gauge", "Plain bytes divided by stored bytes."),
    "hits_total": ("hits", "counter", "Uses of an entry by somebody other than its writer."),
    "misses_total": ("misses", "counter", "Entries that were written because they were not there."),
    "hit_ratio": ("hit_rate", "gauge", "Hits divided by hits and misses together."),
    "served_bytes_total": ("bytes_served", "counter", "Plain bytes of each entry that was hit, counted with each hit."),
    "evictions_total": ("evictions", "counter", "Entries evicted."),
    "evicted_bytes_total": ("evicted_bytes", "counter", "Stored bytes of the entries evicted."),
    "last_used_timestamp_seconds": ("last_used", "gauge", "When an entry was last used; 0: never."),
}
"""By the metric's name: the field of `Numbers`, its type, its help text."""

_OF_STORE = {
    "objects": ("objects", "Distinct contents."),
    "unique_bytes": ("unique_bytes", "Plain bytes of the distinct contents."),
    "referenced_bytes": ("referenced_bytes", "Plain bytes of the sealed files, counted once per file."),
    "dedup_ratio": ("dedup_ratio", "Referenced bytes divided by unique bytes."),
    "used_bytes": ("used_bytes", "What the store takes on disk, everything included."),
    "unsealed_bytes": ("unsealed_bytes", "What files that are not sealed yet take on disk."),
    "payload_bytes": ("payload_bytes", "The part of used_bytes that holds the content of files."),
    "overhead_bytes": ("overhead_bytes", "The part of used_bytes that records, dictionaries and history take."),
    "slack_bytes": ("slack_bytes", "The part of used_bytes that holds nothing: deleted, or kept for files to come."),
    "max_bytes": ("max_bytes", "The quota."),
    "saved_bytes": ("bytes_saved", "How much less the store takes than its files hold."),
    "nameless_files": ("nameless", "Deleted files that somebody still has open."),
    "damaged_objects": ("damaged", "Objects found damaged since the worker started."),
}


_OF_FLEET = {
    "ready": ("", "gauge", "1 while the bucket can be asked, 0 after a fault or without an agent."),
    "index_age_seconds": ("index_age", "gauge", "Seconds since the index was loaded; -1: there is none."),
    "index_keys": ("index_keys", "gauge", "Entries and folders that the index names."),
    "hits_total": ("hits", "counter", "Entries that somebody waited for, and that came from the fleet."),
    "given_up_total": ("given_up", "counter", "Packs that were asked for and did not come."),
    "entries_total": ("entries", "counter", "Entries brought in, asked for or not."),
    "bytes_total": ("bytes", "counter", "Plain bytes brought in."),
    "waited_seconds_total": ("waited_seconds", "counter", "Time that lookups waited for the hits."),
    "saved_seconds_total": ("saved_seconds", "counter", "What compiling the hits took elsewhere, less the waiting."),
    "requests_total": ("requests", "counter", "Requests to the bucket."),
    "fetched_bytes_total": ("fetched_bytes", "counter", "Bytes of the packs that were fetched."),
    "published_packs_total": ("published", "counter", "Packs that were published."),
    "queue_entries": ("queue", "gauge", "Entries that wait to be published."),
}
"""By the metric's name: the field of `FleetNumbers`, its type, its help text."""


_LABELLED = (
    (
        *("gone_entries_total", "evictions", "reason", "counter"),
        "Entries that went since the worker started: evicted for room, by a command, or lost to damage.",
    ),
    ("store_bytes", "store_bytes", "kind", "gauge", "What the store takes on disk, by kind of data."),
)
"""The metric's name, the field of `Activity`, its label, its type, its help text."""

_OF_ACTIVITY = {
    "remade_total": ("remade", "counter", "Entries compiled again after they had been evicted to make room."),
    "compiled_seconds_total": ("seconds_compiled", "counter", "What making entries cost, as far as it is known."),
    "saved_seconds_total": (
        "seconds_saved",
        "counter",
        "What the entries hit had cost to make, as far as it is known.",
    ),
    "frames_cached": ("frames_cached", "gauge", "Decoded frames kept in memory."),
    "frames_cached_bytes": ("frames_cached_bytes", "gauge", "Bytes that the decoded frames kept in memory take."),
    "waiting_for_sealing_files": ("waiting_for_sealing", "gauge", "Files that were written and wait to be sealed."),
}
"""By the metric's name: the field of `Activity`, its type, its help text."""

_LIMITS = (*(2**bits / 1e9 for bits in BOUNDS), "+Inf")


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon knows about itself."""

    version: str
    engine: str
    policy: str
    started: float
    """When it was mounted, in seconds since 1970."""
    restarts: int = 0
    reloads: int = 0


def as_metrics(numbers: Statistics, about: About | None = None) -> bytes:
    """Every metric, including those about the daemon if `about` is given."""
    lines: list[str] = []
    namespaces = _bounded(numbers.namespaces)
    for name, (field, kind, meaning) in _BY_NAMESPACE.items():
        rows = ((f"namespace={_quoted(label)}", getattr(row, field)) for label, row in namespaces.items())
        lines += _metric(name, kind, meaning, rows)
    for name, (field, meaning) in _OF_STORE.items():
        lines += _metric(f"store_{name}", "gauge", meaning, [("", getattr(numbers.store, field))])
    meaning = "1 while nothing can be written to the store, as on a disk that became read-only."
    lines += _metric("store_failing", "gauge", meaning, [("", int(bool(numbers.store.trouble)))])
    if numbers.fleet is not None:
        for name, (field, kind, meaning) in _OF_FLEET.items():
            value = getattr(numbers.fleet, field) if field else int(numbers.fleet.state == "ready")
            lines += _metric(f"fleet_{name}", kind, meaning, [("", value)])
    requests = ((f"request={_quoted(name)}", count) for name, count in numbers.requests.items())
    lines += _metric("requests_total", "counter", "Requests of the kernel since the worker started.", requests)
    if numbers.activity is not None:
        lines += _of_activity(numbers.activity)
    text = "\n".join(lines).encode() + b"\n"
    return text + about_metrics(about) if about is not None else text


def about_metrics(about: About) -> bytes:
    """What the daemon knows about itself."""
    labels = {"version": about.version, "engine": about.engine, "policy": about.policy}
    uptime = round(max(0.0, time.time() - about.started), 3)
    lines = [
        *_metric("build_info", "gauge", "Always 1; the labels say what serves the mount.", [(_labels(labels), 1)]),
        *_metric("uptime_seconds", "gauge", "Seconds since the mount was made.", [("", uptime)]),
        *_metric("restarts_total", "counter", "Workers that died and were replaced.", [("", about.restarts)]),
        *_metric("reloads_total", "counter", "Workers replaced by kcachefs reload.", [("", about.reloads)]),
    ]
    return "\n".join(lines).encode() + b"\n"


def metric(name: str, kind: str, meaning: str, value: float) -> bytes:
    """One metric without labels."""
    return "\n".join(_metric(name, kind, meaning, [("", value)])).encode() + b"\n"


def _bounded(namespaces: Mapping[str, Numbers]) -> dict[str, Numbers]:
    """The namespaces by printable label. At most `OTHERS_MAX` that belong to no framework keep a label of their own.

    Those are the ones made first, so that no counter jumps.
    """
    found: dict[str, Numbers] = {}
    left = OTHERS_MAX
    for name, row in namespaces.items():
        label = printable(name)
        if label in found:  # two folders look alike when printed: no series may appear twice
            found[label] = added(found[label], row)
        elif label in NAMESPACES or label == "/":
            found[label] = row
        elif left:
            found[label] = row
            left -= 1
        else:
            found[OTHERS] = added(found[OTHERS], row) if OTHERS in found else row
    return found


def _of_activity(activity: Activity) -> Iterator[str]:
    yield from _metric(
        "request_duration_seconds",
        "histogram",
        "From reading a request of the kernel to its reply, since the worker started.",
        _histogram_rows(activity),
        suffixed=True,
    )
    for name, field, label, kind, meaning in _LABELLED:
        rows = ((f"{label}={_quoted(one)}", count) for one, count in getattr(activity, field).items())
        yield from _metric(name, kind, meaning, rows)
    for name, (field, kind, meaning) in _OF_ACTIVITY.items():
        yield from _metric(name, kind, meaning, [("", getattr(activity, field))])


def _histogram_rows(activity: Activity) -> Iterator[tuple[str, float]]:
    for request, latency in activity.latencies.items():
        label, count = f"request={_quoted(request)}", 0
        for bound, more in zip(_LIMITS, latency.counts, strict=True):
            count += more
            yield f'_bucket{{{label},le="{bound}"}}', count
        yield f"_sum{{{label}}}", latency.seconds
        yield f"_count{{{label}}}", count


def _metric(
    name: str, kind: str, meaning: str, rows: Iterable[tuple[str, float]], *, suffixed: bool = False
) -> list[str]:
    """A metric with its rows: labels and a value each or, if `suffixed`, the text that follows the name and a value."""
    full = f"kcachefs_{name}"
    head = [f"# HELP {full} {meaning}", f"# TYPE {full} {kind}"]
    if suffixed:
        return head + [f"{full}{rest} {value}" for rest, value in rows]
    return head + [f"{full}{{{labels}}} {value}" if labels else f"{full} {value}" for labels, value in rows]


def _labels(values: Mapping[str, str]) -> str:
    return ",".join(f"{name}={_quoted(value)}" for name, value in values.items())


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
