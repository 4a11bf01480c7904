"""The checks of fsck: one small function for each kind of inconsistency, run in the order of `CHECKS`.

The order matters for repair: unreadable records are dealt with first, then the counts are corrected, and only then is
anything else dropped, because dropping relies on the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from kcachefs.errors import RecordDamaged
from kcachefs.store import ledger, salvage
from kcachefs.store.checksum import show_key
from kcachefs.store.inode_numbers import ROOT_INO
from kcachefs.store.inspection import DIRECTORY, Inspection, links_of_folder
from kcachefs.store.listings import Listing
from kcachefs.store.object_records import ObjectRecord, VolumeRecord, object_key, volume_key
from kcachefs.store.records import (
    META_PRIVATE,
    META_RESET,
    NO_DIGEST,
    Content,
    Inode,
    inode_key,
    name_of,
    names_of,
    names_prefix,
    number_of,
    orphan_key,
    pack_name,
    pack_number,
    slot_key,
    spool_key,
    unpack_name,
    unpack_number,
)


def check_records(look: Inspection) -> None:
    """Every record passes its checksum."""
    unreadable = [key for key, raw in look.store.catalog.walk(b"") if raw is None]
    for key in unreadable:
        if key[:1] in b"mtv" and key not in (META_PRIVATE, META_RESET):
            look.report("record", show_key(key), "fails its checksum", "counted again", lambda: None)
        elif key[:1] in b"sa":  # deleting it would free the slot or file that it stands for
            look.report("record", show_key(key), "fails its checksum", "made again", lambda: None)
        else:
            look.report("record", show_key(key), "fails its checksum", "dropped", partial(look.delete, key))
    if unreadable and look.repair:
        _find_again(look, {key[1:] for key in unreadable if key[:1] == b"o"}, held=True)
        look.recount()


def check_accounting(look: Inspection) -> None:
    """Totals and volume records match the objects, and no counter would give out a number that is in use."""
    try:
        wrong = [*_wrong_totals(look), *_wrong_counters(look)]
    except RecordDamaged as error:
        wrong = [("totals", str(error))]
    for thing, problem in wrong:
        look.report("accounting", thing, problem, "counted again", lambda: None)
    if wrong and look.repair:
        look.recount()


def check_references(look: Inspection) -> None:
    """Each object's reference count is the number of inodes and holders that refer to it, and not zero."""
    counted = _wanted(look)
    for digest, record in look.objects():
        refs = counted[digest] + bool(record.flags & ObjectRecord.HELD)
        mend = partial(look.set_references, digest, refs)
        if refs == 0:
            look.report("orphan object", digest.hex(), "nothing refers to it", "removed", mend)
        elif record.refs != refs:
            problem = f"{record.refs} references instead of {refs}"
            look.report("reference count", digest.hex(), problem, "counted again", mend)


def check_content(look: Inspection) -> None:
    """Every object's bytes match its digest."""
    total, objects = look.store.totals().objects, look.store.objects
    for done, (digest, record) in enumerate(look.objects(), 1):
        look.progress("objects", done, max(total, done))
        if record.flags & ObjectRecord.DAMAGED:
            continue
        if (damage := objects.examine(digest)) is not None:
            mend = partial(objects.set_aside, digest, record, damage)
            look.report("digest", digest.hex(), str(damage), "set aside in the quarantine", mend)


def check_dictionaries(look: Inspection) -> None:
    """Every dictionary passes its check. `check_content` finds the objects that need a damaged dictionary."""
    dictionaries = look.store.dictionaries
    for number in dictionaries.numbers():
        if problem := dictionaries.problem(number):
            mend = partial(look.quarantine, dictionaries.path(number))
            look.report("dictionary", dictionaries.path(number).name, problem, "moved to the quarantine", mend)


def check_damaged_objects(look: Inspection) -> None:
    """ContentStore holds no object that was set aside. (The next check covers files that refer to such an object.)"""
    for digest, record in look.objects():
        if record.flags & ObjectRecord.DAMAGED and record.flags & ObjectRecord.HELD:
            mend = partial(look.release, digest)
            look.report("damaged object", digest.hex(), "was set aside and is still held", "released", mend)


def check_missing_objects(look: Inspection) -> None:
    """Every sealed file has its object."""
    lost = {digest for digest in _wanted(look) if look.store.objects.record(digest) is None}
    if look.repair:
        for digest in _find_again(look, lost, held=False):
            look.report("missing object", digest.hex(), "its record was lost", "found again in a volume", lambda: None)
    doomed = {
        ino: f"its object {inode.digest.hex()} is missing or damaged"
        for ino, inode in look.inodes()
        if inode.content == Content.OBJECT and not look.store.objects.exists(inode.digest)
    }
    _drop_files(look, "missing object", doomed)


