"""The checks of `kcachefs doctor`: the host, the places of store and caches, and the mounts. They change nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from kcachefs import config
from kcachefs.daemon import landlock
from kcachefs.doctor import host, places, present_mounts
from kcachefs.doctor.finding import NOTE, OK, PROBLEM, Finding
from kcachefs.engines import mounting
from kcachefs.errors import UsageError

__all__ = ["NOTE", "OK", "PROBLEM", "Finding", "examine"]


def examine(store: Path | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Every finding, beginning with what mounting depends on; `store` is the default store if it is None."""
    yield from host.fuse_device()
    yield from host.mount_helper()
    yield from host.sharing_with_others(Path("/etc/fuse.conf"))
    yield from host.kernel(os.uname().release)
    yield from host.confinement(landlock.version())
    yield from host.framework_versions()
    try:
        place = Path(store or config.default_store()).absolute()
    except UsageError as error:  # a user without a home, as in many containers
        message, _, remedy = str(error).partition("; ")
        yield Finding(NOTE, "store", message, remedy)
    else:
        yield from places.store_location(place)
        yield from places.configuration(place)
    yield from present_mounts.mounts(mounting.mounts())
    yield from places.cache_locations(environ)
    yield from places.header_link()
    yield from places.bytecode(environ)
