"""ContentStore: compared with a dict, fed with streams, and with more bytes than it may keep in memory."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from kcachefs import ContentStore
from kcachefs.errors import ObjectMissing, UsageError
from kcachefs.store.fsck import run
from kcachefs.store.objects import IN_MEMORY_MAX
from tests.waiting import PATIENCE


class AgainstADict(RuleBasedStateMachine):
    """Put, delete, read, compact and reopen; the store always agrees with the dict."""

    digests = Bundle("digests")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = ContentStore(self.folder.name)
        self.model: dict[bytes, bytes] = {}

    @rule(target=digests, data=st.binary(max_size=200), times=st.sampled_from([1, 30, 3000, 60_000]))
    def put(self, data: bytes, times: int) -> bytes:
        digest = self.store.put(data * times)
        self.model[digest] = data * times
        return digest

    @rule(target=digests, data=st.binary(min_size=1, max_size=50), size=st.integers(0, 6 << 20))
    def put_stream(self, data: bytes, size: int) -> bytes:
        whole = (data * (size // len(data) + 1))[:size]
        digest = self.store.put(io.BytesIO(whole))
        self.model[digest] = whole
        return digest

    @rule(digest=digests)
    def delete(self, digest: bytes) -> None:
        assert self.store.delete(digest) == (self.model.pop(digest, None) is not None)

    @rule(digest=digests)
    def get(self, digest: bytes) -> None:
        assert self.store.exists(digest) == (digest in self.model)
        if digest in self.model:
            assert self.store.get(digest) == self.model[digest]
            assert self.store.verify(digest.hex())
        else:
            with pytest.raises(ObjectMissing):
                self.store.get(digest)

    @rule(digest=digests, offset=st.integers(0, 1 << 20), size=st.integers(0, 1 << 20))
    def read(self, digest: bytes, offset: int, size: int) -> None:
        if digest in self.model:
            assert self.store.read(digest, offset, size) == self.model[digest][offset : offset + size]

    @rule()
    def compact(self) -> None:
        assert self.store.compact() >= 0

    @rule()
    def sync(self) -> None:
        self.store.sync()

    @rule(target=digests)
    def reopen(self) -> object:
        self.store.close()
        assert run(Path(self.folder.name)).exit_code == 0
        self.store = ContentStore(self.folder.name)
        return multiple()

    @invariant()
    def statistics_add_up(self) -> None:
        statistics = self.store.statistics()
        assert statistics.objects == len(self.model)
        assert statistics.plain_bytes == statistics.referenced_bytes == sum(map(len, self.model.values()))

    def teardown(self) -> None:
        assert set(self.store.digests()) == set(self.model)
        self.store.close()
        assert run(Path(self.folder.name)).exit_code == 0
        self.folder.cleanup()


AgainstADict.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestAgainstADict = AgainstADict.TestCase


def test_a_stream_is_stored_from_its_current_position(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"skip" + b"this is kept")
    with ContentStore(tmp_path / "store") as store, open(tmp_path / "file", "rb") as file:
        file.read(4)
        assert store.get(store.put(file)) == b"this is kept"


@pytest.mark.parametrize("size", [0, 1000, IN_MEMORY_MAX, IN_MEMORY_MAX + 1])
def test_a_pipe_can_be_stored(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    with ContentStore(tmp_path / "store") as store:
        with subprocess.Popen(["cat", str(tmp_path / "file")], stdout=subprocess.PIPE) as cat:
            assert cat.stdout is not None
            digest = store.put(cat.stdout)
        assert store.get(digest) == data
        assert store.put(data) == digest


def test_a_stream_that_is_not_ready_is_not_taken_for_its_end(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    with ContentStore(tmp_path / "store") as store, open(read, "rb", buffering=0) as stream:
        os.write(write, b"half")
        with pytest.raises(UsageError, match="does not block"):
            store.put(stream)
    os.close(write)


def test_a_stream_that_breaks_leaves_nothing(tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 5 << 20:
                raise ConnectionError("gone")
            return super().read(size)

    with ContentStore(tmp_path / "store") as store:
        with pytest.raises(ConnectionError):
            store.put(Broken(os.urandom(8 << 20)))
        assert store.statistics().objects == 0
    assert os.listdir(tmp_path / "store" / "incoming") == []
    assert run(tmp_path / "store").exit_code == 0


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    with ContentStore(tmp_path / "store") as store:
        for digest in (b"short", "zz", "ab" * 31):
            with pytest.raises(UsageError, match="BLAKE3"):
                store.get(digest)
        with pytest.raises(UsageError, match="neither may be negative"):
            store.read(store.put(b"x"), -1, 5)


def test_what_is_no_bytes_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    with ContentStore(tmp_path / "store") as store, open(tmp_path / "text") as text:
        for data, why in (("text", "keeps bytes.*not str"), (5, "not int"), (text, "binary mode")):
            with pytest.raises(UsageError, match=why):
                store.put(data)  # type: ignore[arg-type]
        for digest in (5, None, ["ab"]):
            with pytest.raises(UsageError, match="is not a BLAKE3 digest"):
                store.get(digest)  # type: ignore[arg-type]
        assert store.get(bytearray(store.put(b"x"))) == b"x"  # type: ignore[arg-type]


def test_what_was_deleted_is_not_served_from_memory(tmp_path: Path) -> None:
    with ContentStore(tmp_path / "store") as store:
        digest = store.put(b"x" * 1000)
        assert store.get(digest)
        assert store.delete(digest)
        with pytest.raises(ObjectMissing):
            store.get(digest)
        with pytest.raises(ObjectMissing):
            store.read(digest, 0, 10)


_PUT_AND_MEASURE = """
import resource, sys
from kcachefs import ContentStore

