"""Drops the privileges that a worker does not need, so that an attacker who takes it over by a request gains little.

The worker keeps its user, who owns the store. As root it keeps one capability, DAC_OVERRIDE, because the store may lie
below a folder that only another user can enter; all others are dropped, from the bounding set too, so that nothing can
regain them. Unmounting is left to the supervisor. Core dumps are off, because they would hold what tenants have stored.
Steps that the kernel does not know or allow are skipped. `confinement.py` takes away the rest of the host.
"""

from __future__ import annotations

import contextlib
import os
import resource
import struct

from kcachefs import libc

_THIS_THREAD = struct.pack("<Ii", libc.CAPABILITY_VERSION, 0)
_CAP_DAC_OVERRIDE = 1
KEPT = 1 << _CAP_DAC_OVERRIDE
_CAPABILITIES = 64


def drop() -> None:
    """Drop every privilege that serving does not need, for good.

    Privileges are per thread, and a new thread inherits them: call this before the first thread is started.
    """
    _try_prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0:
        _try_prctl(libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_CLEAR_ALL)
        for capability in range(_CAPABILITIES):
            if not KEPT >> capability & 1:
                _try_prctl(libc.PR_CAPBSET_DROP, capability)
        _keep(KEPT)


def _try_prctl(option: int, *arguments: int) -> None:
    with contextlib.suppress(OSError):
        libc.prctl(option, *arguments)


def _keep(wanted: int) -> None:
    permitted = held() & wanted
    low, high = permitted & 0xFFFFFFFF, permitted >> 32
    with contextlib.suppress(OSError):
        libc.capset(_THIS_THREAD, struct.pack("<6I", low, low, 0, high, high, 0))


def held() -> int:
    """The permitted capabilities of this thread, as a bit set."""
    try:
        words = struct.unpack("<6I", libc.capget(_THIS_THREAD))
    except OSError:
        return 0
    return int(words[1]) | int(words[4]) << 32
