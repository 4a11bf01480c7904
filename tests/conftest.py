"""What every test shares: places of its own, a seed, small disks, and an order that keeps two processes busy."""

from __future__ import annotations

import atexit
import fcntl
import gc
import multiprocessing.util
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis
import pytest

from kcachefs.filelock import open_locked
from tests import command_server, disks, durations
from tests.disks import Disk, ext4, tmpfs

# The mounts of the tests are listed apart from those of the machine, and their logs go with them. This is set here and
# not in a fixture because modules of tests read the environment when they are imported.
_TESTS = Path(__file__).parent
_OWN = Path(tempfile.mkdtemp(prefix="kcachefs-test-run-"))
os.environ["KCACHEFS_RUNTIME_DIR"] = str(_OWN / "run")
os.environ["KCACHEFS_LOG_DIR"] = str(_OWN / "log")
# Folders of tests lie there too. As the file system's `top directory` it has ext4 give each of them a part of the disk
# of its own: where many files were just deleted, ext4 looks at every one of them whenever one is created.
_OWN.chmod(0o711)
tempfile.tempdir = str(_OWN)
disks.spread_folders(_OWN)
# Nor does it matter to them how the machine is configured.
os.environ["KCACHEFS_SYSTEM_CONFIG"] = str(_OWN / "config.toml")
os.environ["XDG_CONFIG_HOME"] = str(_OWN / "config")
for _name in ("KCACHEFS_MOUNT", "KCACHEFS_STORE"):
    os.environ.pop(_name, None)
# `python` is the one that these tests run on, without their packages. A version manager's script would start a dozen
# shells each time, and many machines have only `python3`.
(_OWN / "bin").mkdir()
for _name in ("python", "python3"):
    (_OWN / "bin" / _name).symlink_to(os.path.realpath(sys.executable))
os.environ["PATH"] = os.pathsep.join(filter(None, [str(_OWN / "bin"), os.environ.get("PATH")]))
# On aarch64 torch's oneDNN leaves a /tmp/perf-PID.map of every process that uses it, unless it is told not to.
os.environ.setdefault("DNNL_JIT_PROFILE", "0")

# One seed for the whole run; the processes of `-n` inherit it.
os.environ.setdefault("KCACHEFS_SEED", str(random.SystemRandom().getrandbits(32)))

# A shell starts what runs in its background with SIGINT ignored, and nohup with SIGHUP; every command under test would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30
_PREFIX = "kcachefs-test-run-"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the folders of single tests (`tmp_path`) in memory, if there is room: on a disk, half of the time of opening
    and closing a store is that to replace a file. Mounts and their stores lie where TMPDIR says, most often on a disk.

    Hypothesis begins with our seed too, unless it was given one.
    """
    if hasattr(config, "workerinput"):
        config.add_cleanup(_exit_at_once)
    if config.option.basetemp is None and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM:
        folder = _folder_in_memory()
        config.option.basetemp = str(folder / "tests")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    if getattr(config.option, "hypothesis_seed", 0) is None:
        config.option.hypothesis_seed = os.environ["KCACHEFS_SEED"]


def _exit_at_once() -> None:
    """End a process of `-n`, whose results have been sent. Python would free seven thousand tests and all of torch one
    by one, for seconds in which nothing else runs."""
    atexit._run_exitfuncs()
    os._exit(0)


def _folder_in_memory() -> Path:
    """A new one, locked by this process. Those of runs that were killed would take memory for ever, and go."""
    everybodys = open_locked(_MEMORY, os.O_RDONLY, fcntl.LOCK_EX)
    for left in _MEMORY.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # in use, or somebody else's
            os.close(open_locked(left, os.O_RDONLY, fcntl.LOCK_EX | fcntl.LOCK_NB))
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY))
    open_locked(folder, os.O_RDONLY, fcntl.LOCK_EX)
    os.close(everybodys)
    return folder


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Do not import what the tests run in processes of their own, only to look for examples in it: some load torch."""
    is_module = collection_path.suffix == ".py" and collection_path.is_relative_to(_TESTS)
    return True if is_module and not collection_path.name.startswith("test_") else None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples in docstrings only where there are any, which is not in tests."""
    found = yield
    has_examples = not file_path.is_relative_to(_TESTS) and b">>> " in file_path.read_bytes()
    return [one for one in found if has_examples or type(one).__name__ != "DoctestModule"]


def pytest_unconfigure(config: pytest.Config) -> None:
    command_server.stop()
    if not hasattr(config, "workerinput"):
        gc.unfreeze()  # extension modules tell at the end what they think has leaked
    multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]  # its folder is in ours
    shutil.rmtree(_OWN, ignore_errors=True)


def pytest_report_header() -> str:
    return f"KCACHEFS_SEED={os.environ['KCACHEFS_SEED']} repeats the random choices of this run"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is known to be slow, and have the longest begin where several processes (`-n`) share the tests:
    none may sit at a long one when the others are done."""
    known = durations.read()
    for item in items:
        if durations.of(item, known) >= durations.SLOW_SECONDS:
            item.add_marker(pytest.mark.slow)
    if hasattr(config, "workerinput"):
        durations.order(items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """What is collected lives to the end: looking for garbage meanwhile finds none."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Seven thousand tests are a million objects. Every full collection would walk through them, and copy their pages
    in every process that a test forks."""
    gc.enable()
    # Hypothesis makes its generator now: it warns when it finds nobody who refers to that, as with all that is frozen.
    hypothesis.find(hypothesis.strategies.none(), lambda _: True)
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus != 0:
        terminalreporter.write_line(pytest_report_header())
    if path := os.environ.get("KCACHEFS_TEST_DURATIONS"):
        durations.write(terminalreporter.stats, Path(path))


@pytest.fixture
def seed() -> int:
    """What random choices of a test begin with: another number in each run, and $KCACHEFS_SEED if that is set."""
    return int(os.environ["KCACHEFS_SEED"])


@pytest.fixture(params=["ext4", "tmpfs"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A disk of 24 MiB, once as a real ext4 and once as a tmpfs."""
    with ext4(tmp_path) if request.param == "ext4" else tmpfs(tmp_path) as disk:
        yield disk


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """As `tmp_path`, for what only disks do."""
    folder = Path(tempfile.mkdtemp(prefix="kcachefs-test-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads take turns every microsecond instead of every five milliseconds, which loses races more often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
