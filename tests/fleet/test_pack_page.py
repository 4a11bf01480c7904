"""docs/packs.md is true: a reader that knows nothing else reads a real pack, and the page's numbers are the code's."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import zstandard
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kcachefs.fleet import making, manifest, moving, rules, signing
from tests.fleet.caches import FILES, TIME, fill, key, packed

TEXT = (Path(__file__).parents[2] / "docs" / "packs.md").read_text()
TYPES = {"u32": "I", "u64": "Q"}


def header_of(text: str) -> tuple[struct.Struct, list[str], dict[str, str]]:
    """The header's layout, the names of its fields, and what is said of each."""
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \| `(\w+)` \| (.*) \|$", text, re.M)
    form, at = "<", 0
    for offset, size, kind, _, _ in rows:
        assert int(offset) == at
        form += TYPES.get(kind, f"{size}s")
        at += int(size)
    layout = struct.Struct(form)
    assert layout.size == at
    return layout, [row[3] for row in rows], {row[3]: row[4] for row in rows}


def fields_of(text: str, thing: str) -> list[str]:
    return re.findall(rf"^\| {thing} \| `(\w+)` \|", text, re.M)


def read(text: str, raw: bytes) -> tuple[dict[str, Any], dict[str, tuple[int, int, bytes]]]:
    """The manifest of a pack, and mode, time and bytes of every file by its path. Only the page says how."""
    layout, names, said = header_of(text)
    header = dict(zip(names, layout.unpack_from(raw), strict=True))
    assert header["magic"] == bytes.fromhex(said["magic"].strip("`"))
    assert (header["version"], header["zero"]) == (int(said["version"]), int(said["zero"]))
    begin = int(re.findall(r"From byte (\d+) on", text)[0])
    stored = raw[begin : begin + header["length"]]
    assert blake3(stored).digest() == header["digest"]
    prefix = re.findall(r"the 16 bytes `(.*?)`", text)[0].encode().decode("unicode_escape").encode()
    assert len(prefix) == 16
    Ed25519PublicKey.from_public_bytes(header["key"]).verify(header["signature"], prefix + header["digest"])
    told = json.loads(zstandard.ZstdDecompressor().decompress(stored))
    assert list(told) == fields_of(text, "manifest")
    files, at = {}, begin + header["length"]
    for frame in told["frames"]:
        assert list(frame) == fields_of(text, "frame")
        packed = raw[at : at + frame["stored"]]
        at += frame["stored"]
        assert blake3(packed).hexdigest() == frame["digest"]
        plain = zstandard.ZstdDecompressor().decompress(packed)
        assert len(plain) == frame["plain"]
        for entry in frame["entries"]:
            assert list(entry) == fields_of(text, "entry")
            for row in entry["files"]:
                file = dict(zip(fields_of(text, "file"), row, strict=True))
                content = plain[file["offset"] : file["offset"] + file["size"]]
                assert blake3(content).hexdigest() == file["digest"]
                path = "/".join((entry["namespace"], *entry["path"], file["name"]))
                files[path] = (file["mode"], file["mtime"], content)
    assert at == len(raw)
    return told, files


def test_a_pack_is_read_by_the_page_alone(tmp_path: Path) -> None:
    root = tmp_path / "caches"
    fill(root)
    secret, public = key(tmp_path)
    packed(root, tmp_path / "all.kcp", secret)
    told, files = read(TEXT, (tmp_path / "all.kcp").read_bytes())
    assert told["facts"].keys() == {"kcachefs", "target", "triton"}
    assert told["facts"]["target"] == ["cuda 90"]
    assert len(files) == FILES
    place = re.findall(r"in place of `(.*?)`", TEXT)[0]
    for path, (mode, mtime, content) in files.items():
        found = (root / path).stat()
        assert (mode, mtime) == (found.st_mode & 0o777, found.st_mtime_ns)
        assert mtime > TIME
        assert content.replace(place.encode(), str(root).encode()) == (root / path).read_bytes()
    assert place.encode() in files["triton/KEY0/__grp__add.json"][2]
    assert signing.public_text((tmp_path / "all.kcp").read_bytes()[56:88]) == public


def test_entries_and_files_have_the_order_of_the_page(tmp_path: Path) -> None:
    fill(tmp_path / "caches", kernels=12)
    made = packed(tmp_path / "caches", tmp_path / "all.kcp")
    entries = [(entry.namespace, entry.path, entry.group) for entry in made.entries]
    assert entries == sorted(entries)
    assert len(entries) == 15
    for entry in made.entries:
        assert [file.name for file in entry.files] == sorted(file.name for file in entry.files)


def test_the_pages_fields_and_limits_are_those_of_the_code() -> None:
    for thing, record in (
        ("manifest", manifest.Manifest),
        ("frame", manifest.Frame),
        ("entry", manifest.PackedEntry),
        ("file", manifest.PackedFile),
    ):
        assert fields_of(TEXT, thing) == list(record.__struct_fields__)
    limits = dict(re.findall(r"^\| ([^|]+?) \| ([\d,]+(?: [MG]iB)?) \|$", TEXT, re.M))
    assert limits == {
        "files": f"{rules.FILES_MAX:,}",
        "bytes of all files": f"{rules.TOTAL_MAX >> 30} GiB",
        "bytes of one entry, and of a decoded frame": f"{rules.THING_MAX >> 20} MiB",
        "window of a frame": f"{1 << rules.WINDOW_LOG_MAX >> 20} MiB",
        "bytes of the decoded manifest": f"{rules.MANIFEST_MAX >> 20} MiB",
        "the same, unless a trusted key signed it": f"{rules.UNTRUSTED_MANIFEST_MAX >> 20} MiB",
        "facts in the manifest, with their names": f"{rules.FACTS_MAX:,}",
        "characters of a fact": f"{rules.FACT_LENGTH_MAX}",
    }
    assert f"more than {making.FRAME_BYTES >> 20} MiB" in TEXT
    assert f"`{moving.PLACE}/NAMESPACE/FOLDERS/NAME`" in TEXT
