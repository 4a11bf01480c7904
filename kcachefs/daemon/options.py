"""Every option of a mount: its name, what it accepts, its default, and whether a live mount can change it.

One table for the command line, fstab, the configuration files, the settings that a store keeps, and `kcachefs set`:
whatever one of them accepts, all of them do, in the same words.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from kcachefs import config
from kcachefs.core.limits import GRACE_SECONDS, LEAST_MAX_SIZE, Limits, check
from kcachefs.core.sharing import POLICIES, parse_writers
from kcachefs.daemon.logs import FORMATS, LEVELS
from kcachefs.daemon.registry import MountConfig
from kcachefs.engines import ENGINES
from kcachefs.errors import UsageError
from kcachefs.fleet.options import MODES
from kcachefs.fleet.scopes import checked

_ID_MAX = (1 << 32) - 2
_PORT_MAX = 65535
_COUNT_MAX = 1 << 62
_YEAR_SECONDS = 366 * 86400.0


class Option(NamedTuple):
    """One option. `read` turns what people write into the value, or raises UsageError."""

    name: str
    """Spelled as in fstab and the configuration files; the command line has `-` for `_`."""
    read: Callable[[str, Any], Any]
    value_in: Callable[[MountConfig], Any]
    """Its value in the configuration of a mount."""
    default: Any = None
    is_live: bool = False
    """Whether `kcachefs set` can change it while the mount is in use."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def value(self, given: Any) -> Any:
        return self.read(self.flag, given)

    @property
    def is_flag(self) -> bool:
        return self.read is _flag

    @property
    def is_repeatable(self) -> bool:
        return self.read in (_sizes, _writers, _ranges, _keys)


def option_named(name: str) -> Option:
    """The option of that name, written with `-` or with `_`; otherwise an error that suggests one."""
    known = {one.name: one for one in OPTIONS}
    wanted = name.replace("-", "_")
    if wanted not in known:
        close = difflib.get_close_matches(wanted, known, 1)
        raise UsageError(f"{name}: there is no such option" + (f"; did you mean {close[0]}?" if close else ""))
    return known[wanted]


def limits_of(values: Mapping[str, Any], before: Limits | None = None) -> Limits:
    """The limits after these values are applied to those `before`; refuses limits that contradict each other."""
    old = before if before is not None else Limits()
    return check(
        Limits(
            max_size=values.get("max_size", old.max_size),
            max_files=values.get("max_files", old.max_files),
            max_size_per_uid=values.get("max_size_per_uid", old.max_size_per_uid),
            tenant_ranges=values.get("tenant_range", old.tenant_ranges),
            min_free=values.get("min_free", old.min_free),
            grace=values.get("grace", old.grace),
            floors=_merged(old.floors, values.get("floor")),
            ceilings=_merged(old.ceilings, values.get("ceiling")),
        )
    )


def _merged(old: dict[str, int], new: Mapping[str, int | None] | None) -> dict[str, int]:
    """Sizes by namespace after a change; None removes the size of a namespace."""
    return {name: size for name, size in {**old, **(new or {})}.items() if size is not None}


# --- reading values ---------------------------------------------------------------------------------------------------


def _size(flag: str, given: Any, *, least: int = 0) -> int:
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise UsageError(f"{flag} {given}: is not a size; write it like 20GiB")
    try:
        return config.parse_size(str(given), least=least)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None


def _quota(flag: str, given: Any) -> int:
    size = _size(flag, given, least=1)
    if size < LEAST_MAX_SIZE:
        least = config.format_size(LEAST_MAX_SIZE)
        raise UsageError(f"{flag} {given}: is too small for any cache; give at least {least}")
    return size


def _quota_or_none(flag: str, given: Any) -> int:
    return _quota(flag, given) if _size(flag, given) else 0


def _count(flag: str, given: Any) -> int:
    number = _integer(given)
    if number is None or not 0 <= number < _COUNT_MAX:
        raise UsageError(f"{flag} {given}: is not a number of files; write it like 100000")
    return number


