"""The worker gives up what it does not need, once it serves: what gets into it through a request gets no further.

It keeps its user, who owns the store. As root it keeps one capability, to use files whatever their mode (DAC_OVERRIDE:
the store may be another user's); the rest goes, from the bounding set too, and no program that it might start gets them
back. Unmounting is the supervisor's. Should it crash, no core file holds what tenants have stored. What the kernel does
not know or allow is left as it is.
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
    """Give up every privilege that serving does not need; that cannot be undone.

    The kernel keeps them per thread, and a thread inherits them: call it before the first one is started.
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
    """The capabilities that this thread may use, as bits."""
    try:
        words = struct.unpack("<6I", libc.capget(_THIS_THREAD))
    except OSError:
        return 0
    return int(words[1]) | int(words[4]) << 32
