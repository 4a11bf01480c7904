"""Packs as OCI images: through a real registry with real skopeo, and images that are damaged or hold no pack."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import socket
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcachefs.errors import PackError
from kcachefs.fleet import oci
from tests.engines.mounting import Mount
from tests.fleet.caches import ENTRIES, fill, key, packed, shown
from tests.frameworks.commands import PATIENCE, kcachefs
from tests.waiting import until


def image(folder: Path) -> tuple[Path, bytes]:
    """An image of a pack of some entries, and the pack's bytes."""
    fill(folder / "caches")
    made = packed(folder / "caches", folder / "all.kcp")
    oci.write(folder / "image", folder / "all.kcp", made)
    return folder / "image", (folder / "all.kcp").read_bytes()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of a registry of our own."""
    program = shutil.which("docker-registry")
    if program is None or shutil.which("skopeo") is None:
        pytest.skip("skopeo and docker-registry are not installed")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (tmp_path / "registry").mkdir()
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": address},
    }
    (tmp_path / "registry.yml").write_text(json.dumps(settings))
    with subprocess.Popen([program, "serve", tmp_path / "registry.yml"], stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: answers(address))
            yield address
        finally:
            process.kill()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/v2/", timeout=PATIENCE) as reply:
            return bool(reply.status == 200)
    except urllib.error.URLError:
        return False


def skopeo(*arguments: str | Path) -> None:
    command = ["skopeo", "--insecure-policy", "copy", "-q", *map(str, arguments)]
    subprocess.run(command, check=True, timeout=PATIENCE, capture_output=True)


@pytest.mark.mount
def test_a_pack_comes_back_from_a_registry_and_is_unpacked(mount: Mount, base: Path, registry: str) -> None:
    fill(mount.mountpoint)
    secret, public = key(base)
    options = ("--key", secret, "--level", "3", "--oci", base / "image", "--mount", mount.mountpoint)
    kcachefs("pack", base / "all.kcp", *options)
    remote = f"docker://{registry}/caches/serve"
    skopeo("--dest-tls-verify=false", f"oci:{base}/image", f"{remote}:1")
    skopeo("--src-tls-verify=false", f"{remote}:1", f"oci:{base}/back")
    with oci.pack_in(base / "back") as found:
        assert found.read_bytes() == (base / "all.kcp").read_bytes()
    with Mount(base / "other", base / "other store", "direct") as other:
        refused = kcachefs("unpack", base / "back", "--mount", other.mountpoint, check=False)
        assert (refused.returncode, os.listdir(other.mountpoint / "triton")) == (6, [])
        done = kcachefs("unpack", base / "back", "--trust", public, "--mount", other.mountpoint)
        assert f"{ENTRIES} entries unpacked" in done.stdout
        assert shown(other.mountpoint) == shown(mount.mountpoint)


def test_the_same_pack_gives_the_same_image(tmp_path: Path) -> None:
    first, _ = image(tmp_path)
    made = packed(tmp_path / "caches", tmp_path / "all.kcp")
    oci.write(tmp_path / "again", tmp_path / "all.kcp", made)
    for path in first.rglob("*"):
        assert path.is_dir() or path.read_bytes() == (tmp_path / "again" / path.relative_to(first)).read_bytes()
    refused = kcachefs("pack", "verify", first, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (6, 1)
    assert "intact" in kcachefs("pack", "verify", first, "--allow-unsigned").stdout


def test_every_blob_has_the_digest_that_names_it(tmp_path: Path) -> None:
    made, _ = image(tmp_path)
    layer = max((made / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    raw = layer.read_bytes()
    layer.write_bytes(raw[:-1] + b"x")
    with pytest.raises(PackError, match="has other bytes"), oci.pack_in(made):
        pass
    layer.unlink()
    with pytest.raises(PackError, match="is missing"), oci.pack_in(made):
        pass


def foreign(folder: Path, layer: bytes, **changes: Any) -> Path:
    """An image layout of one layer, as somebody else may write it."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(raw: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(raw).hexdigest()
        (blobs / digest).write_bytes(raw)
        return {"digest": f"sha256:{digest}", "size": len(raw)}

    inner = blob(json.dumps({"schemaVersion": 2, "layers": [{**blob(layer), **changes}]}).encode())
    index = blob(json.dumps({"manifests": [{"mediaType": oci._MANIFEST, **inner}]}).encode())
    (folder / "oci-layout").write_text("{}")
    (folder / "index.json").write_text(json.dumps({"manifests": [{"mediaType": oci._INDEX, **index}]}))
    return folder


