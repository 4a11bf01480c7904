"""A bucket that is a local folder: whether another folder has taken the place of the one that an agent may write to.

Landlock lets an agent write to the folder that was there when it started, and to no other. A disk that is mounted over
that folder, or a folder that is made again, can only be written by another agent.
"""

from __future__ import annotations

import os

from kcachefs import libc
from kcachefs.fleet import bucket_urls


class BucketFolder:
    """The folder of a bucket, as it was when this was made; of other buckets there is none."""

    def __init__(self, url: str) -> None:
        where = bucket_urls.parse(url)
        self.path = where.path if where.scheme == "file" else ""
        self._first = self._now()

    def is_another(self) -> bool:
        """Whether another folder is there now. While there is none, another agent could do no more than this one."""
        return (now := self._now()) is not None and now != self._first

    def _now(self) -> tuple[int, int, int] | None:
        if not self.path:
            return None
        try:
            found = os.stat(self.path)
            # A disk that is unmounted and mounted again may get the same numbers.
            return found.st_dev, found.st_ino, libc.mount_id(os.fsencode(self.path))
        except OSError:
            return None
