"""A program `kcachefs` for shells and scripts under test, which has the command server run what it is asked to."""

from __future__ import annotations

import sys
from pathlib import Path

from tests import command_server

_TEXT = """#!{python} -IS
import array, json, os, socket, sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.connect({address!r})
    request = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
    request["forks_daemons"] = True
    said = [os.memfd_create("out"), os.memfd_create("err")]  # files, as the server is used to
    nothing = os.open(os.devnull, os.O_RDONLY)
    descriptors = array.array("i", [nothing, *said, said[1]])
    connection.sendmsg([json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    connection.recv(100)
    code = os.waitstatus_to_exitcode(int(connection.recv(100)))
for end, descriptor in enumerate(said, 1):
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb") as text, open(end, "wb") as out:
        out.write(text.read())
sys.exit(code)
"""


def write(path: Path) -> None:
    """Write it. Like every command of the server it is for root, and for the mount namespace of the tests."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_TEXT.format(python=sys.executable, address=command_server._address()))
    path.chmod(0o755)
