"""Prepares an agent while it still has the rights of its user: reads keys, makes its folder, and confines it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from kcachefs.daemon import privileges
from kcachefs.daemon.bucket_folder import BucketFolder
from kcachefs.daemon.confinement import confine_agent
from kcachefs.fleet import folder_writing, scopes, signing
from kcachefs.fleet.object_storage import open_storage
from kcachefs.fleet.options import FOLDER, FleetOptions
from kcachefs.fleet.timed_storage import TimedStorage


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the supervisor passes to an agent."""

    fleet: FleetOptions
    mountpoint: str
    store: str
    log: str = ""
    log_format: str = "text"
    log_level: str = "info"


class Preparation(NamedTuple):
    """The results of what an agent did while it still had the rights of its user."""

    storage: TimedStorage
    scope: str
    trusted: frozenset[bytes]
    folder: Path
    signer: signing.Signer | None
    gaps: list[str]
    """The rights that it could not give up, in words."""
    bucket_folder: BucketFolder


def prepare(config: AgentConfig) -> Preparation:
    """Do everything that needs the rights of our user, then give them up. Call this before the first thread starts."""
    fleet, folder = config.fleet, Path(config.store) / FOLDER
    scope = scopes.checked(fleet.scope) if fleet.scope else scopes.default_scope()
    trusted = signing.trusted(fleet.trust)
    signer = signing.Signer(Path(fleet.key)) if fleet.publishes else None
    if signer is not None:
        trusted |= {signer.public}
    folder_writing.join_group(fleet.url)
    privileges.drop()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_leftovers(folder)
    bucket_folder = BucketFolder(fleet.url)  # before confinement ties us to the folder there now
    gaps = confine_agent(folder, bucket_folder.path, config.log)
    storage = TimedStorage(open_storage(fleet.url))
    return Preparation(storage, scope, frozenset(trusted), folder, signer, gaps, bucket_folder)


def remove_leftovers(folder: Path) -> None:
    """Remove packs that an agent was checking or making when it died."""
    for leftover in (*folder.glob("*.kcp"), *folder.glob(".*.part")):
        leftover.unlink(missing_ok=True)
