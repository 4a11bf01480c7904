"""`kcachefs fleet status`, `ls`, `push` and `pull`: show what a bucket holds, and carry entries there and back."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kcachefs import config
from kcachefs.cli import target
from kcachefs.cli.fleet_setup import Scope, Url, chosen_url, chosen_url_and
from kcachefs.cli.pack import LEVEL, Key, Level, Patterns, Trust, refuse_unread, view_of
from kcachefs.cli.printing import INTERRUPTED, bar, brought_in, complain, counted, print_json
from kcachefs.cli.unpack import Into, Stopping, target_of, where_to_mount
from kcachefs.errors import FleetMissing, KcachefsError, PackError, UsageError, describe
from kcachefs.printable import printable

if TYPE_CHECKING:
    from kcachefs.fleet.bucket import Bucket
    from kcachefs.fleet.key_index import KeyIndex
    from kcachefs.fleet.pack_records import PackReference, SignedRecord
    from kcachefs.fleet.targets import Target
    from kcachefs.fleet.unpacking import Unpacked
    from kcachefs.frameworks.copying import Skipped

_USED_DAYS = 10
"""Entries used within this many days are worth renewing."""
_DAY = 86400.0
_WAIT = 90
"""Seconds: longer than the lifetime of a claim."""

Packs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PACK]...", help="Names of packs, or their first characters.", show_default=False),
]


def status(url: Url = None, trust: Trust = None, as_json: target.Json = False) -> None:
    """Show what a bucket holds for each kind of node, and how much of it a trusted key signed."""
    from kcachefs.cli.tables import Table, show
    from kcachefs.fleet.bucket import read_settings
    from kcachefs.fleet.bucket_layout import scopes_in
    from kcachefs.fleet.object_storage import open_storage

    url = chosen_url(url)
    storage = open_storage(url, retries=2)
    rows = []
    for name in scopes_in(storage):
        with _bucket(url, name, trust, needs_trust=False) as bucket:
            # In this order: a record is written after its pack, so a pack that is missing from the later listing is
            # gone.
            found = bucket.reader.survey()
            listed = list(storage.objects(bucket.layout.packs))
            there = {bucket.layout.placed(one.key) for one in listed}
            references = [one.reference for one in found.records]
            lost = sum(found.still_has(one) and one.place not in there for one in references)
            rows.append(_ScopeFacts.of(name, found.records, sum(one.size for one in listed), len(listed), lost))
    days = read_settings(storage).days
    if as_json:
        print_json({"url": url, "days": days, "scopes": [one._asdict() for one in rows]})
        return
    table = Table(("scope", "newest"), ("packs", "size", "trusted", "entries", "unpacked"))
    for one in rows:
        sizes = (config.format_size(one.bytes), config.format_size(one.plain_bytes))
        counts = (str(one.trusted_packs), f"{one.entries:,}")
        table.add(printable(one.scope), one.newest or "-", str(one.packs), sizes[0], *counts, sizes[1])
    notes = [f"what nobody renews is deleted after {days} days; this host is {_own_scope()}"]
    if lost := sum(one.lost_packs for one in rows):
        notes.append(f"{counted(lost, 'pack')} listed but gone: push again from where it was compiled")
    show(table, notes)


class _ScopeFacts(NamedTuple):
    """The contents of a bucket for one kind of node."""

    scope: str
    packs: int
    bytes: int
    trusted_packs: int
    """Packs with a record that a trusted key signed."""
    entries: int
    plain_bytes: int
    compile_seconds: float
    oldest: str
    newest: str
    lost_packs: int
    """Packs that are gone although their records still exist."""

    @classmethod
    def of(cls, scope: str, records: list[SignedRecord], size: int, packs: int, lost: int) -> _ScopeFacts:
        days = sorted(one.day for one in records) or [""]
        return cls(
            scope=scope,
            packs=packs,
            bytes=size,
            trusted_packs=len(records),
            entries=len({key for one in records for key in _keys(one)}),
            plain_bytes=sum(one.record.plain for one in records),
            compile_seconds=sum(one.record.compile_ms for one in records) / 1000,
            oldest=days[0],
            newest=days[-1],
            lost_packs=lost,
        )


def ls(
    url: Url = None,
    packs: Packs = None,
    trust: Trust = None,
    scope: Scope = None,
    as_json: target.Json = False,
) -> None:
    """List the packs that a trusted key published, newest first; with names of packs, the entries in them."""
    from kcachefs.cli.tables import Table, show

    url, packs = chosen_url_and(url, packs)
    with _bucket(url, scope, trust) as bucket:
        records = sorted(bucket.reader.survey().records, key=lambda one: (one.day, one.record.pack), reverse=True)
        if not records:
            bucket.check_answers()
        if packs:
            _show_entries(bucket, _named([one.reference for one in records], packs), as_json)
            return
    if as_json:
        print_json([{**_facts(one), "facts": one.record.facts} for one in records])
        return
    table = Table(("day", "pack", "for"), ("entries", "size", "unpacked", "compiled in"))
    for one in records:
        facts = _facts(one)
        table.add(
            one.day,
            one.record.pack,
            printable(", ".join(one.record.facts.get("target", [])) or "-"),
            f"{facts['entries']:,}",
            config.format_size(one.record.size),
            config.format_size(one.record.plain),
            f"{one.record.compile_ms / 1000:.1f} s" if one.record.compile_ms else "-",
        )
    show(table, [f"{counted(len(records), 'pack')} for {bucket.layout.scope}"])


def _show_entries(bucket: Bucket, chosen: list[PackReference], as_json: bool) -> None:
    from kcachefs.fleet import packfile

    found = []
    for reference in chosen:
        path = bucket.fetch_pack(reference)
        with packfile.opened(path, bucket.trusted) as pack:
            found += [
                (reference.pack, one.label, sum(file.size for file in one.files)) for one in pack.manifest.entries
            ]
        path.unlink()
    if as_json:
        print_json([{"pack": pack, "path": label, "bytes": size} for pack, label, size in found])
        return
    for _, label, size in found:
        print(printable(f"{label}  {config.format_size(size)}"))


def push(
    url: Url = None,
    wanted: Patterns = None,
    key: Key = None,
    trust: Trust = None,
    scope: Scope = None,
    level: Level = LEVEL,
    wait: Annotated[
        int,
        typer.Option(min=0, max=3600, metavar="SECONDS", help="How long to wait for a node that publishes the same."),
    ] = _WAIT,
    mount: target.Mount = None,
    store: target.Store = None,
    as_json: target.Json = False,
) -> None:
    """Publish entries that the bucket does not have, and renew those that are used and would soon be deleted there.

    Exits with 1 if entries are left to another node that publishes them, and with 3 if some could not be read.
    """
    from kcachefs.fleet import finding, signing
    from kcachefs.fleet.publishing import Publisher, key_of
    from kcachefs.fleet.renewing import renew

    url, wanted = chosen_url_and(url, wanted)
    signer = signing.Signer(key or signing.default_key())
    used = _used(mount, store)
    left_out: list[Skipped] = []
    with _bucket(url, scope, trust, signer.public) as bucket, view_of(mount, store) as view:
        entries = finding.find(view, wanted or [], left_out.append)
        if not entries:
            refuse_unread(left_out)
            raise UsageError("there is nothing to publish; see: kcachefs ls")
        publisher = Publisher(bucket, signer)
        with bar("publishing", sum(one.bytes for one in entries)) as advance:

            def waits(count: int) -> None:
                those = counted(count, "entry", "entries")
                complain(f"kcachefs: another node has claimed {those}; waiting for it, at most {wait} s")

            done = publisher.publish_patiently(
                view, entries, wait=wait, waits=waits, level=level, say=left_out.append, progress=advance
            )
        renewed = renew(bucket, publisher, {key_of(one) for one in entries if one.path in used})
    published = sum(one.size for one in done.packs)
    again = len(renewed.copied) + len(renewed.repacked)
    if as_json:
        facts = {"packs": [one.pack for one in done.packs], "bytes": published, "present": done.present}
        waiting = [one.path for one in done.waiting]
        lines = [printable(str(one)) for one in left_out]
        facts |= {"lost": done.lost, "renewed": again, "waiting": waiting, "left_out": lines}
        print_json({**facts, "scope": bucket.layout.scope})
    else:
        print(brought_in(done.entered, "published", config.format_size(published), done.present, interrupted=False))
        if done.lost:
            print(f"{counted(done.lost, 'pack')} lost by the bucket; what was in them is published again")
        if again:
            print(f"{counted(again, 'pack')} renewed")
        for one in left_out:
            complain(f"kcachefs: {printable(str(one))}")
        if done.waiting:
            count = counted(len(done.waiting), "entry", "entries")
            complain(f"kcachefs: {count} not published: another node has claimed them; run this again in a minute")
    refuse_unread(left_out)
    if done.waiting:
        sys.exit(1)


def pull(
    url: Url = None,
    packs: Packs = None,
    trust: Trust = None,
    scope: Scope = None,
    mount: Into = None,
    store: target.Store = None,
    as_json: target.Json = False,
) -> None:
    """Fetch the packs that trusted keys published for this kind of node, newest first.

    Nothing is evicted for them: what does not fit is left out. Run this as the mount's owner or root: other users
    cannot see how full the mount is. You can interrupt this and run it again: entries that are there already are left
    alone.
    """
    from kcachefs.fleet import unpacking
    from kcachefs.fleet.key_index import KeyIndex

    url, packs = chosen_url_and(url, packs)
    done, bad, unfetched, stopping, interrupted = unpacking.Unpacked(), [], 0, Stopping(), False
    failure: KcachefsError | OSError | None = None
    with _bucket(url, scope, trust) as bucket, target_of(mount, store, stopping) as where:
        bucket.load_index()
        index = KeyIndex.open(bucket.index_path)
        found = index.packs if index is not None else []
        chosen = _named(found, packs) if packs else found
        with bar("fetching", sum(one.size for one in chosen)) as advance:
            try:
                with stopping:
                    for reference in chosen:
                        if done.left_out and not _may_fit(index, reference, where):
                            unfetched += 1
                        else:
                            bad += _fetch_into(bucket, reference, where, done, stopping)
                        advance(reference.size)
            except KeyboardInterrupt:
                interrupted = True
            except (KcachefsError, OSError) as error:
                if not done.unpacked:
                    raise
                failure = error  # first say what was brought in
    if as_json:
        counts = {"unpacked": done.unpacked, "present": done.present, "files": done.files, "bytes": done.bytes}
        refused = [printable(one) for one in bad]
        counts |= {"left_out": done.left_out, "packs_left_out": unfetched}
        failed = printable(describe(failure)) if failure is not None else None
        ended = {"refused": refused, "interrupted": interrupted, "failed": failed}
        print_json({**counts, **ended, "mount": str(where.home)})
    else:
        size = f"{counted(done.files, 'file')}, {config.format_size(done.bytes)}"
        print(brought_in(done.unpacked, "fetched", size, done.present, interrupted=interrupted))
        if hint := where_to_mount(done, where, mount):
            print(hint)
        if done.left_out:
            complain(f"kcachefs: {_left_out(done, unfetched, where)}")
        for line in bad:
            complain(f"kcachefs: {printable(line)}")
    if failure is not None:
        raise failure
    if bad or interrupted:
        sys.exit(INTERRUPTED if interrupted else 1)


def _fetch_into(
    bucket: Bucket, reference: PackReference, where: Target[Any], done: Unpacked, stopping: Stopping
) -> list[str]:
    """Bring one pack in; if it was refused, returns the reason."""
    from kcachefs.fleet import packfile, unpacking

    try:
        with stopping.at_once():
            path = bucket.fetch_pack(reference)
    except (PackError, FleetMissing) as error:
        return [str(error)]
    try:
        with packfile.opened(path, bucket.trusted) as pack:
            unpacking.unpack(pack, where, done, lambda entry: stopping.check(), evicts=False)
    finally:
        path.unlink()
    return []


def _may_fit(index: KeyIndex | None, reference: PackReference, where: Target[Any]) -> bool:
    from kcachefs.fleet import unpacking

    return index is None or unpacking.may_fit(reference.plain, index.entry_counts[reference.place], where.room())


def _left_out(done: Unpacked, packs: int, where: Target[Any]) -> str:
    """The message when there was no room for everything, with advice."""
    from kcachefs.fleet.targets import MountTarget

    those = f"{counted(done.left_out, 'entry', 'entries')} left out"
    those += f" and {counted(packs, 'pack')} not fetched" if packs else ""
    remedy = "mount the store with a larger --max-size, and pull into the mount"
    if isinstance(where, MountTarget):
        options = " ".join(sorted(done.short_of))
        remedy = f"raise the limit with: kcachefs set {shlex.quote(str(where.home))} {options}"
    return printable(f"{those}, for lack of room; {remedy}")


@contextmanager
def _bucket(
    url: str, scope: str | None, trust: list[str] | None, own: bytes = b"", *, needs_trust: bool = True
) -> Iterator[Bucket]:
    """A bucket with a local folder that is deleted when the command ends."""
    from kcachefs.fleet import bucket, object_storage, signing
    from kcachefs.fleet.scratch_folder import scratch_folder

    keys = signing.trusted(trust or ()) | ({own} if own else frozenset())
    with scratch_folder() as folder:
        if needs_trust:
            yield bucket.open_bucket(url, scope or _own_scope(), keys, folder, retries=2)
        else:
            yield bucket.Bucket(object_storage.open_storage(url, retries=2), scope or _own_scope(), keys, folder)


def _own_scope() -> str:
    from kcachefs.fleet import scopes

    return scopes.default_scope()


def _keys(record: SignedRecord) -> list[int]:
    from kcachefs.fleet.key_index import unpacked_keys

    return unpacked_keys(record.record.entries)


def _facts(record: SignedRecord) -> dict[str, Any]:
    from kcachefs.fleet import signing

    told = record.record
    return {
        "day": record.day,
        "pack": told.pack,
        "entries": len(told.entries) // 8,
        "bytes": told.size,
        "plain_bytes": told.plain,
        "compile_seconds": told.compile_ms / 1000,
        "run": told.run,
        "key": signing.public_text(record.signer),
    }


def _named(found: list[PackReference], names: list[str]) -> list[PackReference]:
    """The chosen packs, each once: of a renewed pack, the newest copy."""
    chosen: dict[str, PackReference] = {}
    for name in names:
        meant = [one for one in found if one.pack.startswith(name)]
        if not meant:
            raise UsageError(f"{name}: the bucket has no such pack; see: kcachefs fleet ls")
        for one in meant:
            chosen.setdefault(one.pack, one)
    return list(chosen.values())


def _used(mount: Path | None, store: Path | None) -> set[str]:
    """The recently used entries, by their paths; none if the user may not see them."""
    from kcachefs.core.entry_info import EntryInfo

    try:
        infos = target.call(mount, store, "ls", list[EntryInfo], names=False)
    except KcachefsError:
        return set()
    return {one.path for one in infos if one.used >= time.time() - _USED_DAYS * _DAY}