def _seconds(flag: str, given: Any, *, least: float = 0.0) -> float:
    try:
        seconds = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        seconds = math.nan
    if not least <= seconds <= _YEAR_SECONDS:
        raise UsageError(f"{flag} {given}: is not a valid number of seconds; give one from {least:g} up")
    return seconds


def _patience(flag: str, given: Any) -> float:
    return _seconds(flag, given, least=1.0)


def _sizes(flag: str, given: Any) -> dict[str, int | None]:
    """Sizes by namespace: a table, or texts like triton=2GiB."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        pairs = []
        for text in [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else [given]:
            name, equals, size = str(text).partition("=")
            if not equals or not name:
                raise UsageError(f"{flag} {text}: is not NAMESPACE=SIZE; write it like triton=2GiB")
            pairs.append((name, size))
    return {name: None if size in ("none", None) else _size(f"{flag} {name}", size) for name, size in pairs}


def _writers(flag: str, given: Any) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
        raise UsageError(f"{flag} {given}: is not a user or a group; write it like uid:1000,gid:50")
    parse_writers(texts, flag)
    return list(texts)


def _ranges(flag: str, given: Any) -> tuple[tuple[int, int], ...]:
    """Ranges of users like 100000:65536; none may overlap another."""
    ranges: list[tuple[int, int]] = []
    for text in filter(None, ",".join(map(str, given if isinstance(given, list | tuple) else [given])).split(",")):
        found = re.fullmatch(r"(\d{1,10}):(\d{1,10})", text.strip(), re.ASCII)
        first, count = (int(found[1]), int(found[2])) if found is not None else (0, 0)
        if not count or first + count - 1 > _ID_MAX:
            raise UsageError(f"{flag} {text}: is not a range of users; write FIRST:COUNT, like 100000:65536")
        if any(first < other + size and other < first + count for other, size in ranges):
            raise UsageError(f"{flag} {text}: overlaps another one, so its users would belong to two tenants")
        ranges.append((first, count))
    return tuple(ranges)


def _url(flag: str, given: Any) -> str:
    from kcachefs.fleet import bucket_urls

    try:
        bucket_urls.parse(str(given))
    except UsageError as error:
        raise UsageError(f"{flag} {error}") from None
    return str(given)


def _keys(flag: str, given: Any) -> list[str]:
    """Public keys as texts, or files that hold one."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) and one for one in texts):
        raise UsageError(f"{flag} {given}: is neither a public key nor a file that holds one")
    return [one if one.startswith("kcachefs-ed25519:") else os.path.abspath(one) for one in texts]


