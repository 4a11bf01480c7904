"""The Triton cache manager under real compilations for sm_90, each in a process of its own; no GPU is needed."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from kcachefs.caches.bound import on_disk
from kcachefs.caches.groups import Groups
from kcachefs.errors import UsageError
from tests.caches.test_disks import in_namespace, needs_mount
from tests.waiting import until

ROOT = Path(__file__).parents[1]
MEMBERS = {f"add_kernel.{kind}" for kind in ("source", "ttir", "ttgir", "llir", "ptx", "cubin", "json")}
GROUP = "__grp__add_kernel.json"


def command(*blocks: int) -> list[str]:
    return [sys.executable, "-W", "ignore", str(ROOT / "tests" / "triton_kernel.py"), *map(str, blocks)]


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "TRITON_CACHE_DIR": str(folder),
        "TRITON_CACHE_MANAGER": "kcachefs.triton:CacheManager",
        "PYTHONPATH": str(ROOT),
        **more,
    }


def compile_kernels(folder: Path, *blocks: int, before: tuple[str, ...] = (), **more: str) -> dict[str, Any]:
    ran = subprocess.run(
        [*before, *command(*blocks)], env=environment(folder, **more), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    told: dict[str, Any] = json.loads(ran.stdout)
    return told


def groups(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != ".kcachefs")


def test_cold_compiles_and_warm_does_not(tmp_path: Path) -> None:
    cold = compile_kernels(tmp_path, 64, 128)
    assert cold["hits"] == [False, False]
    warm = compile_kernels(tmp_path, 64, 128)
    assert warm["hits"] == [True, True]
    assert warm["kernels"] == cold["kernels"]
    assert all(kernel["there"] for kernel in cold["kernels"])
    assert [{path.name for path in group.iterdir()} for group in groups(tmp_path)] == [MEMBERS | {GROUP}] * 2
    assert list((tmp_path / ".kcachefs").iterdir()) == []


@pytest.mark.parametrize("member", sorted(MEMBERS | {GROUP}))
@pytest.mark.parametrize("damage", ["removed", "cut", "changed", "nested"])
def test_a_group_that_is_not_whole_is_compiled_again(tmp_path: Path, member: str, damage: str, warm: Path) -> None:
    folder = tmp_path / "cache"
    shutil.copytree(warm, folder)
    (group,) = groups(folder)
    path = group / member
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    elif damage == "nested":
        path.write_bytes(b"[" * 100_000)
    else:
        path.write_bytes(content[:-1] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:])
    assert lookup(folder, group.name) == "None"
    assert member == GROUP or not group.exists(), "what is left of a damaged group is removed"


def test_a_damaged_group_is_made_whole_by_the_next_compilation(tmp_path: Path, warm: Path) -> None:
    folder = tmp_path / "cache"
    shutil.copytree(warm, folder)
    (group,) = groups(folder)
    (group / "add_kernel.cubin").unlink()
    assert compile_kernels(folder, 64)["hits"] == [False]
    assert compile_kernels(folder, 64)["hits"] == [True]
    assert {path.name for path in group.iterdir()} == MEMBERS | {GROUP}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one kernel in it, to be copied and damaged."""
    folder = tmp_path_factory.mktemp("warm")
    compile_kernels(folder, 64)
    return folder


def lookup(folder: Path, key: str) -> str:
    """What the manager gives for the group, asked in this process: Triton need not compile for that."""
    from kcachefs.triton import CacheManager

    before = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = str(folder)
    try:
        return str(CacheManager(key).get_group("add_kernel.json"))
    finally:
        if before is None:
            del os.environ["TRITON_CACHE_DIR"]
        else:
            os.environ["TRITON_CACHE_DIR"] = before


def test_the_copy_of_a_whole_group_is_served_from_where_it_is(tmp_path: Path, warm: Path) -> None:
    shutil.copytree(warm, tmp_path / "moved")
    (group,) = groups(tmp_path / "moved")
    found = lookup(tmp_path / "moved", group.name)
    assert str(tmp_path / "moved") in found
    assert str(warm) not in found