class Endless:
    def __init__(self, size):
        self.left, self.block = size, bytes(range(256)) * 4096
    def read(self, size):
        size = min(size, self.left, len(self.block))
        self.left -= size
        return self.block[:size]

with ContentStore(sys.argv[1]) as store:
    store.put(Endless(5 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    digest = store.put(Endless(int(sys.argv[2]) << 20))
    assert store.verify(digest)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_large_put_takes_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PUT_AND_MEASURE, str(tmp_path / "store"), "80"]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < 16 << 10, f"{grown} KiB more for 80 MiB"


_TOO_MANY_FILES = """
import os, resource, sys
from kcachefs.errors import ObjectDamaged
from kcachefs.store import Options, Store

store = Store(sys.argv[1], Options(background=False))
digest = bytes.fromhex(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
try:
    store.objects.get(digest)
except OSError as error:
    print(error.errno)
for fd in taken:
    os.close(fd)
print(len(store.objects.get(digest)), store.objects.damaged)
store.close()
"""


def test_too_many_open_files_is_not_damage(tmp_path: Path) -> None:
    with ContentStore(tmp_path / "store") as store:
        digest = store.put(b"x" * 1000)
        store.put(os.urandom(20 << 20))
    command = [sys.executable, "-c", _TOO_MANY_FILES, str(tmp_path / "store"), digest.hex()]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert answer == ["24", "1000", "0"]


def test_an_empty_path_is_not_taken_for_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="directory is empty"):
        ContentStore("")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_dropped_is_closed_with_a_warning(tmp_path: Path) -> None:
    store = ContentStore(tmp_path / "store")
    digest = store.put(b"a kernel")
    with pytest.warns(ResourceWarning, match="store: the store was not closed; use `with`"):
        del store
    with ContentStore(tmp_path / "store") as store:
        assert store.get(digest) == b"a kernel"


def test_a_store_whose_folding_thread_finds_it_dropped_is_closed(tmp_path: Path) -> None:
    """The garbage collector may run in any thread, with any lock held."""
    use = f"""
import gc, threading
from kcachefs import ContentStore
from kcachefs.errors import StoreBusy
from tests.waiting import until
gc.disable()
store = ContentStore({str(tmp_path / "store")!r})
digest, inner = store.put(b"a kernel"), store._opened
store.itself, sync, done = store, inner.volumes.sync, threading.Event()
def collect():
    if threading.get_ident() == inner.folding.ident and not done.is_set():
        gc.collect()
        done.set()
    sync()
inner.catalog._before_fold = collect
del store
assert done.wait(100)
until(lambda: inner.is_closed)
def opened():
    try:
        return ContentStore({str(tmp_path / "store")!r})
    except StoreBusy:
        return None
with until(opened) as store:
    assert store.get(digest) == b"a kernel"
"""
    subprocess.run([sys.executable, "-c", use], check=True, timeout=PATIENCE)


def test_a_program_that_ends_with_a_store_open_ends(tmp_path: Path) -> None:
    use = f"import kcachefs; store = kcachefs.ContentStore({str(tmp_path / 'store')!r}); store.put(b'a kernel')"
    subprocess.run([sys.executable, "-c", use], check=True, timeout=PATIENCE)
    with ContentStore(tmp_path / "store") as store:
        assert len(list(store.digests())) == 1