def _file(flag: str, given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise UsageError(f"{flag} {given}: is not a file")
    return os.path.abspath(given)


def _scope(flag: str, given: Any) -> str:
    try:
        return checked(str(given))
    except UsageError as error:
        raise UsageError(f"{flag} {error}") from None


def _flag(flag: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise UsageError(f"{flag} {given}: is either on or off; write true or false")
    return given


def _id(flag: str, given: Any) -> int:
    number = _integer(given)
    if number is None or number < 0:
        raise UsageError(f"{flag} {given}: is not a number")
    if number > _ID_MAX:
        raise UsageError(f"{flag} {given}: is not a possible id; the largest is {_ID_MAX}")
    return number


def _address(flag: str, given: Any) -> str:
    """ADDRESS:PORT with a numeric address; without one, this host only. Looking up names could take long."""
    host, _, port = str(given).rpartition(":")
    host = {"": "127.0.0.1", "localhost": "127.0.0.1"}.get(host, host)
    number = _integer(port)
    try:
        address = ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        number = None
    if number is None or number > _PORT_MAX:
        raise UsageError(f"{flag} {given}: is not ADDRESS:PORT; write it like 127.0.0.1:9753 or [::1]:9753")
    return f"[{address}]:{number}" if address.version == 6 else f"{address}:{number}"


def _mask(flag: str, given: Any) -> str:
    if not isinstance(given, str) or not re.fullmatch("[0-7]{1,4}", given):
        raise UsageError(f"{flag} {given}: is not an octal mask; write it like 022")
    return given


def _integer(given: Any) -> int | None:
    if isinstance(given, str) and re.fullmatch(r"\d{1,20}", given, re.ASCII):
        return int(given)
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _one_of(words: Iterable[str]) -> Callable[[str, Any], str]:
    known = tuple(words)

    def read(flag: str, given: Any) -> str:
        if given not in known:
            raise UsageError(f"{flag} {given}: is not known; use {', '.join(known[:-1])} or {known[-1]}")
        return str(given)

    return read


# --- the table --------------------------------------------------------------------------------------------------------


def _octal(config: MountConfig) -> str | None:
    return None if config.sharing.umask is None else f"{config.sharing.umask:03o}"


def _named_writers(config: MountConfig) -> list[str]:
    sharing = config.sharing
    return [f"uid:{uid}" for uid in sharing.writer_uids] + [f"gid:{gid}" for gid in sharing.writer_gids]


def _named_ranges(config: MountConfig) -> list[str]:
    return [f"{first}:{count}" for first, count in config.limits.tenant_ranges]


def _of_fleet(name: str) -> Callable[[MountConfig], Any]:
    return lambda config: None if config.fleet is None else getattr(config.fleet, name) or None


def _fleet_writers(config: MountConfig) -> list[str]:
    if config.fleet is None:
        return []
    return [f"uid:{uid}" for uid in config.fleet.writer_uids] + [f"gid:{gid}" for gid in config.fleet.writer_gids]


OPTIONS = (
    Option("max_size", _quota, lambda c: c.limits.max_size, config.DEFAULT_MAX_SIZE, is_live=True),
    Option("max_files", _count, lambda c: c.limits.max_files, 0, is_live=True),
    Option("min_free", _size, lambda c: c.limits.min_free, config.DEFAULT_MIN_FREE, is_live=True),
    Option("grace", _seconds, lambda c: c.limits.grace, GRACE_SECONDS, is_live=True),
    Option("floor", _sizes, lambda c: c.limits.floors, {}, is_live=True),
    Option("ceiling", _sizes, lambda c: c.limits.ceilings, {}, is_live=True),
    Option("max_size_per_uid", _quota_or_none, lambda c: c.limits.max_size_per_uid, 0, is_live=True),
    Option("tenant_range", _ranges, _named_ranges, []),
    Option("policy", _one_of(POLICIES), lambda c: c.sharing.policy),
    Option("writers", _writers, _named_writers, []),
    Option("base", _flag, lambda c: c.sharing.base, False),
    Option("uid", _id, lambda c: c.sharing.uid),
    Option("gid", _id, lambda c: c.sharing.gid),
    Option("umask", _mask, _octal),
    Option("idmap", _flag, lambda c: c.sharing.idmap, False),
    Option("engine", _one_of(ENGINES), lambda c: c.engine, "direct"),
    Option("read_only", _flag, lambda c: c.sharing.policy == "read-only", False),
    Option("allow_other", _flag, lambda c: c.allow_other),
    Option("hang_timeout", _patience, lambda c: c.hang_seconds, 30.0),
    Option("metrics_gid", _id, lambda c: c.metrics_gid),
    Option("metrics_listen", _address, lambda c: c.metrics_listen or None),
    Option("fleet", _url, _of_fleet("url")),
    Option("fleet_mode", _one_of(MODES), lambda c: c.fleet.mode if c.fleet is not None else "read", "read"),
    Option("trust", _keys, lambda c: list(c.fleet.trust) if c.fleet is not None else [], []),
    Option("fleet_key", _file, _of_fleet("key")),
    Option("fleet_writers", _writers, _fleet_writers, []),
    Option("fleet_scope", _scope, _of_fleet("scope")),
    Option("bytecode", _one_of(("auto", "on", "off")), lambda c: c.bytecode, "auto"),
    Option("log_format", _one_of(FORMATS), lambda c: c.log_format, "text"),
    Option("log_level", _one_of(LEVELS), lambda c: c.log_level, "info", is_live=True),
)
SHARING = ("policy", "writers", "base", "uid", "gid", "umask", "idmap", "read_only")
"""Options that belong to a policy: once a source has named a policy, those of lower-priority sources are ignored."""
LIVE = tuple(one for one in OPTIONS if one.is_live)
