"""Checks the options that a user gave for a mount and turns them into a `MountConfig`. Changes no file, starts nothing.

The value of an option comes from the first of these sources that names it: the command line (or fstab), the settings
that the store keeps, the user's configuration file, the system's, the default.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kcachefs import config
from kcachefs.core.sharing import Sharing, check, parse_writers
from kcachefs.daemon import registry
from kcachefs.daemon.options import OPTIONS, SHARING, limits_of, option_named
from kcachefs.daemon.registry import MountConfig
from kcachefs.engines import mounting
from kcachefs.errors import UsageError
from kcachefs.fleet import signing
from kcachefs.fleet.options import FleetOptions
from kcachefs.mounts import config_files
from kcachefs.mounts.places import check_places
from kcachefs.store import kept_settings

COMMAND_LINE, DEFAULT = "command line", "default"


def mount_settings(directory: Path, store: Path | None = None, given: Mapping[str, Any] | None = None) -> MountConfig:
    """The settings of a mount with these options, by name; raises UsageError for anything that makes no sense.

    Unless something says otherwise, root shares the mount with other users, and so does a user where /etc/fuse.conf
    lets them.
    """
    # realpath stops at a dead mount, and the path need not be resolved beyond that.
    mountpoint = os.path.realpath(directory)
    store_path = os.path.abspath(store or _store_for(mountpoint))
    asked = {name: option_named(name).value(value) for name, value in (given or {}).items()}
    check_places(mountpoint, store_path)
    kept_in = str(Path(store_path) / kept_settings.NAME)
    try:
        kept = config_files.kept(kept_settings.read(Path(store_path)))
    except UsageError as error:
        raise UsageError(f"{kept_in}: {error}; remove the file, and the defaults hold again") from None
    values, origins = _choose([(COMMAND_LINE, asked), (kept_in, kept), *config_files.read_all()])
    if values["idmap"] and values["engine"] != "direct":
        raise UsageError(f"--idmap: does not work with --engine {values['engine']}; leave out one of the two")
    try:
        sharing = _sharing(values)
    except UsageError as error:
        files = sorted({origins[name] for name in SHARING} - {COMMAND_LINE, DEFAULT})
        raise UsageError(f"{', '.join(files)}: {error}" if files else str(error)) from None
    return MountConfig(
        mountpoint=mountpoint,
        store=store_path,
        engine=values["engine"],
        limits=limits_of(values),
        sharing=sharing,
        allow_other=mounting.may_allow_other() if values["allow_other"] is None else values["allow_other"],
        log_format=values["log_format"],
        log_level=values["log_level"],
        hang_seconds=values["hang_timeout"],
        resend=config.use_resend(),
        metrics_gid=values["metrics_gid"],
        metrics_listen=values["metrics_listen"] or "",
        fleet=_fleet(values),
        bytecode=values["bytecode"],
        origins=origins,
    )


def _store_for(mountpoint: str) -> Path:
    """The store of a mount if the user names none: $KCACHEFS_STORE, that of a dead mount there, or the user's own."""
    dead = [Path(state.store) for state in registry.dead_mounts() if state.mountpoint == mountpoint]
    return config.configured_store() or (dead[0] if dead else config.users_store())


def _choose(sources: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[dict[str, Any], dict[str, str]]:
    """The value and the origin of every option; the first source that names an option decides."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, found in sources:
        # Owners, masks and writers fit one policy: if the user chose a policy, those in a file do not belong to it.
        is_policy_chosen = bool(values.get("policy") or values.get("read_only"))
        for name, value in found.items():
            if name not in values and not (is_policy_chosen and name in SHARING):
                values[name], origins[name] = value, origin
    for option in OPTIONS:
        if option.name not in values:
            default = option.default
            values[option.name] = default if default is None else option.value(default)
            origins[option.name] = DEFAULT
    return values, origins


def _sharing(values: Mapping[str, Any]) -> Sharing:
    """How a mount is shared; raises UsageError for combinations that make no sense."""
    policy, read_only, writers = values["policy"] or "", values["read_only"], values["writers"]
    if read_only and policy not in ("", "read-only"):
        raise UsageError(f"--read-only: means --policy read-only, so --policy {policy} contradicts it; drop one")
    uids, gids = parse_writers(writers)
    if values["base"] and not writers and os.geteuid() == 0:
        # In most containers every user is root, so root becomes a writer only if named.
        raise UsageError("--base: when root mounts, name who writes the base with --writers, for example uid:0")
    return check(
        Sharing(
            policy="read-only" if read_only else policy or "shared",
            writer_uids=uids,
            writer_gids=gids,
            base=values["base"],
            uid=values["uid"],
            gid=values["gid"],
            umask=int(values["umask"], 8) & 0o777 if values["umask"] is not None else None,
            idmap=values["idmap"],
        )
    )


def _fleet(values: Mapping[str, Any]) -> FleetOptions | None:
    """How a mount takes part in a fleet; raises UsageError for combinations that make no sense."""
    if values["fleet"] is None:
        for name in ("trust", "fleet_key", "fleet_writers", "fleet_scope"):
            if values[name]:
                raise UsageError(f"{option_named(name).flag}: means nothing without a bucket; name one with --fleet")
        return None
    policy = "read-only" if values["read_only"] else values["policy"] or "shared"
    publishes = values["fleet_mode"] == "publish"
    if policy == "private" and not values["base"]:
        raise UsageError("--fleet: brings entries into the base, and --policy private has none; add --base")
    if policy == "read-only" and publishes:
        raise UsageError("--fleet-mode publish: does not work with --policy read-only, where nothing is compiled")
    if importlib.util.find_spec("obstore") is None:
        raise UsageError("--fleet: needs the package obstore: pip install 'kcachefs[fleet]'")
    key, trusted = "", signing.trusted(values["trust"])
    if publishes:
        key = values["fleet_key"] or str(signing.default_key())
        signing.Signer(Path(key))
    elif not trusted:
        raise UsageError("--fleet: nobody is trusted, so nothing would be taken; name a public key with --trust")
    uids, gids = parse_writers(values["fleet_writers"], "--fleet-writers")
    return FleetOptions(
        url=values["fleet"],
        mode=values["fleet_mode"],
        trust=tuple(values["trust"]),
        key=key,
        writer_uids=tuple(uids),
        writer_gids=tuple(gids),
        scope=values["fleet_scope"] or "",
    )
