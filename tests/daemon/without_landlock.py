"""Runs a command as on a kernel without Landlock: `python without_landlock.py PROGRAM ARGUMENT...`."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

CREATE_RULESET = 444
STEPS = (
    (0x20, 0, 0, 0),
    (0x15, 0, 1, CREATE_RULESET),
    (0x06, 0, 0, 0x00050000 | errno.ENOSYS),
    (0x06, 0, 0, 0x7FFF0000),
)
"""Load the number of the call; if it is that one, fail; otherwise allow it."""


def main() -> None:
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in STEPS))
    pointer = ctypes.create_string_buffer(struct.pack("@HP", len(STEPS), ctypes.addressof(program)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
    for option, first, second in ((38, 1, None), (22, 2, ctypes.addressof(pointer))):
        if prctl(option, first, second, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {option}")
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
