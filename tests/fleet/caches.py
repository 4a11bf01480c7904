"""Small caches with entries of both kinds, keys, and packs made of them in this process."""

from __future__ import annotations

import json
import os
from pathlib import Path

from kcachefs.fleet import finding, making, signing
from kcachefs.fleet.manifest import Manifest
from kcachefs.fleet.views import FolderView

TIME = 10**18 + 123456789


def fill(root: Path, kernels: int = 3, size: int = 3000) -> None:
    """Entries of Triton and Inductor below a mount, or any folder of namespaces. The same bytes every time."""
    for number in range(kernels):
        entry = root / "triton" / f"KEY{number}"
        entry.mkdir(parents=True)
        target = {"backend": "cuda", "arch": 90, "warp_size": 32}
        facts = {"name": f"add{number}", "target": target, "num_warps": 4, "num_stages": 3, "triton_version": "3.6.0"}
        (entry / "add.json").write_text(json.dumps(facts))
        for suffix in ("cubin", "ptx"):
            (entry / f"add.{suffix}").write_bytes((f"{suffix} of {number} " * size).encode()[:size])
        (entry / "add.cubin").chmod(0o755)
        children = {name: str(entry / name) for name in ("add.cubin", "add.ptx", "add.json")}
        (entry / "__grp__add.json").write_text(json.dumps({"child_paths": children}))
    for stem in ("cabc", "cdef"):
        folder = root / "inductor" / "ab"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{stem}.py").write_bytes(b"import torch # " + stem.encode())
        (folder / f"{stem}.so").write_bytes(b"\x7fELF" + stem.encode() * 100)
    deep = root / "torch_extensions" / "fused" / "build"
    deep.mkdir(parents=True)
    (deep / "fused.o").write_bytes(b"object")
    (deep.parent / "fused.so").write_bytes(b"library")
    (deep.parent / "lock").write_bytes(b"")
    for folder_name, _, names in os.walk(root):
        for name in names:
            if not folder_name.startswith(str(root / ".kcachefs")):
                os.utime(os.path.join(folder_name, name), ns=(TIME, TIME + len(name)))


ENTRIES = 3 + 2 + 1
FILES = 3 * 4 + 2 * 2 + 2


def shown(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, time and bytes of every file of the entries, with the root's own path taken out."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.read_bytes().replace(str(root).encode(), b"@"),
        )
        for namespace in ("triton", "inductor", "torch_extensions")
        for path in sorted((root / namespace).rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def key(folder: Path, name: str = "key") -> tuple[Path, str]:
    """A new secret key, and the text of its public one."""
    _, text = signing.keygen(folder / name)
    return folder / name, text


def packed(root: Path, out: Path, secret: Path | None = None, level: int = 3) -> Manifest:
    view = FolderView(root)
    signer = signing.Signer(secret) if secret is not None else None
    return making.make(view, finding.find(view, [], lambda line: None), out, level=level, signer=signer)
