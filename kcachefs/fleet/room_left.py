"""How much a mount or a store takes before it evicts anything, by its quota and by every other limit that it has."""

from __future__ import annotations

from dataclasses import dataclass, field

from kcachefs.core.report import StoreNumbers

QUOTA, FILES, USER_QUOTA = "--max-size SIZE", "--max-files N", "--max-size-per-uid SIZE"
"""The option that raises each limit, as it is written after `kcachefs set DIR`."""


@dataclass(slots=True)
class RoomLeft:
    """How much is left of each limit."""

    bytes: dict[str, int]
    """The bytes left, by the option that raises the limit."""
    files: int | None = None
    """How many more files fit; None if their number is not limited."""
    ceilings: dict[str, int] = field(default_factory=dict)
    """The bytes left by namespace, for namespaces that have a ceiling."""

    @classmethod
    def told_by(cls, store: StoreNumbers) -> RoomLeft:
        left = {QUOTA: store.room_bytes or 0}
        if store.room_bytes_of_owner is not None:
            left[USER_QUOTA] = store.room_bytes_of_owner
        return cls(left, store.room_files, dict(store.room_bytes_below_ceilings))

    def take(self, namespace: str, size: int, files: int) -> str:
        """Take room for an entry. If there is not enough, takes none and returns the option that raises the limit."""
        for option, left in self.bytes.items():
            if size > left:
                return option
        if self.files is not None and files > self.files:
            return FILES
        if size > self.ceilings.get(namespace, size):
            return f"--ceiling {namespace}=SIZE"
        self.bytes = {option: left - size for option, left in self.bytes.items()}
        if self.files is not None:
            self.files -= files
        if namespace in self.ceilings:
            self.ceilings[namespace] -= size
        return ""

    def may_fit(self, size: int) -> bool:
        """Whether an entry of that size would fit, unless its namespace has a ceiling."""
        return size <= min(self.bytes.values()) and self.files != 0