def tar(folder: Path, name: str, content: bytes) -> bytes:
    (folder / "content").write_bytes(content)
    with tarfile.open(folder / "layer.tar", "w") as archive:
        archive.add(folder / "content", name)
    return (folder / "layer.tar").read_bytes()


SPARSE = {
    "of GNU tar": {},
    "of PAX": {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,4", "GNU.sparse.size": "{size}"},
    "of PAX, with its map in the file": {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": "{size}",
    },
}


def sparse(name: str, size: int, headers: dict[str, str]) -> bytes:
    """A tar of a file of which four bytes are there, and the rest is a hole."""
    member, content = tarfile.TarInfo(name), b"pack"
    if headers:
        member.pax_headers = {one: value.format(size=size) for one, value in headers.items()}
        if "GNU.sparse.realsize" in headers:
            content = b"1\n0\n4\n".ljust(512, b"\0") + content
    member.size = len(content)
    raw = bytearray(member.tobuf(tarfile.PAX_FORMAT if headers else tarfile.GNU_FORMAT))
    if not headers:
        raw[156:157], raw[386:398], raw[398:410], raw[483:495] = b"S", b"%011o\0" % 0, b"%011o\0" % 4, b"%011o\0" % size
        raw[148:156] = b" " * 8
        raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw) + content.ljust(512, b"\0") + bytes(1024)


@pytest.mark.parametrize("headers", SPARSE.values(), ids=SPARSE)
def test_a_sparse_file_in_an_image_is_not_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    layer = sparse("x.kcp", 64 << 20, headers)
    (tmp_path / "layer.tar").write_bytes(layer)
    with tarfile.open(tmp_path / "layer.tar") as archive:
        (member,) = archive.getmembers()
        assert (member.issparse(), member.size) == (True, 64 << 20)
    monkeypatch.setattr(shutil, "copyfileobj", lambda *arguments: pytest.fail("it is written to the disk"))
    with pytest.raises(PackError, match="a pack of 67,108,864 bytes is not in it whole"):
        with oci.pack_in(foreign(tmp_path / "image", layer)):
            pass


def test_images_that_others_made_are_read(tmp_path: Path) -> None:
    _, pack = image(tmp_path)
    raw = tar(tmp_path, "caches/serve.kcp", pack)
    for name, layer in (("plain", raw), ("gzip", gzip.compress(raw))):
        with oci.pack_in(foreign(tmp_path / name, layer)) as found:
            assert found.read_bytes() == pack


def test_images_without_a_pack_are_refused_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    cases: dict[str, tuple[bytes, dict[str, Any]]] = {
        "no pack": (tar(tmp_path, "README", b"text"), {}),
        "no tar": (b"\0" * 100 + b"nonsense" * 100, {}),
        "cut off": (tar(tmp_path, "x.kcp", bytes(5000))[:2000], {}),
        "bomb": (gzip.compress(tar(tmp_path, "x.kcp", bytes(64 << 20))), {}),
        "elsewhere": (b"", {"digest": "sha256:../../../../etc/passwd"}),
        "no digest": (b"", {"digest": 5}),
    }
    for name, (layer, changes) in cases.items():
        with pytest.raises(PackError), oci.pack_in(foreign(tmp_path / name, layer, **changes)):
            pass
    for content in ("", "[]", "[" * 100_000, '{"manifests": [5, null]}', '{"manifests": 5}'):
        (tmp_path / "no pack" / "index.json").write_text(content)
        with pytest.raises(PackError), oci.pack_in(tmp_path / "no pack"):
            pass
    assert os.listdir(tmp_path / "tmp") == []
