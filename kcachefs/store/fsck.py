"""fsck: checks whether a store is consistent, and repairs it by dropping what cannot be trusted.

A file whose bytes are gone or wrong loses its names and its inode, so that the framework compiles it again. Counts are
recomputed, and everything that nothing refers to is removed. Nothing intact is lost: before a file is dropped because
its object's record is gone, the volumes are searched for the object's trailer.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from kcachefs.errors import NotAStore, PartMissing, StoreBusy
from kcachefs.store import salvage
from kcachefs.store.checks import CHECKS as FILE_CHECKS
from kcachefs.store.checks import check_content
from kcachefs.store.entry_checks import (
    check_entries,
    check_grouped_entries,
    check_groups,
    check_makings,
    check_namespaces,
    check_order,
)
from kcachefs.store.header import do_without, locked, read_header, refuse_foreign, replace_damaged_header
from kcachefs.store.inspection import Finding, Inspection, Progress, Report
from kcachefs.store.lmdb_file import compact_lmdb, structure_problems
from kcachefs.store.places import HEADER, misplaced, misplaced_inside, set_aside
from kcachefs.store.store import Options, Store

CHECKS = (
    *FILE_CHECKS,
    check_grouped_entries,
    check_entries,
    check_order,
    check_namespaces,
    check_groups,
    check_makings,
)


def run(path: Path, *, repair: bool = False, progress: Progress = lambda label, done, total: None) -> Report:
    """Check the store at `path`. Nobody may have it open."""
    report = Report(str(path))
    refuse_foreign(path)
    if not (
        _check_header(path, report, repair)
        and _check_places(path, report, repair)
        and _check_structure(path, report, repair, progress)
    ):
        return report
    opened = _open(path, report, repair)
    if opened is None:
        return report
    with opened as store:
        for check in CHECKS:
            check(Inspection(store, report, repair, progress))
        if repair and report.findings:
            left = Report(str(path))  # the findings of a second pass were not repaired
            for check in CHECKS:
                if check is not check_content:
                    check(Inspection(store, left, False, progress))
            report.findings += left.findings
        store.fold()
        report.objects = store.totals().objects
        report.inodes = sum(1 for _ in store.catalog.walk(b"i"))
    if repair:
        with contextlib.suppress(StoreBusy), locked(path):  # somebody else may have opened the store by now
            compact_lmdb(path / "catalog")
    return report


def _check_header(path: Path, report: Report, repair: bool) -> bool:
    """Whether the store has a usable header, after a repair if need be."""
    try:
        read_header(path)
        return True
    except FileNotFoundError:
        raise NotAStore(f"{path}: there is no store here") from None
    except NotAStore as error:
        if not (path / "catalog").is_dir() and not (path / "volumes").is_dir():
            raise
        finding = Finding("header", HEADER, str(error), "set aside and written again")
    report.findings.append(finding)
    if repair:
        with locked(path):
            replace_damaged_header(path)
        finding.repaired = True
    return repair


def _check_places(path: Path, report: Report, repair: bool) -> bool:
    """Whether files and directories are where the store expects them, after a repair if need be."""
    with locked(path):
        wrong = [*misplaced(path), *misplaced_inside(path)]
        for one, problem in wrong:
            finding = Finding("place", str(one), problem, "moved to the quarantine")
            report.findings.append(finding)
            if repair:
                set_aside(path, one)
                finding.repaired = True
    return repair or not wrong


def _open(path: Path, report: Report, repair: bool) -> Store | None:
    """Open the store itself; None if a part that it needs is missing and `repair` is not set."""
    while True:
        try:
            return Store(path, Options(create=False, background=False))
        except PartMissing as error:
            part = error.part
        finding = Finding("place", str(part), "is missing, with what it held", "made again, empty")
        report.findings.append(finding)
        if not repair:
            return None
        with locked(path):
            do_without(path, part)
        finding.repaired = True


def _check_structure(path: Path, report: Report, repair: bool, progress: Progress) -> bool:
    """Whether the catalog can be opened and walked without crashing LMDB, after a repair if need be."""
    with locked(path):
        progress("catalog", 0, 1)
        problems = structure_problems(path / "catalog")
        progress("catalog", 1, 1)
        if not problems:
            return True
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        finding = Finding("structure", "catalog", f"LMDB's tree is damaged: {problems[0]}{more}", "")
        report.findings.append(finding)
        if repair:
            finding.remedy = salvage.rebuild_catalog(path)
            finding.repaired = True
        else:
            finding.remedy = "set aside; what can be read is kept, and objects are found again in the volumes"
        return repair