def test_triton_and_this_manager_read_each_others_groups(tmp_path: Path) -> None:
    for first, second in (("kcachefs.triton:CacheManager", ""), ("", "kcachefs.triton:CacheManager")):
        folder = tmp_path / ("ours" if first else "theirs")
        managers = [{"TRITON_CACHE_MANAGER": name} if name else {} for name in (first, second)]
        hits = []
        for manager in managers:
            chosen = {key: value for key, value in environment(folder).items() if key != "TRITON_CACHE_MANAGER"}
            ran = subprocess.run(command(64), env={**chosen, **manager}, capture_output=True, text=True, check=True)
            hits += json.loads(ran.stdout)["hits"]
        assert hits == [False, True]


def test_the_least_recently_used_kernel_goes_as_a_whole(tmp_path: Path) -> None:
    compile_kernels(tmp_path, 64, 128, 256)
    size = sum(on_disk(path.stat().st_size) for path in tmp_path.rglob("*") if path.is_file())
    assert compile_kernels(tmp_path, 64)["hits"] == [True]
    compile_kernels(tmp_path, 512, KCACHEFS_CACHE_SIZE=str(size * 13 // 10))
    left = groups(tmp_path)
    assert len(left) == 3
    assert all({path.name for path in group.iterdir()} == MEMBERS | {GROUP} for group in left)
    assert compile_kernels(tmp_path, 512, 64)["hits"] == [True, True]
    assert list((tmp_path / ".kcachefs").iterdir()) == []


def test_a_group_in_use_is_not_evicted(tmp_path: Path) -> None:
    store = Groups(tmp_path, max_bytes=20_000)
    pins = []
    for key in ("first", "second", "third"):
        staged = store.stage(key)
        (staged.path / "kernel").write_bytes(bytes(8000))
        assert store.publish(key, staged, "kernel", lambda _: False)
        pins.append(staged)
    assert store.keys() == ["first", "second", "third"], "all three are held, so none may go"
    for pin in pins[:2]:
        pin.close()
    staged = store.stage("fourth")
    (staged.path / "kernel").write_bytes(bytes(8000))
    assert store.publish("fourth", staged, "kernel", lambda _: False)
    assert store.keys() == ["third", "fourth"]
    for pin in (pins[2], staged):
        pin.close()


def test_groups_of_the_future_age_from_now_on(tmp_path: Path) -> None:
    """The clock was ahead when they were used, and was set back since."""
    store = Groups(tmp_path, max_bytes=41_000)

    def publish(key: str) -> None:
        staged = store.stage(key)
        (staged.path / "kernel").write_bytes(bytes(8000))
        assert store.publish(key, staged, "kernel", lambda _: False)
        staged.close()

    for place, key in enumerate(("first", "second", "third")):
        publish(key)
        os.utime(tmp_path / key, (2**33 + place, 2**33 + place))
    for key in ("fourth", "fifth", "sixth"):
        publish(key)
    assert store.keys() == ["fourth", "fifth", "sixth"]


def test_a_process_killed_while_it_compiles_leaves_no_part_of_a_group(tmp_path: Path) -> None:
    process = subprocess.Popen(command(64, 128, 256, 512, 1024), env=environment(tmp_path), stdout=subprocess.DEVNULL)
    try:
        until(lambda: any(tmp_path.glob(".kcachefs/*/*.ttir")) or process.poll() is not None, "a group is being filled")
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert all((group / GROUP).exists() for group in groups(tmp_path))
    assert compile_kernels(tmp_path, 64)["kernels"]
    assert list((tmp_path / ".kcachefs").iterdir()) == []


def test_processes_that_compile_the_same_kernels_at_once_agree(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen(command(64, 128), env=environment(tmp_path), stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    told = [json.loads(worker.communicate()[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert len({json.dumps(answer["kernels"]) for answer in told}) == 1
    assert compile_kernels(tmp_path, 64, 128)["hits"] == [True, True]
    assert [{path.name for path in group.iterdir()} for group in groups(tmp_path)] == [MEMBERS | {GROUP}] * 2


@needs_mount
@pytest.mark.parametrize("disk", ["read-only", "full"])
def test_where_nothing_can_be_stored_kernels_still_compile(tmp_path: Path, disk: str) -> None:
    folder, temporary = tmp_path / "cache", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    size = "size=40k" if disk == "full" else "ro"
    before = in_namespace(f"mount -t tmpfs -o {size} none {shlex.quote(str(folder))}")
    told = compile_kernels(folder, 64, 128, before=before, TMPDIR=str(temporary))
    assert told["hits"] == [False, False]
    assert all(kernel["size"] > 1000 for kernel in told["kernels"])
    assert list(temporary.iterdir()) == []


def manager(folder: Path, monkeypatch: pytest.MonkeyPatch, key: str = "key") -> Any:
    from kcachefs.triton import CacheManager

    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    return CacheManager(key)


PARTS = {"k.json": b"{}", "k.cubin": b"\x7fELF", "k.ptx": b".version"}


@pytest.mark.parametrize("order", list(itertools.permutations(PARTS)), ids=" ".join)
def test_a_group_is_stored_whatever_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...]
) -> None:
    writer = manager(tmp_path, monkeypatch)
    group = {name: writer.put(PARTS[name], name) for name in order}
    assert {name: Path(path).read_bytes() for name, path in group.items()} == PARTS
    writer.put_group("k.json", group)
    assert {name: Path(path).read_bytes() for name, path in group.items()} == PARTS
    found = manager(tmp_path, monkeypatch).get_group("k.json")
    assert found == group
    del writer
    assert list((tmp_path / ".kcachefs").glob("*")) == []
    (tmp_path / "key" / "k.cubin").unlink()
    assert manager(tmp_path, monkeypatch).get_group("k.json") is None


def test_a_group_joins_files_that_are_in_its_folder_and_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = manager(tmp_path, monkeypatch)
    launcher = Path(user.put(b"launcher", "launcher.so"))
    writer = manager(tmp_path, monkeypatch)
    group = {name: writer.put(PARTS[name], name) for name in ("k.cubin", "k.json")}
    writer.put_group("k.json", group)
    assert manager(tmp_path, monkeypatch).get_group("k.json") == group
    assert launcher.read_bytes() == b"launcher"
    assert user.get_file("launcher.so") == str(launcher)


def test_a_group_may_name_files_that_another_manager_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = manager(tmp_path, monkeypatch), manager(tmp_path, monkeypatch)
    group = {"k.cubin": one.put(PARTS["k.cubin"], "k.cubin"), "k.json": two.put(PARTS["k.json"], "k.json")}
    two.put_group("k.json", group)
    del one
    found = manager(tmp_path, monkeypatch).get_group("k.json")
    assert found is not None
    assert {name: Path(path).read_bytes() for name, path in found.items()} == {name: PARTS[name] for name in group}


def test_the_directory_that_triton_was_given_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton.knobs")
    made = manager(tmp_path / "variable", monkeypatch)
    assert made.put(b"{}", "tuned.json").startswith(str(tmp_path / "variable"))
    with knobs.cache.scope():
        knobs.cache.dir = str(tmp_path / "knob")
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "variable"))
        from kcachefs.triton import CacheManager

        assert CacheManager("key").put(b"{}", "tuned.json").startswith(str(tmp_path / "knob"))


@pytest.mark.parametrize(("size", "told"), [("100", " is 100, but"), ("abc", ": 'abc' is not a size")])
def test_a_bound_that_makes_no_sense_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, told: str
) -> None:
    monkeypatch.setenv("KCACHEFS_CACHE_SIZE", size)
    with pytest.raises(UsageError, match=f"^KCACHEFS_CACHE_SIZE{told}"):
        manager(tmp_path, monkeypatch)