def check_names(look: Inspection) -> None:
    """Every name is in a directory that can be reached from the root, and its inode exists and has the right type."""
    reached = _reachable(look) | _waiting(look)
    for key, ino, kind in look.names():
        thing = f"{name_of(key)[1]!r} in directory {number_of(key)}"
        inode = look.inode(ino)
        if inode is None:
            problem, mend = f"inode {ino} does not exist", partial(look.drop_name, key, kind)
            look.report("dangling name", thing, problem, "dropped", mend)
        elif number_of(key) not in reached:
            problem, mend = "its directory cannot be reached from the root", partial(look.drop_name, key, kind)
            look.report("dangling name", thing, problem, "dropped", mend)
        elif inode.mode >> 12 != kind:
            problem, fix = f"has another type than inode {ino}", partial(look.put, key, pack_name(ino, inode.mode))
            look.report("name", thing, problem, "corrected", fix)


def check_inodes(look: Inspection) -> None:
    """Every inode can be reached from the root by names, or is recorded as having no name."""
    reached, waiting = _reachable(look), _waiting(look)
    for ino, _ in look.inodes():
        if ino not in reached and ino not in waiting:
            mend = partial(look.drop_inode, ino)
            look.report("orphan inode", f"inode {ino}", "no name leads to it", "removed", mend)
    for ino in waiting:
        if ino in reached or look.inode(ino) is None:
            problem, mend = "is recorded as having no name, which is wrong", partial(look.delete, orphan_key(ino))
            look.report("orphan inode", f"inode {ino}", problem, "corrected", mend)


def check_spool(look: Inspection) -> None:
    """Every unsealed file has its spool file or slot, and the record of it. No other spool or slot record exists.

    Spool files that are missing after a power cut are left to the next mount, which looks at all unsealed files.
    """
    files = set(look.store.spool.numbers())
    recorded = dict([*look.store.catalog.walk(b"s"), *look.store.catalog.walk(b"a")])
    owned: set[bytes] = set()
    doomed: dict[int, str] = {}
    for ino, inode in look.inodes():
        if inode.content not in (Content.SPOOL, Content.SLOT):
            continue
        key = spool_key(inode.spool) if inode.content == Content.SPOOL else slot_key(inode.spool)
        owned.add(key)
        if inode.content == Content.SPOOL and inode.spool not in files and not look.store.lost_power:
            doomed[ino] = f"its spool file {inode.spool} is missing"
        elif recorded.get(key) != pack_number(ino):
            mend = partial(look.put, key, pack_number(ino))
            look.report("spool", _place(key), f"its record does not name inode {ino}", "corrected", mend)
    for key in recorded.keys() - owned:
        look.report("spool", _place(key), "no inode uses it", "freed", partial(look.delete, key))
    _drop_files(look, "spool", doomed)


def check_links(look: Inspection) -> None:
    """Directories record how many names and directories they hold, other inodes how many names they have."""
    names: Counter[int] = Counter()
    folders: Counter[int] = Counter()
    links: Counter[int] = Counter()
    for key, ino, kind in look.names():
        names[number_of(key)] += 1
        folders[number_of(key)] += kind == DIRECTORY
        links[ino] += 1
    waiting = _waiting(look)
    for ino, inode in look.inodes():
        expected = (names[ino], links_of_folder(folders[ino])) if inode.is_dir else (inode.size, links[ino])
        if ino in waiting:
            expected = (inode.size, 0)
        if (inode.size, inode.nlink) != expected:
            problem = f"size {inode.size} and {inode.nlink} links instead of {expected[0]} and {expected[1]}"
            inode.size, inode.nlink = expected
            mend = partial(look.put, inode_key(ino), inode.pack())
            look.report("link count", f"inode {ino}", problem, "corrected", mend)


def check_files(look: Inspection) -> None:
    """Every volume in the catalog has its file, and the store's folders hold no foreign files."""
    present = {*look.store.volumes.numbers(), *look.store.volumes.incoming()}
    for key, raw in look.store.catalog.walk(b"v"):
        if raw is not None and number_of(key) not in present:
            problem, mend = "the file is missing", partial(look.drop_volume, key)
            look.report("volume", f"volume {number_of(key)}", problem, "its record is dropped", mend)
    for stray in look.store.strays():
        mend = partial(look.quarantine, stray)
        look.report("stray file", str(stray), "does not belong to the store", "moved to the quarantine", mend)


def check_history(look: Inspection) -> None:
    """Every slot of the ring files is empty or holds a record that belongs there."""
    for ring in look.store.history.rings():
        for slot in ring.damaged():
            thing = f"slot {slot} of {ring.path.name}"
            look.report("history", thing, "does not hold an intact record", "emptied", partial(ring.clear, slot))


def check_listings(look: Inspection) -> None:
    """Every kept listing is intact, and has its folder's names if it is current. Runs after `check_names`."""
    listings = look.store.listings
    for folder in listings.folders():
        problem = ""
        try:
            listing, inode = listings.read(folder), look.inode(folder)
            if inode is not None and listing.is_of(inode.ctime, inode.size):
                names = names_of(look.store.catalog.scan(names_prefix(folder)))
                # If a name is missing, its record is damaged, which an earlier check has reported.
                if len(names) == inode.size and listing.raw != Listing.of(folder, inode.parent, inode.ctime, names).raw:
                    problem = "has other names than its folder"
        except (OSError, ValueError) as error:
            problem = str(error)
        if problem:
            look.report("listing", listings.path(folder).name, problem, "removed", partial(listings.remove, folder))


