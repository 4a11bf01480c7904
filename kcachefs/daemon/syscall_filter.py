"""The system calls that a worker never makes, refused by a seccomp filter. It closes what Landlock leaves open.

It refuses above all: connecting to a socket that has a path, such as that of a container engine, which would do
anything for root; changing modes and owners of root's files; starting programs; and io_uring, which would get around
the filter.

The kernel remembers which calls the filter always allows, so those on the path of a request cost nothing more. A filter
is per thread, and new threads and processes inherit it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from kcachefs import libc

REFUSED = {
    # name: its number on x86-64 and on aarch64; -1 where it does not exist
    "execve": (59, 221),
    "execveat": (322, 281),
    "connect": (42, 203),
    "io_uring_setup": (425, 425),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, -1),
    "fchown": (93, 55),
    "lchown": (94, -1),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
}
"""Calls that fail with EPERM whatever their arguments."""
JUDGED = {"socket": (41, 198), "clone": (56, 220), "clone3": (435, 435), "ioctl": (16, 29), "seccomp": (317, 277)}
"""Calls judged by their arguments. clone3 hides its arguments, so it fails as on a kernel without it, and callers use
clone."""

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of the tables above, and the kernel's number for the architecture."""
_X32 = 0x40000000
"""On x86-64, numbers from here on are the same calls again, for the x32 ABI."""
_NEW_NAMESPACES = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
"""ioctls that inject input into a terminal, such as the one that a foreground daemon logs to."""

_SPEC_ALLOW = 4
"""Without this flag, older kernels slow the whole process down, to protect it from attacks unrelated to this filter."""
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45
_INSTRUCTION = struct.Struct("<HBBI")
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in struct seccomp_data; an argument is 8 bytes, its low half first."""


def apply() -> None:
    """Refuse these calls from now on, in this thread and in all threads that it starts. Needs no_new_privs."""
    machine = os.uname().machine
    if machine not in _MACHINES or struct.calcsize("P") != 8:
        raise OSError(errno.ENOSYS, f"no filter of system calls has been written for {machine}")
    column, architecture = _MACHINES[machine]
    program = b"".join(_program(column, architecture))
    libc.filter_calls(JUDGED["seccomp"][column], _SPEC_ALLOW, program)


def _program(column: int, architecture: int) -> list[bytes]:
    judged = {name: numbers[column] for name, numbers in JUDGED.items()}
    refuse = _step(_RETURN, _FAIL | errno.EPERM)
    allow = _step(_RETURN, _ALLOW)
    return [
        _step(_LOAD, _ARCHITECTURE),
        *_unless(_EQUAL, architecture, refuse),
        _step(_LOAD, _NUMBER),
        *_if(_AT_LEAST, _X32, refuse),
        *(
            part
            for numbers in REFUSED.values()
            if numbers[column] >= 0
            for part in _if(_EQUAL, numbers[column], refuse)
        ),
        *_if(_EQUAL, judged["clone3"], _step(_RETURN, _FAIL | errno.ENOSYS)),
        *_judge(
            judged["socket"],
            [
                _argument(0),
                *_unless(_EQUAL, socket.AF_UNIX, refuse),
                # A datagram can be sent to any path without connecting.
                _argument(1),
                _step(_AND, 0xF),
                *_unless(_EQUAL, socket.SOCK_STREAM, refuse),
                allow,
            ],
        ),
        *_judge(judged["clone"], [_argument(0), *_if(_ANY_BIT, _NEW_NAMESPACES, refuse), allow]),
        *_judge(
            judged["ioctl"],
            [
                _argument(1),
                *_if(_EQUAL, _TIOCSTI, refuse),
                *_if(_EQUAL, _TIOCLINUX, refuse),
                allow,
            ],
        ),
        allow,
    ]


def _judge(number: int, steps: list[bytes]) -> list[bytes]:
    """Apply these steps to one call; the last step must return."""
    return [_step(_EQUAL, number, on_false=len(steps)), *steps]


def _if(test: int, value: int, then: bytes) -> list[bytes]:
    return [_step(test, value, on_false=1), then]


def _unless(test: int, value: int, then: bytes) -> list[bytes]:
    return [_step(test, value, on_true=1), then]


def _argument(number: int) -> bytes:
    return _step(_LOAD, _ARGUMENTS + 8 * number)


def _step(code: int, value: int, *, on_true: int = 0, on_false: int = 0) -> bytes:
    return _INSTRUCTION.pack(code, on_true, on_false, value)
