"""Packs that are damaged, forged or made to hurt: each is refused in one line, and nothing is written."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from blake3 import blake3

from kcachefs.errors import MountError, PackError, PackUntrusted, UsageError
from kcachefs.fleet import manifest as manifests
from kcachefs.fleet import packfile, rules, signing, unpacking
from kcachefs.fleet.manifest import Frame, Manifest, PackedEntry, PackedFile
from kcachefs.fleet.targets import MountTarget
from tests.core.older_layouts import KERNELS, older_layouts
from tests.engines.mounting import Mount
from tests.fleet.caches import ENTRIES, fill, key, packed
from tests.frameworks.commands import kcachefs
from tests.waiting import PATIENCE


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def bring(pack: Path, target: Path, *trusted: str) -> None:
    """Unpack as the command does, into a plain folder."""
    keys = signing.trusted(trusted)
    with packfile.opened(pack, keys, allow_unsigned=not trusted) as opened:
        unpacking.unpack(opened, MountTarget(target), unpacking.Unpacked())


def small_pack(folder: Path) -> tuple[Path, str]:
    """A signed pack of a few hundred bytes."""
    entry = folder / "caches" / "triton" / "KEY"
    entry.mkdir(parents=True)
    (entry / "add.cubin").write_bytes(b"cubin")
    secret, public = key(folder)
    packed(folder / "caches", folder / "small.kcp", secret)
    return folder / "small.kcp", public


# --- damage -----------------------------------------------------------------------------------------------------------


def test_no_byte_can_be_another(tmp_path: Path, target: Path) -> None:
    pack, public = small_pack(tmp_path)
    raw, accepted, said = pack.read_bytes(), [], set()
    for at in range(len(raw)):
        pack.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
        try:
            bring(pack, target, public)
            accepted.append(at)
        except PackError as error:
            said.add(str(error))
    assert accepted == []
    assert [line for line in said if not line.startswith(f"{pack}: ")] == []
    assert list(target.iterdir()) == []
    pack.write_bytes(raw)
    bring(pack, target, public)
    assert (target / "triton" / "KEY" / "add.cubin").read_bytes() == b"cubin"


def test_a_pack_cannot_be_shorter_or_longer(tmp_path: Path, target: Path) -> None:
    pack, public = small_pack(tmp_path)
    raw = pack.read_bytes()
    for length in range(len(raw)):
        pack.write_bytes(raw[:length])
        with pytest.raises(PackError):
            bring(pack, target, public)
    for more in (b"\0", raw):
        pack.write_bytes(raw + more)
        with pytest.raises(PackError, match="something follows its end"):
            bring(pack, target, public)
    assert list(target.iterdir()) == []


def test_damage_at_the_end_of_a_large_pack_is_found_before_the_first_entry(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcachefs.fleet.making.FRAME_BYTES", 10_000)
    fill(tmp_path / "caches", kernels=10)
    made = packed(tmp_path / "caches", tmp_path / "all.kcp")
    assert len(made.frames) > 3
    raw = (tmp_path / "all.kcp").read_bytes()
    (tmp_path / "all.kcp").write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(PackError, match="a frame is not the one that was packed"):
        bring(tmp_path / "all.kcp", target)
    assert list(target.iterdir()) == []
    (tmp_path / "all.kcp").write_bytes(raw)
    bring(tmp_path / "all.kcp", target)
    assert len(list((target / "triton").iterdir())) == 10


def test_a_folder_that_was_one_entry_comes_as_those_that_it_holds(tmp_path: Path, target: Path) -> None:
    paths = {path.format(name) for path in KERNELS.values() for name in "ab"}
    for path in paths:
        (tmp_path / "caches" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "caches" / path).write_bytes(path.encode())
    with older_layouts():
        made = packed(tmp_path / "caches", tmp_path / "older.kcp")
    assert {entry.label for entry in made.entries} == KERNELS.keys()
    with packfile.opened(tmp_path / "older.kcp", [], allow_unsigned=True) as opened:
        assert len(opened.manifest.entries) == len(paths)
    bring(tmp_path / "older.kcp", target)
    brought = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert brought == {path: path for path in paths}


def test_of_a_folder_that_was_one_entry_leftovers_stay_behind(tmp_path: Path, target: Path) -> None:
    folder = tmp_path / "caches" / "flydsl" / "launch_1f2e"
    folder.mkdir(parents=True)
    for name in ("3d4c.pkl", ".3d4c.pkl.x1.tmp"):
        (folder / name).write_bytes(name.encode())
    with older_layouts():
        made = packed(tmp_path / "caches", tmp_path / "older.kcp")
    assert [len(entry.files) for entry in made.entries] == [2]
    bring(tmp_path / "older.kcp", target)
    assert [path.name for path in target.rglob("*") if path.is_file()] == ["3d4c.pkl"]


# --- trust ------------------------------------------------------------------------------------------------------------


def test_only_a_trusted_signature_counts(tmp_path: Path, target: Path) -> None:
    pack, public = small_pack(tmp_path)
    _, other = key(tmp_path, "other")
    with pytest.raises(PackUntrusted, match="is not trusted"):
        bring(pack, target, other)
    with pytest.raises(PackUntrusted, match="is not trusted"):  # --allow-unsigned is no way around it
        bring(pack, target)
    raw = pack.read_bytes()
    stripped = raw[:56] + bytes(96) + raw[152:]
    pack.write_bytes(stripped)
    with pytest.raises(PackUntrusted, match="is not signed"):
        bring(pack, target, public)
    pack.write_bytes(raw[:56] + bytes(32) + raw[88:])
    with pytest.raises(PackUntrusted, match="signature is wrong"):
        bring(pack, target)
    assert list(target.iterdir()) == []
    pack.write_bytes(stripped)
    bring(pack, target)
    assert (target / "triton" / "KEY").is_dir()


def test_a_signature_of_another_pack_does_not_fit(tmp_path: Path, target: Path) -> None:
    (tmp_path / "a").mkdir()
    pack, public = small_pack(tmp_path / "a")
    fill(tmp_path / "caches")
    packed(tmp_path / "caches", tmp_path / "other.kcp", tmp_path / "a" / "key")
    raw, other = pack.read_bytes(), (tmp_path / "other.kcp").read_bytes()
    pack.write_bytes(raw[:88] + other[88:152] + raw[152:])
    with pytest.raises(PackUntrusted, match="signature is wrong"):
        bring(pack, target, public)


@pytest.mark.mount
def test_the_command_says_one_line_and_its_exit_code(mount: Mount, base: Path) -> None:
    pack, public = small_pack(base)
    where = ("--mount", mount.mountpoint)
    raw = pack.read_bytes()
    cases: list[tuple[bytes, tuple[str, ...], int, str]] = [
        (raw, (), 6, "which is not trusted; trust it with --trust kcachefs-ed25519:"),
        (raw[:56] + bytes(96) + raw[152:], ("--trust", public), 6, "use --allow-unsigned"),
        (raw[:-1], ("--trust", public), 1, "is cut off"),
        (raw[:-1] + bytes([raw[-1] ^ 1]), ("--trust", public), 1, "is damaged"),
        (raw[:8] + b"\2" + raw[9:], ("--trust", public), 1, "update kcachefs"),
        (b"something else", ("--trust", public), 1, "is not a pack"),
        (b"", ("--trust", public), 1, "is not a pack"),
        (raw, ("--trust", "nonsense"), 2, "is neither a public key"),
    ]
    for content, options, code, words in cases:
        pack.write_bytes(content)
        for verb in (("unpack",), ("pack", "verify")):
            done = kcachefs(*verb, pack, *options, *(where if verb == ("unpack",) else ()), check=False)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), (words, done.stderr)
            assert words in done.stderr
    assert os.listdir(mount.mountpoint / "triton") == []
    absent_pack = base / "absent.kcp"
    for verbs in (("unpack", absent_pack, *where), ("pack", "ls", absent_pack), ("pack", "verify", absent_pack)):
        absent = kcachefs(*verbs, check=False)
        assert (absent.returncode, absent.stderr.count("\n"), "does not exist" in absent.stderr) == (3, 1, True)
    pack.write_bytes(raw)
    assert "is trusted" in kcachefs("pack", "verify", pack, "--trust", public).stdout


# --- manifests that lie -----------------------------------------------------------------------------------------------

PLAIN = b"cubin"
FILE = PackedFile("add.cubin", 0o644, 0, len(PLAIN), 0, blake3(PLAIN).hexdigest())
ENTRY = PackedEntry(namespace="triton", path=["KEY"], files=[FILE])


def forged(out: Path, *entries: PackedEntry, plain: bytes = PLAIN, claimed: int | None = None) -> Path:
    """An unsigned pack that says what nobody would say who packs a cache."""
    stored = zstandard.ZstdCompressor().compress(plain)
    size = len(plain) if claimed is None else claimed
    frame = Frame(stored=len(stored), plain=size, digest=blake3(stored).hexdigest(), entries=list(entries))
    packfile.write(out, Manifest(facts={}, frames=[frame]), io.BytesIO(stored), None)
    return out


def with_file(**changes: Any) -> PackedEntry:
    return msgspec.structs.replace(ENTRY, files=[msgspec.structs.replace(FILE, **changes)])


def with_entry(**changes: Any) -> PackedEntry:
    return msgspec.structs.replace(ENTRY, **changes)


@pytest.mark.parametrize(
    "entry",
    [
        *(with_file(name=name) for name in ("../x", "/etc/x", "a/../../x", "", ".", "..", "a//b", "a/", "x\0y")),
        *(with_file(name=name) for name in ("x\x1b[2J", "\u202ex", "x\n", "x" * 256, "/".join("a" * 65), ".kcachefs")),
        *(with_file(name=name) for name in ("lock", "a.lock", "tmp.pid_1/x", ".staging-adopt-1")),
        *(with_entry(path=path) for path in ([], [".."], ["a", "..", ".."], ["/etc"], ["a/b"], ["KEY", "deeper"])),
        *(with_entry(path=[name]) for name in ("tmp.pid_1_2", ".staging")),
        *(with_entry(namespace=name) for name in ("cuda", "cutile", ".kcachefs", "", "..", "unknown", "/etc")),
        with_entry(namespace="cuda_core", path=["tmp"]),
        with_entry(namespace="ccache", path=["a", "2"], files=[msgspec.structs.replace(FILE, name="stats")]),
        with_entry(namespace="inductor", path=["ab"], group="other"),
        with_entry(namespace="inductor", path=["ab"], group="add", files=[msgspec.structs.replace(FILE, name="d/add")]),
        with_entry(files=[]),
        with_entry(files=[FILE, FILE]),
        with_entry(files=[FILE, msgspec.structs.replace(FILE, name="add.cubin/inner")]),
        with_file(offset=1),
        with_file(offset=1 << 61),
        with_file(size=len(PLAIN) + 1),
        with_file(moves=True),
    ],
    ids=lambda entry: repr((entry.label, [file.name[:20] for file in entry.files])),
)
def test_what_is_no_entry_of_a_cache_is_refused(tmp_path: Path, target: Path, entry: PackedEntry) -> None:
    pack = forged(tmp_path / "forged.kcp", msgspec.structs.replace(ENTRY, path=["FIRST"]), entry)
    with pytest.raises(PackError) as refused:
        bring(pack, target)
    assert str(refused.value).isprintable()
    assert list(target.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["forged.kcp", "target"]


@pytest.mark.parametrize(("namespace", "folder"), [("triton", "locks"), ("inductor", "fxgraph")])
def test_a_folder_of_entries_brings_what_its_entries_would(namespace: str, folder: str) -> None:
    def read(**changes: Any) -> list[PackedEntry]:
        entry = with_entry(namespace=namespace, path=[folder], **changes)
        frame = Frame(stored=1, plain=len(PLAIN), digest="0" * 64, entries=[entry])
        return rules.checked(Manifest(facts={}, frames=[frame])).entries

    assert read() == read(group=FILE.name)


def test_a_folder_that_is_divided_gets_no_deeper_than_others(tmp_path: Path, target: Path) -> None:
    folders = [".cache", "flashinfer", "cubins", *["a"] * (rules.DEPTH_MAX - 3)]
    for below in ((), ("b",)):
        file = msgspec.structs.replace(FILE, name="/".join((*below, FILE.name)))
        pack = forged(tmp_path / "deep.kcp", with_entry(namespace="flashinfer", path=folders, files=[file]))
        if not below:
            bring(pack, target)
            continue
        with pytest.raises(PackError, match="is not where flashinfer keeps entries"):
            bring(pack, target)


def test_what_is_forged_here_would_be_taken_if_it_were_right(tmp_path: Path, target: Path) -> None:
    bring(forged(tmp_path / "right.kcp", ENTRY), target)
    assert (target / "triton" / "KEY" / "add.cubin").read_bytes() == PLAIN


def test_files_that_share_bytes_do_not_make_an_entry_huge(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "THING_MAX", 3 * len(PLAIN))
    files = [msgspec.structs.replace(FILE, name=f"{number}.cubin") for number in range(4)]
    bring(forged(tmp_path / "right.kcp", with_entry(files=files[:3])), target)
    with pytest.raises(PackError, match="has more than"):
        bring(forged(tmp_path / "forged.kcp", with_entry(path=["HUGE"], files=files)), target)
    assert not (target / "triton" / "HUGE").exists()


def test_an_entry_is_not_in_a_pack_twice(tmp_path: Path, target: Path) -> None:
    with pytest.raises(PackError, match="twice"):
        bring(forged(tmp_path / "forged.kcp", ENTRY, ENTRY), target)


def test_a_file_with_other_bytes_than_the_manifest_says_is_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(PackError, match="is not what was packed"):
        bring(forged(tmp_path / "forged.kcp", with_file(digest="0" * 64)), target)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.replace(b'"mode":', b'"mode":') + b" ",
        lambda said: said[:-1] + b',"more":1}',
        lambda said: said.replace(b"420", b"2541"),  # setuid
        lambda said: said.replace(b"420", b"-1"),
        lambda said: said.replace(b"420", b'"420"'),
        lambda said: b"[" * 100_000,
        lambda said: b"{}",
        lambda said: b"\xff" + said,
    ],
    ids=["blank", "more", "setuid", "negative", "text", "nested", "empty", "no UTF-8"],
)
def test_a_manifest_has_only_what_it_may_have(
    tmp_path: Path,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[bytes], bytes],
    request: pytest.FixtureRequest,
) -> None:
    encode = manifests.encode
    monkeypatch.setattr(manifests, "encode", lambda manifest: change(encode(manifest)))
    pack = forged(tmp_path / "forged.kcp", ENTRY)
    if request.node.callspec.id == "blank":  # the change itself does not matter: only what it says
        bring(pack, target)
        return
    with pytest.raises(PackError, match="manifest makes no sense"):
        bring(pack, target)
    assert list(target.iterdir()) == []


# --- bombs ------------------------------------------------------------------------------------------------------------


def test_too_much_is_refused_before_it_is_decoded(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [msgspec.structs.replace(FILE, name=f"{number}") for number in range(11)]
    pack = forged(tmp_path / "forged.kcp", with_entry(files=many))
    monkeypatch.setattr(packfile.Pack, "decoded", None)
    for limit, value in (("FILES_MAX", 10), ("TOTAL_MAX", 54), ("THING_MAX", 4)):
        with monkeypatch.context() as patch:
            patch.setattr(rules, limit, value)
            with pytest.raises(PackError, match=r"at most|outside"):
                bring(pack, target)


def test_a_frame_cannot_become_larger_than_it_says(tmp_path: Path, target: Path) -> None:
    zeros = bytes(1 << 20)
    file = msgspec.structs.replace(FILE, size=5, digest=blake3(bytes(5)).hexdigest())
    pack = forged(tmp_path / "bomb.kcp", with_entry(files=[file]), plain=zeros, claimed=5)
    with pytest.raises(PackError, match="decodes to 1,048,576 bytes"):
        bring(pack, target)
    assert list(target.iterdir()) == []


def raw_pack(out: Path, stored: bytes) -> Path:
    header = packfile._HEADER.pack(
        packfile.MAGIC, packfile.VERSION, 0, len(stored), blake3(stored).digest(), bytes(32), bytes(64)
    )
    out.write_bytes(header + stored)
    return out


def test_a_manifest_cannot_be_a_bomb(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "UNTRUSTED_MANIFEST_MAX", 1 << 20)
    pack = raw_pack(tmp_path / "bomb.kcp", zstandard.ZstdCompressor().compress(b" " * (1 << 21)))
    with pytest.raises(PackError, match="decodes to 2,097,152 bytes"):
        bring(pack, target)
    unknown = zstandard.ZstdCompressor(write_content_size=False).compress(b" " * (1 << 21))
    with pytest.raises(PackError, match="does not say how large"):
        bring(raw_pack(tmp_path / "bomb.kcp", unknown), target)


def test_a_manifest_that_no_trusted_key_signed_must_be_smaller(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "caches")
    secret, public = key(tmp_path)
    packed(tmp_path / "caches", tmp_path / "signed.kcp", secret)
    packed(tmp_path / "caches", tmp_path / "unsigned.kcp")
    monkeypatch.setattr(rules, "UNTRUSTED_MANIFEST_MAX", 100)
    with pytest.raises(
        PackError, match=r"its manifest decodes to .* at most 100 are read, unless a trusted key signed it"
    ):
        bring(tmp_path / "unsigned.kcp", target)
    for name in ("unsigned", "signed"):
        with pytest.raises(
            PackError, match=r"its manifest decodes to .* at most 100 are read, unless a trusted key signed it"
        ):
            with packfile.opened(tmp_path / f"{name}.kcp", (), to_look=True):
                pass
    assert list(target.iterdir()) == []
    bring(tmp_path / "signed.kcp", target, public)
    with pytest.raises(UsageError, match="too many entries for one pack; choose some with a pattern, or sign it"):
        packed(tmp_path / "caches", tmp_path / "another.kcp")


@pytest.mark.parametrize(
    "facts", [{"triton": ["1"] * 1000}, {f"{number}": [] for number in range(1001)}, {"triton": ["1" * 65]}]
)
def test_a_manifest_has_few_facts(tmp_path: Path, target: Path, facts: dict[str, list[str]]) -> None:
    plain = manifests.encode(Manifest(facts=facts, frames=[]))
    with pytest.raises(PackError, match="it has more than 1,000 facts, or one longer than 64 characters"):
        bring(raw_pack(tmp_path / "told.kcp", zstandard.ZstdCompressor().compress(plain)), target)


def test_listing_a_bomb_takes_little_memory(tmp_path: Path) -> None:
    """Some kilobytes that become 250 MB of short texts, and those gigabytes."""
    told = b'{"facts":{"a":[' + b'"\\u00ff0",' * 25_000_000 + b'"a"]},"frames":[]}'
    bomb = raw_pack(tmp_path / "bomb.kcp", zstandard.ZstdCompressor(level=1).compress(told))
    assert bomb.stat().st_size < 1 << 20
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({1 << 30}, {1 << 30}))"
    listed = [sys.executable, "-c", f"{limit}; import kcachefs.cli; kcachefs.cli.main()", "pack", "ls", str(bomb)]
    done = subprocess.run(listed, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "decodes to 250,000,033 bytes" in done.stderr


def test_a_window_that_needs_much_memory_is_refused(tmp_path: Path, target: Path) -> None:
    # A frame header that asks for 2 GiB: magic, an 8-byte content size, window descriptor 21 << 3.
    stored = bytes.fromhex("28b52ffd") + bytes([0xC0, 21 << 3]) + (5).to_bytes(8, "little") + b"\x29\0\0" + PLAIN
    assert zstandard.get_frame_parameters(stored).window_size == 1 << 31
    with pytest.raises(PackError, match="needs a window of 2,147,483,648 bytes"):
        bring(raw_pack(tmp_path / "bomb.kcp", stored), target)


# --- the target -------------------------------------------------------------------------------------------------------


def test_no_link_in_the_target_leads_elsewhere(tmp_path: Path, target: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    fill(tmp_path / "caches")
    packed(tmp_path / "caches", tmp_path / "all.kcp")
    (target / "inductor").mkdir()
    (target / "inductor" / "ab").symlink_to(elsewhere)
    with pytest.raises(MountError, match=r"inductor/ab: is not a folder"):
        bring(tmp_path / "all.kcp", target)
    assert not (target / "triton").exists(), "nothing was written"
    (target / "inductor" / "ab").unlink()
    (target / "triton").mkdir()
    (target / "triton" / "KEY0").symlink_to(elsewhere)
    (target / "inductor" / "ab").mkdir()
    (target / "inductor" / "ab" / "cabc.py").symlink_to(elsewhere / "made")
    bring(tmp_path / "all.kcp", target)
    assert list(elsewhere.iterdir()) == []
    assert (target / "triton" / "KEY0").is_symlink()
    assert len(list((target / "triton").iterdir())) == 3
    assert (target / "inductor" / "ab" / "cabc.so").is_file()


@pytest.mark.mount
def test_no_link_in_a_mount_leads_elsewhere(mount: Mount, base: Path) -> None:
    fill(base / "caches")
    packed(base / "caches", base / "all.kcp")
    (base / "elsewhere").mkdir()
    (mount.mountpoint / "inductor" / "ab").symlink_to(base / "elsewhere")
    done = kcachefs("unpack", base / "all.kcp", "--allow-unsigned", "--mount", mount.mountpoint, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "inductor/ab: is not a folder" in done.stderr
    assert os.listdir(base / "elsewhere") == os.listdir(mount.mountpoint / "triton") == []
    (mount.mountpoint / "inductor" / "ab").unlink()
    done = kcachefs("unpack", base / "all.kcp", "--allow-unsigned", "--mount", mount.mountpoint)
    assert f"{ENTRIES} entries unpacked" in done.stdout
