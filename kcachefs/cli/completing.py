"""What a shell offers when a word of a command is completed: entries and mounts. Never fails and never waits long."""

from __future__ import annotations

_OFFERED = 200


def complete_entry(incomplete: str) -> list[str]:
    """Paths of entries, and names of kernels; of the only mount, or the one that $KCACHEFS_MOUNT names."""
    from kcachefs.cli import target
    from kcachefs.core.administration import EntryInfo
    from kcachefs.errors import KcachefsError

    try:
        infos = target.call(None, None, "ls", list[EntryInfo])
    except (KcachefsError, OSError):
        return []
    words = {info.path for info in infos} | {info.name.partition(" ")[0] for info in infos if info.name != info.path}
    words |= {info.namespace for info in infos if info.namespace}
    return sorted(word for word in words if word.startswith(incomplete) and word.isprintable())[:_OFFERED]


def complete_mount(incomplete: str) -> list[str]:
    """Mounts of this user, dead ones too."""
    from kcachefs.daemon import registry
    from kcachefs.errors import KcachefsError

    try:
        mounts = [state.mountpoint for state in (*registry.all_mounts(), *registry.dead_mounts())]
    except (KcachefsError, OSError):
        return []
    return [one for one in mounts if one.startswith(incomplete) and one.isprintable()]