CHECKS: tuple[Callable[[Inspection], None], ...] = (
    check_records,
    check_accounting,
    check_references,
    check_dictionaries,
    check_content,
    check_damaged_objects,
    check_missing_objects,
    check_names,
    check_inodes,
    check_spool,
    check_links,
    check_files,
    check_history,
    check_listings,
)


def _wrong_totals(look: Inspection) -> list[tuple[str, str]]:
    catalog = look.store.catalog
    totals, volumes = ledger.count(catalog)
    wrong = []
    if (recorded := ledger.read_totals(catalog)) != totals:
        wrong.append(("totals", f"{recorded} instead of {totals}"))
    for number, counted in volumes.items():
        raw = catalog.get(volume_key(number))
        volume = VolumeRecord.unpack(raw) if raw is not None else VolumeRecord(0, 0)
        if (volume.size, volume.live) != (counted.size, counted.live):
            problem = f"{volume.live} live bytes of {volume.size}, but its objects have {counted.live}"
            wrong.append((f"volume {number}", problem))
    return wrong


def _wrong_counters(look: Inspection) -> list[tuple[str, str]]:
    wrong = []
    for key, number in ledger.next_numbers(look.store.catalog, look.store.volumes, look.store.spool).items():
        raw = look.store.catalog.get(key)
        if number > 1 and (raw is None or unpack_number(raw) < number):
            wrong.append((f"counter {key[1:].decode()}", f"would give out {number - 1}, which is in use"))
    return wrong


def _wanted(look: Inspection) -> Counter[bytes]:
    """How many inodes refer to each digest, for a file's present bytes or for its synced ones."""
    return Counter(inode.digest for _, inode in look.inodes() if inode.digest != NO_DIGEST)


def _find_again(look: Inspection, lost: set[bytes], *, held: bool) -> list[bytes]:
    """Make new records for objects that lost theirs, from the trailers in the volumes; returns those found intact.

    With `held`, objects that no inode refers to get a record too: ContentStore holds them from then on.
    """
    if not lost:
        return []
    wanted, found = _wanted(look), []
    for record, digest in salvage.objects_in(look.store.volumes, lost):
        record.refs = wanted[digest]
        if record.refs == 0 and held:
            record.refs, record.flags = 1, ObjectRecord.HELD
        if record.refs:
            look.put(object_key(digest), record.pack())
            found.append(digest)
    look.recount()
    return [digest for digest in found if look.store.objects.verify(digest)]


def _reachable(look: Inspection) -> set[int]:
    look.store.fold()
    if look.inode(ROOT_INO) is None:
        return set()
    # A folder without a name was removed with everything in it, but has not been cleared out yet.
    waiting = [ino for ino in _waiting(look) if (inode := look.inode(ino)) is not None and inode.is_dir]
    reached, folders = {ROOT_INO}, [ROOT_INO, *waiting]
    while folders:
        for _, raw in look.store.catalog.scan(names_prefix(folders.pop())):
            ino, _ = unpack_name(raw)
            if ino not in reached and (inode := look.inode(ino)) is not None:
                reached.add(ino)
                if inode.is_dir:
                    folders.append(ino)
    return reached


def _waiting(look: Inspection) -> set[int]:
    """Inodes without a name: a program may still have them open, or they are waiting to be cleared out."""
    return {number_of(key) for key, _ in look.store.catalog.walk(b"x")}


def _place(key: bytes) -> str:
    return f"spool file {number_of(key)}" if key[:1] == b"s" else f"slot {number_of(key)}"


def _rest_of_entries(look: Inspection, doomed: dict[int, str]) -> dict[int, str]:
    """The other files of these inodes' entries, except synced ones. They go too: an entry is whole or absent."""
    entries = {inode.entry for ino in doomed if (inode := look.inode(ino)) is not None} - {0}
    if not entries:
        return {}
    return {
        ino: f"another file of its entry {inode.entry} is lost"
        for ino, inode in look.inodes()
        if inode.entry in entries and inode.is_file and ino not in doomed and not inode.flags & Inode.SYNCED
    }


def _drop_files(look: Inspection, check: str, doomed: dict[int, str]) -> None:
    """Drop these inodes, each for the reason given, with all of their names and the other files of their entries."""
    doomed |= _rest_of_entries(look, doomed)
    names: dict[int, list[tuple[bytes, int]]] = {ino: [] for ino in doomed}
    if doomed:
        for key, ino, kind in look.names():
            if ino in doomed:
                names[ino].append((key, kind))

    def drop(ino: int) -> None:
        for key, kind in names[ino]:
            look.drop_name(key, kind)
        look.drop_inode(ino)

    for ino, problem in doomed.items():
        shown = ", ".join(f"{name_of(key)[1]!r} in directory {number_of(key)}" for key, _ in names[ino]) or "no name"
        look.report(
            check, f"inode {ino} ({shown})", problem, "dropped; the framework compiles it again", partial(drop, ino)
        )
