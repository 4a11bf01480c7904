"""Writes variables as text that a shell, a file or another program reads back exactly, whatever the paths contain.

A format that cannot express a value raises an error rather than write something that means something else.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from kcachefs.errors import UsageError
from kcachefs.frameworks import headers

_UNGUARDED = """# Nothing guards these variables: while the mount is dead, programs that use them fail.
# The output of kcachefs env --format sh is guarded; it needs a shell that reads it and then starts the program.
"""
"""The text at the top of formats that can hold comments but no conditions."""
_GOES_STALE = """# This volume is the mount itself: it goes stale when the daemon restarts, until the pod restarts too.
# Mount in a folder that is called kcachefs and holds nothing else (/srv/kcachefs/cache): a pod then gets that folder.
"""
_FOLDER_OF_OURS = "kcachefs"
_IN_EVERY_MOUNT = ".kcachefs"
"""A folder that is found only while a mount exists and answers."""


def render(values: dict[str, str], format: str, mount: Path) -> bytes:
    """The variables in the given format; bytes, because a path need not be UTF-8."""
    if format not in FORMATS:
        raise UsageError(f"--format {format}: unknown; choose one of {', '.join(FORMATS)}")
    return os.fsencode(FORMATS[format](values, mount))


def _sh(values: dict[str, str], mount: Path) -> str:
    """For eval in any POSIX shell, or a file in /etc/profile.d: without the mount it sets nothing."""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
    return f"if [ -d {shlex.quote(str(mount / _IN_EVERY_MOUNT))} ]; then\n{exports}fi\n"


def _fish(values: dict[str, str], mount: Path) -> str:
    """For `kcachefs env --format fish | source`, guarded in the same way."""

    def quoted(value: str) -> str:
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = [f"set -gx {name} {quoted(value)}\n" for name, value in values.items()]
    return "".join([f"if test -d {quoted(str(mount / _IN_EVERY_MOUNT))}\n", *lines, "end\n"])


def _dotenv(values: dict[str, str], mount: Path) -> str:
    """A .env file. Dialects disagree about backslashes, so values are in single quotes, where nothing is special."""
    return _UNGUARDED + "".join(f"{name}='{_plain(value, 'dotenv', also=chr(39))}'\n" for name, value in values.items())


def _docker(values: dict[str, str], mount: Path) -> str:
    """For `docker run --env-file FILE -v DIR:DIR:rslave`: no quoting, the value is the rest of the line."""
    return _UNGUARDED + "".join(f"{name}={_plain(value, 'docker')}\n" for name, value in values.items())


def _json(values: dict[str, str], mount: Path) -> str:
    return json.dumps({name: _text(value, "json") for name, value in values.items()}, indent=2) + "\n"


def _k8s(values: dict[str, str], mount: Path) -> str:
    """The parts of a pod's manifest that show it the mount at the host's path. JSON strings are valid YAML strings.

    The volume is the folder above the mount if that folder was made for the mount: a volume that is the mount itself
    stays bound to a daemon that is gone. Any other folder is not ours to give to a pod.

    torch in the container looks for its precompiled header in the container's temporary directory (see headers.py),
    so a hook creates the link there. The hook must not fail, or Kubernetes would stop the container.
    """
    has_folder = _is_made_for(mount)
    path = json.dumps(_text(str(mount.parent if has_folder else mount), "k8s"))
    lines = ["# in the container", "env:"]
    for name, value in values.items():
        lines += [f"  - name: {name}", f"    value: {json.dumps(_text(value, 'k8s').replace('$(', '$$('))}"]
    lines += ["volumeMounts:", "  - name: kcachefs", f"    mountPath: {path}", "    mountPropagation: HostToContainer"]
    lines += ["lifecycle:", "  postStart:", "    exec:"]
    lines += [f"      command: {json.dumps(['sh', '-c', _LINK_HEADERS, 'sh', str(mount / headers.NAMESPACE)])}"]
    lines += ["# in the pod", "volumes:", "  - name: kcachefs", "    hostPath:", f"      path: {path}"]
    lines += [f"      type: {'DirectoryOrCreate' if has_folder else 'Directory'}"]
    return _UNGUARDED + ("" if has_folder else _GOES_STALE) + "\n".join(lines) + "\n"


def _is_made_for(mount: Path) -> bool:
    """Whether the folder above a mount serves no other purpose."""
    try:
        return mount.parent.name == _FOLDER_OF_OURS and os.listdir(mount.parent) == [mount.name]
    except OSError:
        return False


_LINK_HEADERS = (
    "u=${LOGNAME:-${USER:-${LNAME:-${USERNAME:-$(id -un 2>/dev/null || echo uid_$(id -u))}}}}; "
    'd=${TMPDIR:-/tmp}/torchinductor_$u; mkdir -p -m 700 "$d"; '
    '[ -e "$d/precompiled_headers" ] || ln -sfn "$1" "$d/precompiled_headers"; true'
)


FORMATS: dict[str, Callable[[dict[str, str], Path], str]] = {
    "sh": _sh,
    "fish": _fish,
    "dotenv": _dotenv,
    "docker": _docker,
    "json": _json,
    "k8s": _k8s,
}


def _plain(value: str, format: str, also: str = "") -> str:
    if bad := [character for character in "\n\r\0" + also if character in value]:
        raise UsageError(f"{value!r} contains {bad[0]!r}, which --format {format} cannot express; use sh or json")
    return value


def _text(value: str, format: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{value!r} is not UTF-8, which --format {format} cannot express; use sh") from None
    return value
