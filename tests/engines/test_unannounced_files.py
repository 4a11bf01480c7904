"""Files that come without the kernel's knowledge, as from a fleet: it still believes that there are none.

A CREATE then finds one. The kernel takes what a CREATE returns for new, checks no mode and truncates nothing.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcachefs.core import Filesystem
from kcachefs.core.caller import Caller
from kcachefs.engines import mounting
from kcachefs.engines.direct import DirectEngine
from kcachefs.store import Options, Store
from kcachefs.store.inode_numbers import ROOT_INO
from tests.disks import need_root
from tests.engines.callers import OTHER, Child, in_thread
from tests.engines.mounting import temporary_folder
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.mount, need_root]

CONTENT = b"content that is longer"


class Mounted:
    """A mount whose process makes files when it is told to, and tells nobody."""

    def __init__(self, folder: Path, device: int, engine: str) -> None:
        self.folder = folder
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(PATIENCE)
        self.process = Child(lambda: _serve(folder, device, engine, theirs))
        theirs.close()
        os.close(device)

    def make(self, name: str) -> Path:
        """The kernel looked for it, and remembers for an hour that there is no such file. Then there is one."""
        path = self.folder / "mount" / "triton" / "KEY" / name
        assert not path.exists()
        self._ours.send(name.encode())
        assert self._ours.recv(100) == b"done"
        return path

    def close(self) -> None:
        mounting.unmount(self.folder / "mount", lazy=True)
        self.process.__exit__(None, None, None)
        self._ours.close()


def _serve(folder: Path, device: int, engine: str, told: socket.socket) -> None:
    with Store(folder / "store", Options(background=False)) as store:
        root = Caller(0, 0)
        if engine == "pyfuse3":
            from kcachefs.engines.pyfuse3 import Pyfuse3Engine
            from kcachefs.engines.pyfuse3_kernel import Pyfuse3Kernel

            kernel = Pyfuse3Kernel()
            fs = Filesystem(store, kernel=kernel)
            serve = Pyfuse3Engine(fs, device, kernel).serve
        else:
            fs = Filesystem(store)
            serve = DirectEngine(fs, device).serve
        above = fs.tree.find(ROOT_INO, b"triton")
        assert above is not None
        entry, _ = fs.make(root, above, b"KEY", stat.S_IFDIR | 0o777)

        def make_files() -> None:
            while name := told.recv(100):
                ino, _ = fs.create(root, entry, name, 0o644)
                fs.write(ino, 0, CONTENT)
                fs.forget(ino, 1)
                told.send(b"done")

        threading.Thread(target=make_files, daemon=True).start()
        serve()


@pytest.fixture(params=["direct", "pyfuse3"])
def mounted(request: pytest.FixtureRequest) -> Iterator[Mounted]:
    if request.param == "pyfuse3":
        pytest.importorskip("pyfuse3")
    with temporary_folder() as folder:
        (folder / "mount").mkdir()
        made = Mounted(folder, mounting.mount(folder / "mount", folder / "store"), request.param)
        yield made
        made.close()


def test_who_may_not_write_to_such_a_file_may_not_create_it_either(mounted: Mounted) -> None:
    path = mounted.make("theirs")

    def write() -> None:
        with open(path, "wb") as file:
            file.write(b"forged")

    with pytest.raises(PermissionError):
        in_thread(write, OTHER)
    assert path.read_bytes() == CONTENT
    assert in_thread(path.read_bytes, OTHER) == CONTENT


def test_writing_to_such_a_file_truncates_it(mounted: Mounted) -> None:
    path = mounted.make("again")
    path.write_bytes(b"short")
    assert path.read_bytes() == b"short"


def test_such_a_file_is_no_new_one(mounted: Mounted) -> None:
    path = mounted.make("there")
    with pytest.raises(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    assert path.read_bytes() == CONTENT
