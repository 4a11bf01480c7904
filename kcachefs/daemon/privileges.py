"""The worker gives up what it does not need, once it serves: what gets into it through a request gets no further.

It keeps its user, who owns the store. As root it keeps one capability, to use files whatever their mode (DAC_OVERRIDE:
the store may be another user's); the rest goes, from the bounding set too, and no program that it might start gets them
back. Unmounting is the supervisor's. Should it crash, no core file holds what tenants have stored. What the kernel does
not know or allow is left as it is.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct

_libc = ctypes.CDLL(None, use_errno=True)

_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_VERSION_3 = 0x20080522
_CAP_DAC_OVERRIDE = 1
KEPT = 1 << _CAP_DAC_OVERRIDE
_CAPABILITIES = 64


def drop() -> None:
    """Give up every privilege that serving does not need; that cannot be undone.

    The kernel keeps them per thread, and a thread inherits them: call it before the first one is started.
    """
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0:
        _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        for capability in range(_CAPABILITIES):
            if not KEPT >> capability & 1:
                _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        _keep(KEPT)


def _keep(wanted: int) -> None:
    permitted = held() & wanted
    low, high = permitted & 0xFFFFFFFF, permitted >> 32
    header = ctypes.create_string_buffer(struct.pack("<Ii", _VERSION_3, 0))
    _libc.capset(header, ctypes.create_string_buffer(struct.pack("<6I", low, low, 0, high, high, 0)))


def held() -> int:
    """The capabilities that this thread may use, as bits."""
    header = ctypes.create_string_buffer(struct.pack("<Ii", _VERSION_3, 0))
    data = ctypes.create_string_buffer(24)
    if _libc.capget(header, data) != 0:
        return 0
    words = struct.unpack("<6I", data.raw[:24])
    return int(words[1]) | int(words[4]) << 32
