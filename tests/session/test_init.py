"""`kcachefs.init()`: pointing a running process at a mount."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kcachefs.daemon import registry
from tests.command_server import Process
from tests.engines.mounting import Mount
from tests.forked_programs import Program
from tests.frameworks.commands import PATIENCE, kcachefs
from tests.pythons import needs_torch
from tests.waiting import until

pytestmark = pytest.mark.mount


def python(script: str, **environment: str) -> str:
    """What a program says that is forked from one that has imported kcachefs."""
    code = f"import warnings; warnings.simplefilter('error')\n{script}"
    return Process(code=code, env={**os.environ, **environment}, stderr=subprocess.PIPE).finish(PATIENCE)


def new_python(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_variables_are_set_here_and_in_what_is_started_from_here(mount: Mount) -> None:
    script = f"""
import kcachefs, os, subprocess
where = kcachefs.init({str(mount.mountpoint)!r})
assert os.environ["TRITON_CACHE_DIR"] == str(where / "triton")
import triton
from triton import knobs
assert knobs.cache.dir == str(where / "triton")
assert os.path.isdir(os.environ["PYTORCH_KERNEL_CACHE_PATH"])
subprocess.run(["sh", "-c", 'echo "$JAX_COMPILATION_CACHE_DIR"'], check=True)
"""
    assert new_python(script).strip() == str(mount.mountpoint / "jax")


@needs_torch
def test_triton_and_inductor_notice_even_after_import(mount: Mount, base: Path) -> None:
    """They read their variables at each use, so there must be no warning."""
    script = f"""
import sys, warnings
assert {{"torch", "triton"}} <= sys.modules.keys()
warnings.simplefilter("error")
import torch, triton, kcachefs
from torch._inductor.runtime.runtime_utils import cache_dir
where = kcachefs.init({str(mount.mountpoint)!r})
from triton import knobs
assert knobs.cache.dir == str(where / "triton")
assert cache_dir() == str(where / "inductor")
"""
    (base / "program.py").write_text(script)
    process = Program(base / "program.py", env=os.environ)
    assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 0


def test_a_framework_that_was_imported_too_early_is_named(mount: Mount, base: Path) -> None:
    (base / "flashinfer.py").write_text("")
    (base / "numba.py").write_text("")
    script = f"""
import warnings, kcachefs, flashinfer, numba, os
os.environ["NUMBA_CACHE_DIR"] = {str(mount.mountpoint / "numba")!r}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    kcachefs.init({str(mount.mountpoint)!r})
[warning] = caught
assert warning.category is kcachefs.TooLate
assert "FlashInfer was imported before" in str(warning.message)
assert warning.filename == "<string>", warning.filename
"""
    new_python(script, PYTHONPATH=f"{base}:{os.environ.get('PYTHONPATH', '')}")


def test_a_mount_is_made_when_asked_for_and_goes_with_the_process(base: Path) -> None:
    script = f"""
import kcachefs, os
where = kcachefs.init(mount=True, store={str(base / "store")!r})
assert os.path.ismount(where)
(where / "triton" / "K").mkdir()
print(where)
"""
    where = new_python(script).strip()
    assert not os.path.ismount(where)
    assert new_python(script.replace(".mkdir()", ".rmdir()")).strip() == where


def test_a_fork_that_ends_leaves_the_mount_to_its_parent(base: Path) -> None:
    script = f"""
import kcachefs, os
where = kcachefs.init(mount=True, store={str(base / "store")!r})
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    assert os.path.ismount(where)
    print(where)
