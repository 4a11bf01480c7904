"""For a bucket that is a local folder: notices when another folder replaces the one that an agent may write to.

Landlock lets an agent write to the folder that existed when it started, and to no other. Only another agent can write
to a disk that is mounted over that folder, or to a folder that is made again. But if the folder held a bucket and is
now empty, its disk is not mounted: anything written there would be hidden once the disk is back.
"""

from __future__ import annotations

import os
import shlex

from kcachefs import libc
from kcachefs.errors import FleetMissing
from kcachefs.fleet import bucket_urls
from kcachefs.fleet.bucket_layout import OBJECTS, SETTINGS

LOOK_SECONDS = 2.0
"""How often an agent looks at the folder."""


class BucketFolder:
    """The bucket's local folder as it was when this object was made; does nothing for other buckets. Any thread."""

    def __init__(self, url: str) -> None:
        where = bucket_urls.parse(url)
        self.path = where.path if where.scheme == "file" else ""
        self._url = url
        self._first = self._now()
        self._held_bucket = self._first is not None and self._holds_bucket()

    def is_another(self) -> bool:
        """Whether another folder is there now. Without any folder, another agent could do no more than this one."""
        now = self._now()
        return now is not None and now != self._first and not self._is_bare(now)

    def check(self) -> None:
        """Raise FleetMissing if a bucket was there, and only an empty folder is there now."""
        if self._is_bare(self._now()):
            remedy = f"mount the disk that it is on, or start anew with: kcachefs fleet init {shlex.quote(self._url)}"
            raise FleetMissing(f"{self._url}: holds nothing any more; {remedy}")

    def _is_bare(self, now: tuple[int, int, int] | None) -> bool:
        if now is None:
            return False
        if now == self._first:
            self._held_bucket = self._held_bucket or self._holds_bucket()
            return False
        return self._held_bucket and not self._holds_bucket()

    def _holds_bucket(self) -> bool:
        return any(os.path.exists(os.path.join(self.path, name)) for name in (SETTINGS, OBJECTS))

    def _now(self) -> tuple[int, int, int] | None:
        if not self.path:
            return None
        try:
            found = os.stat(self.path)
            # A disk that is unmounted and mounted again may get the same numbers.
            return found.st_dev, found.st_ino, libc.mount_id(os.fsencode(self.path))
        except OSError:
            return None