"""
    assert not os.path.ismount(python(script).strip())


CLOSES = """
import atexit, fcntl, kcachefs, os, sys
@atexit.register  # registered first, and so called after the session has ended
def still_open():
    for number in own:
        os.fstat(number)
        other = os.open(f"/proc/self/fd/{{number}}", os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("untouched", flush=True)
where = kcachefs.init(mount=True, store={store!r})
if {forks} and (child := os.fork()):
    os.waitpid(child, 0)
    os._exit(0)
os.closerange(3, 4096)
own = [os.open(f"{base}/own{{at}}", os.O_RDWR | os.O_CREAT) for at in range({files})]
"""


def test_a_program_that_closes_its_descriptors_leaves_the_mount_to_others_and_keeps_its_own(base: Path) -> None:
    store = str(base / "store")
    script = f"import kcachefs, sys; print(kcachefs.init(mount=True, store={store!r}), flush=True); sys.stdin.read()"
    with Process(code=script, stdin=subprocess.PIPE) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        where = session.stdout.readline().strip()
        for forks in (False, True):
            for files in (0, 12):  # so many that they have the numbers that the session had
                told = python(CLOSES.format(base=base, store=store, files=files, forks=forks))
                assert told == "untouched\n"
                assert os.path.ismount(where)
        session.stdin.close()
        assert session.wait(PATIENCE) == 0
    assert not os.path.ismount(where)
    assert python(CLOSES.format(base=base, store=store, files=12, forks=False)) == "untouched\n"
    assert not os.path.ismount(where)


@pytest.mark.parametrize("busy", [True, False])
def test_a_fork_that_outlives_its_parent_keeps_nobody_waiting(base: Path, busy: bool) -> None:
    script = f"""
import kcachefs, os, sys
where = kcachefs.init(mount=True, store={str(base / "store")!r})
held = open(where / "triton" / "held", "w") if {busy} else None
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
print(where, flush=True)
"""
    run = ("run", "--store", base / "store", "--", "true")
    with Process(code=script, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        where = process.stdout.readline().strip()
        assert process.wait(PATIENCE) == 0
        assert os.path.ismount(where) is busy
        kcachefs(*run)
        process.stdin.close()
        assert process.stdout.read() == ""  # the fork has ended
    kcachefs(*run)
    until(lambda: not os.path.ismount(where))  # it may go with what waits since the first of these runs


def registered(where: str) -> bool:
    """Whether the mount there, or its daemon, is still there."""
    return os.path.ismount(where) or registry.read(where) is not None


@pytest.mark.parametrize(
    "use",
    ["held = open(where / 'triton' / 'held', 'w')", "ctypes.CDLL(shutil.copy(LIBRARY, where / 'triton' / 'f.so'))"],
    ids=["open", "loaded"],
)
def test_a_mount_that_the_process_uses_to_its_end_goes_after_it(base: Path, use: str) -> None:
    subprocess.run(["cc", "-shared", "-x", "c", "/dev/null", "-o", base / "f.so"], check=True)
    script = f"""
import ctypes, kcachefs, shutil
LIBRARY = {str(base / "f.so")!r}
where = kcachefs.init(mount=True, store={str(base / "store")!r})
{use}
print(where)
"""
    where = python(script).strip()
    until(lambda: not registered(where))


@pytest.mark.parametrize("use", ["", "held = open(where / 'triton' / 'held', 'w')"], ids=["idle", "busy"])
def test_a_program_with_more_than_a_thousand_files_open_unmounts(base: Path, use: str) -> None:
    script = f"""
import kcachefs, os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
where = kcachefs.init(mount=True, store={str(base / "store")!r})
{use}
print(where)
"""
    where = python(script).strip()
    assert use or not registered(where)
    until(lambda: not registered(where))


@pytest.mark.parametrize("moment", ["serve_in_background", "SessionLock.share"])
def test_an_interrupt_just_when_the_mount_is_there_leaves_none(base: Path, moment: str) -> None:
    where = base / "mount"
    script = f"""
import kcachefs, os, signal
from kcachefs.session import temporary_mount
from kcachefs.session.leaving import SessionLock
def interrupted(function):
    def call(*arguments):
        function(*arguments)
        assert os.path.ismount({str(where)!r})
        signal.raise_signal(signal.SIGINT)
    return call
if {moment!r} == "serve_in_background":
    temporary_mount.serve_in_background = interrupted(temporary_mount.serve_in_background)
else:
    SessionLock.share = interrupted(SessionLock.share)
try:
    kcachefs.init({str(where)!r}, mount=True, store={str(base / "store")!r})
except KeyboardInterrupt:
    print("interrupted")
"""
    assert python(script).strip() == "interrupted"
    assert not registered(str(where))
    assert not list(registry.directory().glob(f"{registry.name_of(str(where))}*"))


LINGERS = """
import atexit, kcachefs, sys, threading
may_write, wrote = threading.Event(), threading.Event()
def ended():  # registered first, and so called after the session has ended
    print("ended", flush=True)
    sys.stdin.read()
    may_write.set()
    wrote.wait()
atexit.register(ended)
where = kcachefs.init({where!r}, mount=True, store={store!r})
def write():
    may_write.wait()
    (where / "triton" / "late").mkdir(parents=True)
    (where / "triton" / "late" / "file").write_text("late")
    wrote.set()
threading.Thread(target=write, daemon=True).start()
{more}
"""


@contextmanager
def lingering(base: Path, more: str = "") -> Iterator[Callable[[], None]]:
    """A process whose session has ended while one of its threads still writes; what is given lets it, and the end."""
    script = LINGERS.format(where=str(base / "mount"), store=str(base / "store"), more=more)
    with Process(code=script, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ended\n"

        def end() -> None:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(PATIENCE) == 0

        yield end


def test_what_a_thread_writes_last_is_in_the_store_and_not_under_the_mount(base: Path) -> None:
    with lingering(base) as end:
        end()
    until(lambda: not registered(str(base / "mount")))
    assert list((base / "mount").iterdir()) == []
    kcachefs("run", "--mount", base / "mount", "--store", base / "store", "--", "cat", base / "mount/triton/late/file")


@pytest.mark.parametrize("more", ["", "held = open(where / 'triton' / 'held', 'w')"], ids=["idle", "busy"])
def test_a_session_that_begins_while_another_process_ends_has_the_same_mount(base: Path, more: str) -> None:
    """First the process ends inside the new session, then outside of it."""
    mount, run = base / "mount", ("run", "--mount", base / "mount", "--store", base / "store", "--")
    with lingering(base, more) as end:
        with Process(*run, "cat", stdin=subprocess.PIPE, stdout=None) as session:
            until(lambda: children(session.pid))
            end()
            assert (mount / "triton/late/file").read_text() == "late"
            assert session.stdin is not None
            session.stdin.close()
            assert session.wait(PATIENCE) == 0
    until(lambda: not registered(str(mount)))
    with lingering(base, more + "\nimport shutil; shutil.rmtree(where / 'triton' / 'late')") as end:
        kcachefs(*run, "test", "-e", mount / "triton")
        end()
    until(lambda: not registered(str(mount)))
    assert list(mount.iterdir()) == []


def children(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def test_a_child_that_outlives_its_session_keeps_the_mount_until_it_ends(base: Path) -> None:
    """Also if other sessions come and go meanwhile; and one process waits for its end, however many there were."""
    mount = base / "mount"
    run = ("run", "--mount", mount, "--store", base / "store", "--")
    script = f"exec 3> {mount}/triton/held 4<&0; cat <&4 >/dev/null 2>&1 &"
    read_end, write_end = os.pipe()
    session = Process(*run, "sh", "-c", script, stdin=read_end, stdout=None)
    os.close(read_end)
    assert session.wait(PATIENCE) == 0
    for _ in range(3):
        kcachefs(*run, "test", "-e", mount / "triton" / "held")
    until(lambda: len(waiting(mount)) == 1)
    assert os.path.ismount(mount)
    os.close(write_end)
    until(lambda: not registered(str(mount)))
    until(lambda: not waiting(mount))


def waiting(mount: Path) -> list[str]:
    """The processes that wait for the end of a mount's last user."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"kcachefs.session.leaving" in command and os.fsencode(mount) in command:
                found.append(pid)
    return found


def test_without_a_mount_it_says_so(base: Path) -> None:
    script = """
import kcachefs
from kcachefs.errors import MountError
try:
    kcachefs.init()
except MountError as error:
    print(error)
"""
    assert "kcachefs mount" in python(script)


def folders(folder: Path, how: dict[str, Any], **environment: str) -> list[str]:
    """Where `init(dir=...)` leads the library and two frameworks, and which mount it leaves in the environment."""
    script = f"""
import kcachefs, os, json
where = kcachefs.init(dir={str(folder)!r}, **{how!r})
cache = kcachefs.Cache(name="mine")
cache["key"] = b"value"
told = [os.environ[name] for name in ("TRITON_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")]
assert all(map(os.path.isdir, told))
print(json.dumps([str(where), str(cache.path), *told, os.environ["KCACHEFS_MOUNT"]]))
"""
    told: list[str] = json.loads(python(script, KCACHEFS_CACHE_DIR="", **environment))
    return told


@pytest.mark.parametrize("how", [{}, {"only": ["triton", "jax"]}], ids=["all", "some"])
def test_without_a_mount_plain_folders_are_used(base: Path, how: dict[str, Any]) -> None:
    plain = base / "plain"
    told = folders(plain, how, KCACHEFS_RUNTIME_DIR=str(base / "runtime"), KCACHEFS_MOUNT="")
    assert told == [*(str(plain / name) for name in ("", "library/mine", "triton", "jax")), ""]


def test_so_they_are_where_the_wanted_mount_is_missing(base: Path) -> None:
    (base / "wanted").mkdir()
    told = folders(base / "plain", {}, KCACHEFS_MOUNT=str(base / "wanted"))
    assert told[0] == str(base / "plain")
    assert list((base / "wanted").iterdir()) == []
    how = {"directory": str(base / "wanted")}
    assert folders(base / "plain", how, KCACHEFS_MOUNT="")[0] == str(base / "plain")


def test_so_they_are_where_no_mount_can_be_made(base: Path) -> None:
    (base / "in the way").write_text("")
    how = {"mount": True, "directory": str(base / "in the way")}
    assert folders(base / "plain", how, KCACHEFS_MOUNT="")[0] == str(base / "plain")


def test_a_mount_comes_before_plain_folders(mount: Mount, base: Path) -> None:
    told = folders(base / "plain", {}, KCACHEFS_MOUNT=str(mount.mountpoint))
    assert told == [str(mount.mountpoint / name) for name in ("", "library/mine", "triton", "jax", "")]
    assert not (base / "plain").exists()
